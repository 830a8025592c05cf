"""Operators timed alone and recorded, each with a shape that removes what slows it, against what a
trace says of them.

On a machine with a GPU, with torch alone: ``python benchmarks/operators_gpu.py record FOLDER``. It
writes ``operators.json`` (times) and ``trace.json.gz`` (of the profiler) there. On any machine,
with llmprof: ``PYTHONPATH=. python benchmarks/operators_gpu.py read FOLDER``. See
``benchmarks/bounds.md`` for what came out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

if importlib.util.find_spec("triton"):
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _reads(x, out, steps, SIZE: tl.constexpr):  # type: ignore[no-untyped-def,unused-ignore]  # noqa: N803
        """Each block reads its own part of ``x``."""
        block = tl.program_id(0)
        total = tl.zeros((SIZE,), tl.float32)
        for step in tl.range(steps, num_stages=4):
            total += tl.load(x + (block.to(tl.int64) * steps + step) * SIZE + tl.arange(0, SIZE))
        tl.store(out + block, tl.sum(total))


CALLS: Final = 4
"""Recorded calls of each operator."""

ROTATED_BYTES: Final = 256 * 2**20
"""Operands of one call after the other come from copies of at least this size together, so that
no cache holds them.
"""

Maker = Callable[[Any, str], tuple[Callable[..., Any], list[Any]]]
"""From torch and a device to an operator and its operands."""


def _random(torch: Any, device: str, *shape: int, dtype: str = "bfloat16") -> Any:
    made = torch.randn(
        *shape, device=device, dtype=torch.float32 if dtype.startswith("float8") else None
    )
    return made.to(getattr(torch, dtype))


def mm(m: int, n: int, k: int, dtype: str = "bfloat16", tf32: bool = False) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        weight = _random(torch, device, n, k, dtype=dtype).t()

        def run(a: Any, b: Any) -> Any:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            return torch.mm(a, b)

        return run, [_random(torch, device, m, k, dtype=dtype), weight]

    return make


def bmm(batch: int, m: int, n: int, k: int) -> Maker:
    return lambda torch, device: (
        torch.bmm,
        [_random(torch, device, batch, m, k), _random(torch, device, batch, k, n)],
    )


def addmm(m: int, n: int, k: int) -> Maker:
    return lambda torch, device: (
        torch.addmm,
        [_random(torch, device, n), _random(torch, device, m, k), _random(torch, device, n, k).t()],
    )


def scaled_mm(m: int, n: int, k: int) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        one = torch.ones((), device=device, dtype=torch.float32)
        a, b = (_random(torch, device, rows, k, dtype="float8_e4m3fn") for rows in (m, n))
        return lambda a, b: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16), [a, b]

    return make


def attention(
    batch: int, heads: int, queries: int, keys: int, *, causal: bool = False, flash: bool = False
) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        q, k, v = (
            _random(torch, device, batch, heads, length, 128) for length in (queries, keys, keys)
        )
        sdpa, only = torch.nn.functional.scaled_dot_product_attention, torch.nn.attention

        def run(q: Any, k: Any, v: Any) -> Any:
            if not flash:
                return sdpa(q, k, v, is_causal=causal)
            with only.sdpa_kernel(only.SDPBackend.FLASH_ATTENTION):
                return sdpa(q, k, v, is_causal=causal)

        return run, [q, k, v]

    return make


def conv(batch: int, channels: int, size: int, out: int, taps: int = 3) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        last = torch.channels_last
        x = _random(torch, device, batch, channels, size, size).to(memory_format=last)
        weight = _random(torch, device, out, channels, taps, taps).to(memory_format=last)
        return lambda x, weight: torch.nn.functional.conv2d(x, weight, padding=taps // 2), [
            x,
            weight,
        ]

    return make


def layer_norm(rows: int, size: int, *, backward: bool = False) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        x, weight, bias = (
            _random(torch, device, rows, size),
            *(_random(torch, device, size) for _ in range(2)),
        )
        if not backward:
            return lambda x, w, b: torch.nn.functional.layer_norm(x, (size,), w, b), [
                x,
                weight,
                bias,
            ]
        _, mean, rstd = torch.native_layer_norm(x, (size,), weight, bias, 1e-5)
        each = [_random(torch, device, rows, size), x, mean, rstd, weight, bias]
        return lambda g, x, m, r, w, b: torch.ops.aten.native_layer_norm_backward(
            g, x, (size,), m, r, w, b, [True, True, True]
        ), each

    return make


def rms_norm(rows: int, size: int) -> Maker:
    return lambda torch, device: (
        lambda x, w: torch.nn.functional.rms_norm(x, (size,), w),
        [_random(torch, device, rows, size), _random(torch, device, size)],
    )


def on(function: str, *shapes: tuple[int, ...], dtype: str = "bfloat16", **options: Any) -> Maker:
    """A function of torch on tensors of the given shapes."""

    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        called = (
            getattr(torch, function)
            if hasattr(torch, function)
            else getattr(torch.nn.functional, function)
        )
        return lambda *given: called(*given, **options), [
            _random(torch, device, *s, dtype=dtype) for s in shapes
        ]

    return make


def add(rows: int, size: int, *, turned: bool = False) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        a, b = _random(torch, device, rows, size), _random(torch, device, size, rows)
        return torch.add, [a, b.t() if turned else b.t().contiguous()]

    return make


def cat(rows: int, size: int) -> Maker:
    return lambda torch, device: (
        lambda a, b: torch.cat([a, b], -1),
        [_random(torch, device, rows, size) for _ in range(2)],
    )


def copy(rows: int, size: int, *, turned: bool = False) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        target, source = _random(torch, device, rows, size), _random(torch, device, size, rows)
        return lambda a, b: a.copy_(b), [target, source.t() if turned else source.t().contiguous()]

    return make


def rows_of(function: str, tokens: int, size: int = 4096, table: int = 128256) -> Maker:
    def make(torch: Any, device: str) -> tuple[Callable[..., Any], list[Any]]:
        index = torch.randint(0, table, (tokens,), device=device)
        weight = _random(torch, device, table, size)
        if function == "embedding":
            return torch.nn.functional.embedding, [index, weight]
        return lambda i, w: torch.index_select(w, 0, i), [index, weight]

    return make


CASES: Final[dict[str, tuple[str, Maker, Maker]]] = {
    # name: what slows it on 132 multiprocessors, as it is, and with that removed
    "gemm 144 tiles": ("waves", mm(1536, 3072, 8192), mm(1408, 3072, 8192)),
    "gemm 272 tiles": ("padding", mm(2176, 4096, 4096), mm(2304, 4224, 4096)),
    "gemm 160 tiles": ("waves", mm(2048, 2560, 8192), mm(2048, 2112, 8192)),
    "gemm m 4100": ("waves", mm(4224, 4224, 4096), mm(4224, 4096, 4096)),
    "gemm m 136": ("padding", mm(136, 16896, 8192), mm(256, 16896, 8192)),
    "gemm m 264": ("padding", mm(264, 8448, 8192), mm(512, 8448, 8192)),
    "gemm n 72": ("padding", mm(33792, 72, 4096), mm(33792, 128, 4096)),
    "gemm few tiles": ("few_blocks", mm(256, 2048, 1024), mm(4224, 2048, 1024)),
    "gemm long k": ("split_k", mm(128, 256, 65536), mm(4096, 4096, 65536)),
    "gemm small": ("start", mm(64, 64, 64), mm(4096, 4096, 4096)),
    "gemm decode": ("start", mm(8, 1024, 1024), mm(8, 16384, 16384)),
    "gemm decode many": ("start", mm(16, 4096, 4096), mm(16, 32768, 8192)),
    "gemm odd n": ("alignment", mm(4096, 4095, 4096), mm(4096, 4096, 4096)),
    "gemm fp32 144 tiles": (
        "waves",
        mm(1536, 1536, 4096, "float32"),
        mm(1408, 1536, 4096, "float32"),
    ),
    "gemm fp32 n 130": ("padding", mm(8448, 130, 4096, "float32"), mm(8448, 256, 4096, "float32")),
    "gemm large": ("none", mm(8192, 8192, 8192), mm(8192, 8448, 8192)),
    "bmm small": ("few_blocks", bmm(16, 128, 128, 128), bmm(1056, 128, 128, 128)),
    "bmm 144": ("waves", bmm(144, 128, 256, 4096), bmm(132, 128, 256, 4096)),
    "bmm 136 square": ("waves", bmm(136, 256, 128, 2048), bmm(132, 256, 128, 2048)),
    "addmm bias": ("waves", addmm(1536, 3072, 8192), addmm(1408, 3072, 8192)),
    "fp8 144 tiles": ("waves", scaled_mm(1536, 3072, 8192), scaled_mm(1408, 3072, 8192)),
    "fp8 m 144": ("padding", scaled_mm(144, 16896, 16384), scaled_mm(256, 16896, 16384)),
    "fp8 decode": ("start", scaled_mm(16, 2048, 2048), scaled_mm(16, 16384, 16384)),
    "attention prefill": (
        "none",
        attention(4, 33, 4096, 4096, causal=True),
        attention(8, 33, 4096, 4096, causal=True),
    ),
    "attention few heads": (
        "few_blocks",
        attention(1, 8, 1024, 4096),
        attention(4, 33, 1024, 4096),
    ),
    "attention 136 blocks": ("waves", attention(1, 34, 512, 4096), attention(1, 33, 512, 4096)),
    "attention 17 heads": ("waves", attention(1, 17, 1024, 4096), attention(1, 33, 512, 4096)),
    "attention 136 flash": (
        "waves",
        attention(1, 34, 512, 4096, flash=True),
        attention(1, 33, 512, 4096, flash=True),
    ),
    "attention 129": ("padding", attention(8, 33, 129, 8192), attention(8, 33, 256, 8192)),
    "attention 130 flash": (
        "padding",
        attention(8, 33, 130, 8192, flash=True),
        attention(8, 33, 256, 8192, flash=True),
    ),
    "attention decode": ("few_blocks", attention(1, 32, 1, 16384), attention(16, 33, 1, 16384)),
    "attention short": ("start", attention(1, 32, 64, 64), attention(64, 33, 1024, 1024)),
    "conv small": ("few_blocks", conv(1, 256, 28, 256), conv(64, 256, 28, 256)),
    "conv 1x1": ("start", conv(1, 64, 56, 64, 1), conv(128, 64, 56, 64, 1)),
    "layer norm rows": ("few_blocks", layer_norm(64, 8192), layer_norm(8448, 8192)),
    "layer norm backward": (
        "few_blocks",
        layer_norm(512, 4096, backward=True),
        layer_norm(33792, 4096, backward=True),
    ),
    "rms norm": ("start", rms_norm(256, 4096), rms_norm(33792, 4096)),
    "softmax rows": (
        "few_blocks",
        on("softmax", (32, 131072), dim=-1),
        on("softmax", (1056, 131072), dim=-1),
    ),
    "add small": (
        "start",
        on("add", (512, 2048), (512, 2048)),
        on("add", (16384, 8192), (16384, 8192)),
    ),
    "gelu": ("start", on("gelu", (256, 4096)), on("gelu", (32768, 4096))),
    "add turned": ("strides", add(8192, 8192, turned=True), add(8192, 8192)),
    "copy turned": ("strides", copy(8192, 8192, turned=True), copy(8192, 8192)),
    "cat": ("start", cat(256, 1024), cat(32768, 2048)),
    "embedding": ("start", rows_of("embedding", 32), rows_of("embedding", 65536)),
    "index select": ("start", rows_of("index_select", 64), rows_of("index_select", 65536)),
    "sum of rows": (
        "few_blocks",
        on("sum", (16, 1048576), dim=-1),
        on("sum", (4224, 65536), dim=-1),
    ),
    "cumsum of a row": (
        "few_blocks",
        on("cumsum", (4, 524288), dim=-1),
        on("cumsum", (4224, 16384), dim=-1),
    ),
    "argmax of logits": (
        "few_blocks",
        on("argmax", (8, 128256), dim=-1),
        on("argmax", (1056, 128256), dim=-1),
    ),
}


def _copied(torch: Any, value: Any) -> Any:
    """A copy with the same strides."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    copied = torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    )
    return copied.copy_(value)


def _seconds(torch: Any, run: Callable[..., Any], operands: list[list[Any]], cuda: bool) -> float:
    """Seconds of a call, from many replayed without the host between them."""
    if not cuda:
        begun = time.perf_counter()
        for given in operands:
            run(*given)
        return (time.perf_counter() - begun) / len(operands)
    turns = max(len(operands), 20)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        run(*operands[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(turns):
            run(*operands[turn % len(operands)])
    graph.replay()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / turns)
    return sorted(times)[len(times) // 2]


def _by_blocks(torch: Any) -> dict[int, float]:
    """Bytes a second that kernels of few blocks read from memory, the best of three sizes of a
    block.
    """
    x, out = torch.zeros(2**30 // 4, device="cuda"), torch.zeros(4096, device="cuda")
    found: dict[int, float] = {}
    for blocks in (1, 2, 4, 8, 16, 32, 48, 64, 96, 132, 264, 528):
        for size in (2048, 4096, 8192):
            steps = min(x.numel() // blocks // size, 2048)
            seconds = _seconds(
                torch, lambda b=blocks, n=steps, s=size: _reads[(b,)](x, out, n, SIZE=s), [[]], True
            )
            found[blocks] = max(found.get(blocks, 0), blocks * steps * size * 4 / seconds)
    return found


def _copies(torch: Any, given: list[Any], scale: int) -> list[list[Any]]:
    size = sum(
        each.numel() * each.element_size() for each in given if isinstance(each, torch.Tensor)
    )
    many = min(64, 1 + ROTATED_BYTES // scale // max(size, 1))
    return [given, *([_copied(torch, each) for each in given] for _ in range(many - 1))]


def record(folder: Path, device: str, scale: int, only: str) -> None:
    """Time every case alone, and record it; a case that this machine cannot run is named with
    its error.
    """
    import torch

    torch.manual_seed(0)
    cuda = device == "cuda"
    activities = [
        torch.profiler.ProfilerActivity.CPU,
        *([torch.profiler.ProfilerActivity.CUDA] if cuda else []),
    ]
    said: dict[str, Any] = {"torch": torch.__version__, "device": "cpu", "cases": [], "failed": {}}
    if cuda:
        properties = torch.cuda.get_device_properties(0)
        said |= {"device": properties.name, "multiprocessors": properties.multi_processor_count}
    cases = {name: case for name, case in CASES.items() if only in name}
    flush = torch.empty(ROTATED_BYTES // scale, dtype=torch.int8, device=device)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=2 * len(cases) + 1)
    with (
        torch.no_grad(),
        torch.profiler.profile(
            activities=activities,
            record_shapes=True,
            schedule=schedule,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(
                str(folder / "trace.json.gz")
            ),
        ) as profiler,
    ):
        flush.zero_()
        profiler.step()
        for name, (cause, *makers) in cases.items():
            for changed, make in enumerate(makers):
                try:
                    run, given = make(torch, device)
                    operands = _copies(torch, given, scale)
                    run(*given)
                except (RuntimeError, NotImplementedError, AttributeError) as error:
                    said["failed"][f"{name}, {changed}"] = str(error)[:300]
                    continue
                step = torch.profiler.record_function(f"case {len(said['cases'])}")
                flush.zero_()
                with step:
                    for turn in range(CALLS):
                        run(*operands[-1 - turn % len(operands)])
                if cuda:
                    torch.cuda.synchronize()
                said["cases"].append({"name": name, "cause": cause, "changed": changed})
                profiler.step()
                del run, given, operands
    written = folder / "operators.json"
    for case in said["cases"]:
        run, given = CASES[case["name"]][1 + case["changed"]](torch, device)
        try:
            with torch.no_grad():
                case["seconds"] = _seconds(torch, run, _copies(torch, given, scale), cuda)
        except RuntimeError as error:
            said["failed"][f"{case['name']}, {case['changed']} alone"] = str(error)[:300]
        print(case, flush=True)
        written.write_text(json.dumps(said, indent=1))
    if cuda and importlib.util.find_spec("triton"):
        said["read_by_blocks"] = _by_blocks(torch)
    written.write_text(json.dumps(said, indent=1))
    print(said.get("read_by_blocks"), said["failed"], flush=True)


PREPARES: Final = ("aten::copy_", "aten::fill_", "aten::normal_", "aten::random_", "aten::zero_")
"""Operators that make operands; a case of copies is the longest of them."""


def found(folder: Path, **options: Any) -> Any:
    """A row for each case: the operator as it was, what its trace says of it, and the changed
    shape.
    """
    import polars as pl

    import llmprof

    said = json.loads((folder / "operators.json").read_text())
    rows = llmprof.analyze.operators(
        llmprof.read(folder / "trace.json.gz"), by=("step",), **options
    )
    of_case = pl.DataFrame(said["cases"]).with_columns(step=pl.int_range(pl.len(), dtype=pl.Int32))
    rows = rows.join(of_case, on="step").filter(
        (pl.col("count") >= CALLS)
        & (pl.col("name").str.starts_with("copy") | ~pl.col("operator").is_in(PREPARES))
    )
    rows = (
        rows.sort("total_ns", descending=True)
        .unique("step", keep="first")
        .with_columns(
            mean_ns=pl.col("total_ns") / pl.col("count"), alone_ns=pl.col("seconds") * 1e9
        )
    )
    part = pl.coalesce(pl.when(pl.col("cause") == name).then(f"{name}_share") for name in CAUSES)
    more = pl.when(pl.col("cause").is_in(CAUSES[:3])).then(
        pl.sum_horizontal(f"{name}_share" for name in CAUSES[:3])
    )
    rows = rows.with_columns(
        gain=pl.coalesce(more, part, "rest_share") * (1 - pl.col("bound_share"))
    )
    both = [rows.filter(pl.col("changed") == changed) for changed in (0, 1)]
    joined = both[0].join(both[1].select("name", then="bound_share"), on="name", how="left")
    return joined.with_columns(measured=1 - pl.col("bound_share") / pl.col("then")).sort(
        "step"
    ), rows


CAUSES: Final = ("other_kernels", "start", "few_blocks", "waves", "padding")
"""The changed shape for one of the first three is more of the same work, which removes all of
them.
"""
NONE: Final = 0.12
"""A changed shape that gains less than this part of the time removed nothing."""


def verdict(cause: str | None, said: float, measured: float) -> bool:
    """Whether a reason is right: what was said and what was gained differ by at most twice;
    without one nothing is.
    """
    return (
        measured < NONE
        if cause in (None, "rest")
        else measured >= said / 2 and said >= measured / 2
    )


def read(folder: Path) -> None:
    """Print what the trace says of each case, and what its changed shape gained."""
    joined, rows = found(folder)
    print(
        "| operator | time | alone | bound | share | cause | would gain | gained | right |\n|"
        + "---|" * 9
    )
    right = 0
    for row in joined.iter_rows(named=True):
        cause, said, gained = row["cause"], row["gain"] or 0.0, row["measured"]
        if gained is None:
            print(f"| {row['name']} | {row['mean_ns'] / 1e3:.1f} | no bound: {row['reason']} |")
            continue
        good = verdict(cause, said, gained)
        right += good
        print(
            f"| {row['name']} | {row['mean_ns'] / 1e3:.1f} | {row['alone_ns'] / 1e3:.1f} | {row['bound_ns'] / 1e3:.1f} "
            f"| {row['bound_share']:.0%} | {cause or 'near it'} | {said if cause else 0:.0%} | {gained:.0%} "
            f"| {'yes' if good else 'no'} |"
        )
    over = [ns for ns in rows["bound_ns"] - rows["mean_ns"] if ns is not None and ns > 0]
    print(
        f"\n{right} of {joined.height} right; bounds above the measured time: {len(over)} of {rows.height}"
    )


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--scale",
        type=int,
        default=1,
        help="divides the sizes that outgrow the cache, to try on a CPU",
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.what == "record":
        record(given.folder, given.device, given.scale, given.only)
    else:
        read(given.folder)


if __name__ == "__main__":
    main()
