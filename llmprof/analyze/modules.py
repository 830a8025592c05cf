"""Time of the modules of a model on the host and on the device, as a tree."""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import NotCapturedError
from llmprof.label.modules import module_calls
from llmprof.label.nesting import innermost
from llmprof.trace import Trace


@Analysis(
    question="How long does each module of the model take?",
    help="the tree of nn.Module with calls, host time and device time",
    view="modules",
    recorded="markers of modules",
)
def modules(trace: Trace, *, by: Literal["class", "layer"] = "class") -> pl.DataFrame:
    """Time of each module of the model, with and without the modules inside it.

    Kernels count for the module in which they were launched. What a CUDA graph replays is launched
    in no module.

    Parameters
    ----------
    trace : Trace
        A trace with markers of modules: PyTorch with ``with_stack=True`` or ``with_modules=True``,
        vLLM's layerwise NVTX, ranges that ``llmprof run`` puts around modules.
    by : {"class", "layer"}
        Whether modules at the same place of all layers are one row, or each layer has rows of its
        own.

    Returns
    -------
    polars.DataFrame
        ``rank, path`` (names of the modules from the outermost one inwards, with ``/`` between,
        where only classes are recorded), ``layer`` (per layer), ``depth`` (0 for the outermost),
        ``count`` (calls)``, host_ns`` (of the calls, with modules inside), ``device_ns`` (sum of
        the durations of what was launched in it or in a module inside), ``own_device_ns`` (in it
        alone), ``kernels`` (with copies, with modules inside); in the order of the first call.

    Raises
    ------
    NotCapturedError
        The trace names no modules, or holds no device activity.

    Examples
    --------
    >>> import llmprof
    >>> times = analyze.modules(llmprof.sample("nsys_tp1_layer_nvtx"))
    >>> times["path"].str.contains("self_attn").any()
    True
    """
    events = trace.events
    calls = module_calls(trace)
    if calls.is_empty():
        hint = (
            "record with profile(with_stack=True), vLLM's enable_layerwise_nvtx_tracing, or"
            " llmprof run"
        )
        raise NotCapturedError("this capture names no modules", hint=hint, table="markers")
    launched = events.filter(pl.col("launch_start_ns").is_not_null() & ~pl.col("replayed")).select(
        "rank", "dur_ns", "launch_start_ns", thread=pl.col("launch_thread").fill_null(-1)
    )
    placed = innermost(
        launched, calls, ["rank", "thread"], at="launch_start_ns", name="call"
    ).drop_nulls("call")
    own = placed.group_by(call=pl.col("call").cast(pl.UInt32)).agg(
        own_device_ns=pl.sum("dur_ns"), kernels=pl.len()
    )
    calls = calls.with_row_index("call").join(own, on="call", how="left", maintain_order="left")
    calls = calls.with_columns(pl.col("own_device_ns", "kernels").fill_null(0).cast(pl.Int64))
    calls = calls.drop("kernels").hstack(_with_inner(calls))
    if by == "class":
        calls = calls.with_columns(pl.col("path").str.replace_all(r"\.\d+\b", ".*"))
    key = ["rank", "path", *(["layer"] if by == "layer" else [])]
    sums = pl.sum("host_ns", "device_ns", "own_device_ns", "kernels")
    return (
        calls.rename({"dur_ns": "host_ns"})
        .sort("rank", "start_ns", maintain_order=True)
        .group_by(key, maintain_order=True)
        .agg(pl.min("depth"), pl.len().alias("count"), sums)
    )


def _with_inner(calls: pl.DataFrame) -> pl.DataFrame:
    """Path and depth of each call, and its device time and kernels with those of the calls
    inside it.
    """
    names, parents = calls["name"].to_list(), calls["parent"].to_list()
    device, kernels = calls["own_device_ns"].to_list(), calls["kernels"].to_list()
    paths: list[str] = []
    depths: list[int] = []
    for name, parent in zip(names, parents, strict=True):  # parents come before their children
        alone = parent is None or "." in name
        paths.append(name if alone else f"{paths[parent]}/{name}")
        depths.append(0 if parent is None else depths[parent] + 1)
    for call in range(len(parents) - 1, -1, -1):
        if (parent := parents[call]) is not None:
            device[parent] += device[call]
            kernels[parent] += kernels[call]
    schema = {"path": pl.String, "depth": pl.Int32, "device_ns": pl.Int64, "kernels": pl.Int64}
    return pl.DataFrame([paths, depths, device, kernels], schema=schema)
