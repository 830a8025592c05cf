"""Recordings of PyTorch that are written by hand: operators with arguments, and the kernels that
they launched.
"""

import json

import llmprof

MM = {
    "Input Dims": [[4, 8], [8, 2]],
    "Input type": ["c10::BFloat16", "c10::BFloat16"],
    "Input Strides": [[8, 1], [1, 8]],
    "Concrete Inputs": ["", ""],
}
NORM = {
    "Input Dims": [[4, 8], [4, 8], [8], []],
    "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar"],
    "Input Strides": [[8, 1], [16, 1], [1], []],
    "Concrete Inputs": ["", "", "", "1.0e-05"],
}


def recorded(folder, calls):
    """Calls of 100 us one after the other: name and arguments of the operator, names and times
    (us) of its kernels.
    """
    events = []
    correlation = 0
    for number, (name, arguments, kernels) in enumerate(calls):
        at = 100.0 * number
        if name:
            args = {"External id": number, **arguments}
            events.append(
                {
                    "ph": "X",
                    "cat": "cpu_op",
                    "name": name,
                    "pid": 1,
                    "tid": 1,
                    "ts": at,
                    "dur": 50.0,
                    "args": args,
                }
            )
        for place, (kernel, took) in enumerate(kernels):
            correlation += 1
            one = {"correlation": correlation}
            launch = {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 1,
                "tid": 1,
                "args": one,
            }
            events.append({**launch, "ts": at + 5.0 * (place + 1), "dur": 2.0})
            where = {"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1], **one}
            shown = {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "args": where}
            events.append({**shown, "ts": at + 60.0 + 10.0 * place, "dur": took})
    file = folder / "recorded.pt.trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "record_shapes": 1, "traceEvents": events}))
    return llmprof.read(file)
