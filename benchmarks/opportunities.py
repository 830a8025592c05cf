"""The table in benchmarks/opportunities.md, recomputed from the recordings with ``json`` and arithmetic
alone.

Nothing here uses llmprof. Kernels are those whose launching call lies in a call of the operator
with these shapes. The work of each entry is written out by hand beside it. The gain comes from a
small replay of its own: a kernel begins when its stream is free and its call was made; calls come
earlier by what a call before them waited less for the device.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

TARGET: Final = 0.8
DATA: Final = Path(__file__).parents[2] / "shared"
DOCS: Final = Path(__file__).with_name("opportunities.md")
LATENCY_US, OWN_GAP_US = 50.0, 5.0
"""Longest time from a call to its kernel on an idle stream, and longest gap that a stream itself
needs between two.
"""


class Work(NamedTuple):
    """FLOPs and bytes of a call."""

    flops: float
    bytes: float


def product(m: int, n: int, k: int, *, times: int = 1, bias: int = 0) -> Work:
    """``times`` products of m x k by k x n in 16 bits, and a bias."""
    flops = 2 * m * n * k + (m * n if bias else 0)
    return Work(times * flops, 2 * (times * (m * k + k * n + m * n) + bias))


def moved(*elements: float, width: int = 2) -> Work:
    """Tensors of so many elements, each read or written once."""
    return Work(0, width * sum(elements))


@dataclass(frozen=True)
class Entry:
    """An operator of the table: its name, and the work of a call by the beginning of its shapes."""

    operator: str
    calls: dict[str, Work]
    without: str = "(?!)"
    """Kernels that belong to an operator inside of it."""


@dataclass(frozen=True)
class Recording:
    """A recording of the table: its file, the peaks of the device's data sheet, and the ranges
    of its steps.
    """

    name: str
    file: str
    steps: str
    flop_per_s: float
    bytes_per_s: float
    entries: Sequence[Entry]
    counted: str = ""
    """Steps of the phase that is meant."""
    before: int = 0
    """Kernels that ended while the device still did work from before the recording."""


_HEADS = 16 * 16 * 559 * 64
_QWEN = (
    Entry(
        "aten::_scaled_dot_product_flash_attention",
        {"[[16, 16, 559, 64], ": Work(4 * 16 * 16 * 64 * 559 * 559 / 2, 4 * 2 * _HEADS)},
    ),
    Entry(
        "aten::copy_",
        {
            "[[16, 16, 559, 64], [16, 16, 559, 64]": moved(_HEADS, _HEADS),
            "[[16, 559, 16, 64], [16, 559, 16, 64]": moved(_HEADS, _HEADS),
        },
    ),
    Entry("aten::mul", {"[[16, 16, 559, 64], [1, 1, 559, 64]": moved(_HEADS, 559 * 64, _HEADS)}),
    Entry("aten::cat", {"[[[16, 16, 559, 32], [16, 16, 559, 32]]": moved(_HEADS, _HEADS)}),
    Entry("aten::mm", {"[[8944, 1024], [1024, 2816]": product(8944, 2816, 1024)}),
)
_QWEN_ON_AMD = (
    _QWEN[0],
    _QWEN[4],
    Entry(
        "aten::addmm", {"[[1024], [8944, 1024], [1024, 1024]": product(8944, 1024, 1024, bias=1024)}
    ),
    Entry("aten::mm", {"[[8944, 2816], [2816, 1024]": product(8944, 1024, 2816)}),
    _QWEN[3],
)
_NORMED = {
    "[[491520, 128]": 491520 * 128,
    "[[122880, 128]": 122880 * 128,
    "[[15360, 4096]": 15360 * 4096,
}
_PREFILL = (
    Entry("aiter::gemm_a16w16", {"[[15360, 4096], [24576, 4096]": product(15360, 24576, 4096)}),
    Entry("aiter::gemm_a16w16", {"[[15360, 12288], [4096, 12288]": product(15360, 4096, 12288)}),
    Entry("aiter::gemm_a16w16", {"[[15360, 4096], [6144, 4096]": product(15360, 6144, 4096)}),
    # 15 prompts of 1,024 tokens: each token sees those before it
    Entry(
        "aiter::mha_batch_prefill",
        {"[[15360, 32, 128]": Work(4 * 32 * 128 * 15 * 1024 * 1024 / 2, 0)},
    ),
    Entry("aiter::rmsnorm", {shapes: moved(size, size) for shapes, size in _NORMED.items()}),
)
_PATCHES = 5185
_OWL = (
    Entry("aten::_softmax", {"[[16, 5185, 5185]": moved(16 * _PATCHES**2, 16 * _PATCHES**2)}),
    Entry(
        "aten::bmm",
        {
            "[[16, 5185, 5185], [16, 5185, 64]": product(_PATCHES, 64, _PATCHES, times=16),
            "[[16, 5185, 64], [16, 64, 5185]": product(_PATCHES, _PATCHES, 64, times=16),
        },
    ),
    Entry(
        "aten::addmm",
        {
            "[[1024], [5185, 4096], [4096, 1024]": product(_PATCHES, 1024, 4096, bias=1024),
            "[[768], [5, 3072], [3072, 768]": product(5, 768, 3072, bias=768),
        },
    ),
    Entry(
        "aten::addmm",
        {
            "[[4096], [5185, 1024], [1024, 4096]": product(_PATCHES, 4096, 1024, bias=4096),
            "[[3072], [5, 768], [768, 3072]": product(5, 3072, 768, bias=3072),
        },
    ),
)


def _batches(shapes: str, work: Callable[[int], Work]) -> dict[str, Work]:
    """Shapes of batches of three and four."""
    return {shapes.format(n): work(n) for n in (3, 4)}


_DECODE = (
    # as short as a launch: the cache of some hundred tokens is read in less
    Entry(
        "_vllm_fa3_C::fwd", _batches("[[{}, 12, 128]", lambda n: Work(0, 0)), without="FillFunctor"
    ),
    Entry("aten::mm", _batches("[[{}, 1536], [1536, 1536]", lambda n: product(n, 1536, 1536))),
    Entry("aten::mm", _batches("[[{}, 8960], [8960, 1536]", lambda n: product(n, 1536, 8960))),
    Entry(
        "aten::addmm",
        _batches("[[2048], [{}, 1536], [1536, 2048]", lambda n: product(n, 2048, 1536, bias=2048)),
    ),
    Entry("aten::mm", _batches("[[{}, 1536], [1536, 17920]", lambda n: product(n, 17920, 1536))),
)
_MEGATRON = (
    Entry(
        "aten::baddbmm", {"[[32, 2048, 2048], [32, 2048, 64]": product(2048, 2048, 64, times=32)}
    ),
    Entry(
        "FusedLayerNormAffineFunction",
        {"[[2048, 4, 4096]": moved(2048 * 4 * 4096, 2048 * 4 * 4096)},
    ),
    Entry(
        "ScaledUpperTriangMaskedSoftmax", {"[[32, 2048, 2048]": moved(32 * 2048**2, 32 * 2048**2)}
    ),
    Entry("aten::mm", {"[[8192, 2048], [2048, 4096]": product(8192, 4096, 2048)}),
    Entry("aten::mm", {"[[8192, 512], [512, 4096]": product(8192, 4096, 512)}),
)
RECORDINGS: Final = (
    Recording(
        "Qwen1.5-0.5B, H100",
        "real/chrome/tracelens/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "ProfilerStep#",
        989.5e12,
        3.35e12,
        _QWEN,
    ),
    Recording(
        "Qwen1.5-0.5B, MI300X",
        "real/chrome/tracelens/mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "ProfilerStep#",
        1307.4e12,
        5.3e12,
        _QWEN_ON_AMD,
    ),
    Recording(
        "Qwen3-8B, SGLang prefill, MI300X",
        "real/chrome/tracelens/inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz",
        "execute_",
        1307.4e12,
        5.3e12,
        _PREFILL,
        before=1,
    ),
    Recording(
        "OWLv2, MI300X",
        "strangers/chrome/mi300__google_owlv2-large-patch14-ensemble__1016001.json.gz",
        "ProfilerStep#",
        1307.4e12,
        5.3e12,
        _OWL,
    ),
    Recording(
        "Qwen2.5-1.5B, vLLM eager decode, H200",
        "captures/torch_tp1_eager/rank0.pt.trace.json.gz",
        r"execute_context_(?!0\(0\)_generation_0)",
        989.5e12,
        4.8e12,
        _DECODE,
        r"execute_context_0\(0\)",
    ),
    Recording(
        "Megatron TP=8, rank 6, A100",
        "real/chrome/megatron_tp8/megatron_kineto_6.json.gz",
        "ProfilerStep#",
        312e12,
        2.039e12,
        _MEGATRON,
    ),
)


@dataclass
class Kernel:
    """A kernel or copy (us): when its call began, and in the thread of which host."""

    start: float
    end: float
    stream: Any
    call: float | None
    thread: Any
    named: str


@dataclass(frozen=True)
class Row:
    """An entry, recomputed: times of a step in us."""

    operator: str
    count: float
    time: float
    reached: float
    gap: float
    gain: float


def _kernels(events: list[dict[str, Any]]) -> list[Kernel]:
    calls = {
        e["args"]["correlation"]: (e["ts"], (e["pid"], e["tid"]))
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    made = []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and event.get("ph") == "X":
            call, thread = calls.get(event["args"].get("correlation"), (None, None))
            end = event["ts"] + event["dur"]
            made.append(
                Kernel(event["ts"], end, event["args"].get("stream"), call, thread, event["name"])
            )
    return sorted(made, key=lambda kernel: kernel.start)


def _steps(
    events: list[dict[str, Any]], recording: Recording, kernels: list[Kernel]
) -> tuple[list[Kernel], float, int]:
    """Kernels of the steps that count, the mean time of these steps, and their number."""
    ranges = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e.get("cat") == "user_annotation" and re.match(recording.steps, e["name"])
    )
    own: list[list[Kernel]] = [[] for _ in ranges]
    for kernel in kernels:
        for number, (start, end, _) in enumerate(ranges):
            if kernel.call is not None and start <= kernel.call < end:
                own[number].append(kernel)
    if len(ranges) == 1:
        after = sorted(own[0], key=lambda kernel: kernel.start)[recording.before :]
        return own[0], max(k.end for k in after) - after[0].start, 1
    kept, spans = [], []
    for number in range(1, len(ranges)):
        if re.match(recording.counted, ranges[number][2]):
            kept += own[number]
            end = max(k.end for k in own[number])
            if number + 1 < len(ranges):  # a step lasts until the next one begins
                end = min(k.start for k in own[number + 1])
            spans.append(end - min(k.start for k in own[number]))
    return kept, sum(spans) / len(spans), len(spans)


def _calls(
    events: list[dict[str, Any]], entry: Entry, kernels: list[Kernel]
) -> dict[str, list[list[Kernel]]]:
    """Kernels of each call of an operator, by the shapes of the entry."""
    found = [
        (e["ts"], e["ts"] + e["dur"], (e["pid"], e["tid"]), str(e["args"].get("Input Dims")))
        for e in events
        if e.get("cat") == "cpu_op" and e["name"] == entry.operator
    ]
    found.sort(key=lambda each: each[0])
    begins = [each[0] for each in found]
    out: dict[str, dict[int, list[Kernel]]] = {shapes: {} for shapes in entry.calls}
    for kernel in kernels:
        at = bisect_right(begins, kernel.call) - 1 if kernel.call is not None else -1
        if (
            at >= 0
            and kernel.call is not None
            and kernel.call < found[at][1]
            and kernel.thread == found[at][2]
        ):
            for shapes in entry.calls:
                if found[at][3].startswith(shapes):
                    out[shapes].setdefault(at, []).append(kernel)
    return {shapes: list(each.values()) for shapes, each in out.items()}


WAITS: Final = re.compile(r"Synchronize|hipMemcpyWithStream|^(?:cuda|hip)Memcpy$")
"""Calls of the host that wait for the device."""


def _shift(
    kernels: list[Kernel], waits: list[tuple[float, float]], shorter: dict[int, float]
) -> float:
    """By how much earlier (us) the last kernel ends if some are shorter."""
    ends: dict[Any, tuple[float, float]] = {}
    launched = [kernel for kernel in kernels if kernel.call is not None]
    idle, until = [], float("-inf")
    for kernel in sorted(launched, key=lambda kernel: kernel.start):
        if kernel.call is not None and until <= kernel.call <= kernel.start:
            idle.append(kernel.start - kernel.call)
        until = max(until, kernel.end)
    quick = sorted(idle)[len(idle) // 10] if idle else 0.0
    done: list[tuple[float, float]] = []
    earlier = 0.0  # of the host
    queue: list[tuple[float, Kernel | float]] = [(k.call or 0.0, k) for k in launched]
    queue += [(start, end) for start, end in waits]
    for at, what in sorted(queue, key=lambda each: each[0]):
        if not isinstance(what, Kernel):
            over = [(end, new) for end, new in done[-200:] if end <= what]
            end, new = max(over, default=(float("-inf"), 0.0))
            if end > at:
                earlier = what - max(at - earlier, new + what - end)
            continue
        before, moved_to = ends.get(what.stream, (float("-inf"), float("-inf")))
        start = what.start - earlier
        if before > float("-inf"):
            own_gap = min(what.start - before, OWN_GAP_US)
            latency = min(what.start - at, LATENCY_US if before <= at else quick)
            rest = what.start - max(before + own_gap, at + latency)
            start = max(moved_to + own_gap, at - earlier + latency) + max(0.0, rest)
        end = start + (what.end - what.start) * (1 - shorter.get(id(what), 0.0))
        ends[what.stream] = (what.end, end)
        done.append((what.end, end))
    end, new = max(done)
    return end - new


def recomputed(recording: Recording, root: Path = DATA) -> tuple[float, list[Row]]:
    """Time of a step (us), and the entries of a recording."""
    with gzip.open(root / recording.file, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    every = _kernels(events)
    shortest = min(k.end - k.start for k in every if k.end > k.start)
    waits = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") == "cuda_runtime" and e.get("ph") == "X" and WAITS.search(e["name"])
    ]
    kernels, step, count = _steps(events, recording, every)
    rows = []
    for entry in recording.entries:
        time = at_bound = gap = calls = 0.0
        shorter: dict[int, float] = {}
        for shapes, each in _calls(events, entry, kernels).items():
            work, own = (
                entry.calls[shapes],
                [k for call in each for k in call if not re.search(entry.without, k.named)],
            )
            if not own:
                continue
            launch = shortest * len(own) / len(each)
            bound = max(
                work.flops / recording.flop_per_s * 1e6,
                work.bytes / recording.bytes_per_s * 1e6,
                launch,
            )
            taken = sum(kernel.end - kernel.start for kernel in own)
            beyond = max(0.0, taken - bound * len(each) / TARGET)
            shorter |= {id(kernel): beyond / taken for kernel in own}
            time, at_bound, gap, calls = (
                time + taken,
                at_bound + bound * len(each),
                gap + beyond,
                calls + len(each),
            )
        gain = _shift(kernels, waits, shorter) / count
        rows.append(
            Row(entry.operator, calls / count, time / count, at_bound / time, gap / count, gain)
        )
    return step, rows


_UNITS: Final = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def _us(text: str) -> float:
    number, unit = text.split()
    return float(number) * _UNITS[unit]


def stated() -> dict[str, list[list[str]]]:
    """Rows of the table in the docs, by recording; the first is the step."""
    out: dict[str, list[list[str]]] = {}
    name = ""
    for line in DOCS.read_text("utf-8").partition("<!-- opportunities -->")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0] not in ("recording, operator", "---"):
            name = cells[0].strip("*") if cells[0].startswith("**") else name
            out.setdefault(name, []).append(cells)
        elif out and not line.startswith("|"):
            break
    return out


def main() -> None:
    """Print each figure of the docs beside the one computed here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=DATA, help="folder of the recordings (default: %(default)s)"
    )
    root = parser.parse_args().root
    said, worst, gains = stated(), 0.0, [0.0]
    for recording in RECORDINGS:
        step, rows = recomputed(recording, root)
        table = said.get(recording.name, [])
        print(
            f"{recording.name}: a step {step / 1e3:.4g} ms; docs {table[0][2] if table else 'nothing'}"
        )
        for row, cells in zip(rows, table[1:] or [[]] * len(rows), strict=False):
            here = (
                f"{row.count:.4g} calls, {row.time:.5g} us, {row.reached:.1%}, gap {row.gap:.5g} us"
            )
            line = f"  {row.operator}: {here}, gain {row.gain:.5g} us"
            if cells:
                time, gap, gain = _us(cells[2]), _us(cells[5]), _us(cells[6])
                apart = max(abs(time / row.time - 1), abs(gap / row.gap - 1) if row.gap else 0.0)
                worst = max(worst, apart)
                gains.append(abs(gain - row.gain) / (step / 100))
                line += f"; docs {cells[2]}, {cells[3]}, {cells[5]}, {cells[6]}: {apart:.2%} apart"
            print(line)
    print(
        f"largest difference of a time or gap: {worst:.2%}; of a gain: {max(gains):.2f} % of its step"
    )


if __name__ == "__main__":
    main()
