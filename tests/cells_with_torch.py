"""For the interpreter of the engines, which has torch:

``%%profile`` in a real shell; says as JSON what came out.
"""

import json
import sys

sys.path += sys.argv[1:]

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "llmprof")
shell.run_cell("import torch\nx = torch.ones(8, 8)")
value = shell.run_cell_magic(
    "profile", "mine", "for _ in range(3):\n    y = x @ x\n%time\nfloat(y.sum())"
)
failed = shell.run_cell("%%profile --no-shapes\nz = x @ x\n1 / 0")
shell.run_cell_magic("profile", "stacks --stack --memory", "x @ x")
traces = {name: shell.user_ns[name] for name in ("mine", "trace", "stacks")}
products = {
    name: trace.ops.filter(trace.ops["name"] == "aten::mm") for name, trace in traces.items()
}
said = {
    "value": value,
    "products": {name: frame.height for name, frame in products.items()},
    "shapes": {
        name: frame["shapes"].null_count() < frame.height for name, frame in products.items()
    },
    "python": {name: "python" in set(trace.ops["kind"]) for name, trace in traces.items()},
    "failed": type(failed.error_in_exec).__name__,
}
sys.stdout.write("\n" + json.dumps(said) + "\n")
