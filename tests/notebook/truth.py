"""What sentences about a recording may say: a check that knows the raw tables, and not the functions that speak.

A sentence contradicts a recording if it names a device, a model, an engine or a vendor's library of which no name in
the raw tables speaks; ranks, layers, steps or phases that are not there; waiting or a late rank where no two ranks
communicate; a kind of communication that did not run; or a time, a size or a rate that no frame holds.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl

import llmprof
from llmprof import analyze
from llmprof.analyze.catalog import analyses
from llmprof.analyze.findings.scope import scope_of
from llmprof.errors import LlmprofError
from llmprof.report.cards import named
from llmprof.trace import Trace

FORBIDDEN = (
    r"\bnan\b|\bNone\b(?! of)|\bnull\b|\binf\b|Traceback|DataFrame|b'|\{\w*\}|[a-z]\.\.(?!\.)|  \w",
    r"\b1 (?:ranks|steps|layers|kernels|copies|requests|launches|calls|GPUs|NPUs|devices|pauses)\b",
    r"\b0 (?:\w+ )?(?:ranks|steps|layers) (?:of|represent|have)\b",
    r"\b1\.0 \w+s\b|\d\.0 such|\brank\(s\)|\ba NPU\b|\ba all-",
    r"takes unknown|\bunknown on\b|mean of 1 ",
)
DEVICES = r"\b(?:[HABV]\d{2,3}0|L40S?|A10G?|T4|MI\d{3}\w?|910[A-D]\d?|GB200|RTX \w+)\b"
MODELS = r"\b(?:Qwen|Llama|DeepSeek|Mi[sx]tral|BERT|Bert|GPT-|AlexNet|ResNet|OLMoE|Gemma|Falcon)[\w.\-]*"
ENGINES = {
    "vLLM": r"(?i)vllm|execute_(?:context|model)|^execute_",
    "SGLang": r"(?i)sglang",
    "TensorRT": r"(?i)tensorrt|trt",
}
VENDORS = {
    "nvidia": r"\b(?:CUDA|NCCL|cuBLAS\w*|NVLink|NVIDIA)\b",
    "amd": r"\b(?:HIP|RCCL|ROCm|hipBLASLt|rocBLAS|Infinity Fabric)\b",
    "ascend": r"\b(?:HCCL|CANN|AscendCL|NPUs?|ACL graphs?|AI cores?|AI CPUs?|TransData)\b",
}
EVIDENCE = {
    "nvidia": r"(?i)nvidia|tesla|geforce|^cuda[A-Z]|^cu[A-Z]\w+$|\bnsys\b",
    "amd": r"(?i)\bamd\b|instinct|^hip[A-Z]",
    "ascend": r"(?i)ascend|^aclnn|^acl[a-z]",
}
KINDS = {
    "all-reduce": r"(?i)all_?reduce|device_reduce",
    "all-to-all": r"(?i)all_?to_?all|sendrecv|all2all|a2a",
    "all-gather": r"(?i)all_?gather|broadcast",
    "reduce-scatter": r"(?i)reduce_?scatter|^ncclDevKernel_Reduce_|nccl\w*Reduce_",
    "broadcast": r"(?i)broadcast",
    "send/receive": r"(?i)send_?recv|send|recv",
}
WAITING = (
    r"arrives? last|last rank|late rank|waiting for it|other ranks spend|others spend|waits? for the (?:other|last)"
)
HEADINGS = ("decode requests", "prefill tokens", "ProfilerActivity.CUDA", "ProfilerActivity.NPU")
TIMES = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FIGURE = r"(?<![\w.])(\d[\d,]*(?:\.\d+)?) (ns|us|ms|s|KiB|MiB|GiB)\b"


class Recording:
    """A trace, and what may be said of it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.extra: list[pl.DataFrame] = []

    @cached_property
    def names(self) -> pl.Series:
        """Every name in the raw tables, of devices and of the format."""
        parts = []
        for table in self.trace.tables:
            frame = self.trace.table(table)
            columns = [column for column in ("name", "algorithm", "group") if column in frame.columns]
            parts += [frame[column].cast(pl.String).drop_nulls().unique() for column in columns]
        meta = [str(self.trace.meta.get("device")), str(self.trace.meta.get("format")), *map(str, self.devices)]
        return pl.concat([*parts, pl.Series("name", meta)]).unique()

    @cached_property
    def devices(self) -> list[str]:
        """Names of devices."""
        meta = self.trace.meta
        named = [name for rank in meta.get("ranks") or () for name in rank.get("devices") or ()]
        return [str(name) for name in (meta.get("device"), *named) if name]

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks, and where a group is larger than what was recorded, its size as the last number."""
        return [rank for rank in self.trace.ranks if rank >= 0] or list(self.trace.ranks)

    def has(self, pattern: str) -> bool:
        """Whether a raw name fits."""
        return bool(self.names.str.contains(pattern).any())

    @cached_property
    def communicating(self) -> int:
        """Ranks with a collective."""
        if not self.trace.has("collectives"):
            return 0
        return self.trace.collectives["rank"].n_unique()

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Steps."""
        return analyze.steps(self.trace)

    @cached_property
    def layers(self) -> set[int]:
        """Numbers of layers that a step of a rank has, and that there are in all."""
        events = analyze.attribute(self.trace).filter(pl.col("layer").is_not_null())
        each = events.group_by("rank", "step").agg(pl.col("layer").n_unique())["layer"].to_list()
        return {*each, events["layer"].n_unique()}

    @cached_property
    def figures(self) -> dict[str, np.ndarray]:
        """Times (ns) and sizes (B) of the frames: values, and sums, means, medians and extremes of groups of rows."""
        times: list[float] = [float(self.trace.span_ns[1] - self.trace.span_ns[0])]
        sizes: list[float] = []
        for frame in (*self._frames(), *self.extra):
            for column, dtype in frame.schema.items():
                if not dtype.is_numeric():
                    continue
                unit = next((u for u in ("ns", "us", "ms") if column.endswith(f"_{u}") or column == u), None)
                if unit:
                    times += [value * TIMES[unit] for value in _aggregates(frame, column)]
                elif "bytes" in column:
                    sizes += _aggregates(frame, column)
                elif column == "figure":
                    times += frame[column].drop_nulls().to_list()
        return {"time": np.unique(np.abs(times)), "size": np.unique(np.abs(sizes or [0.0]))}

    def _frames(self) -> Iterator[pl.DataFrame]:
        trace = self.trace
        ways = (
            analyze.findings, analyze.overlap, analyze.steady_state, analyze.steps, analyze.step_time, analyze.idle,
            analyze.stream_gaps, analyze.launch_delay, analyze.layers, analyze.collectives, analyze.attribute,
            analyze.kernel_summary, analyze.coverage, analyze.collective_sizes, analyze.host_synchronisation,
        )  # fmt: skip
        scope = scope_of(trace)
        yield scope.windows
        yield scope.times.select("window", "kind", "part", dur_ns="ns")
        if scope.steps is not None and scope.events.height:
            # a replay speaks of the time from the end of a step on the devices to that of the next
            ends = analyze.attribute(trace).filter(pl.col("step").is_not_null()).group_by("rank", "step").agg(
                end_ns=(pl.col("start_ns") + pl.col("dur_ns")).max()
            )  # fmt: skip
            each = ends.sort("rank", "step").with_columns(dur_ns=pl.col("end_ns").diff().over("rank")).drop_nulls()
            yield each.join(scope.steps.select("rank", "step"), on=["rank", "step"], how="semi").select("dur_ns")
        yield scope.times.filter(pl.col("kind") == "compute").select("part", dur_ns="ns")
        yield pl.DataFrame({"limit_ns": [5_000]})  # what the rule of short kernels calls short
        for way in ways:
            with contextlib.suppress(LlmprofError):
                frame = way(trace)
                yield frame
                if "step" in frame.columns and scope.steps is not None:
                    yield scope.within(frame)
        with contextlib.suppress(LlmprofError):
            calls = scope.begun(analyze.collectives(trace))
            yield calls
            yield calls.unique("call")
            yield calls.filter(pl.col("rank") != pl.col("last_rank"))
        with contextlib.suppress(LlmprofError):
            yield analyze.overlap(trace, by=("rank",))
        with contextlib.suppress(LlmprofError):
            yield analyze.layers(trace, per="layer")
            yield scope.within(analyze.layers(trace, per="layer"))
        yield scope.idle
        yield scope.events
        events = analyze.attribute(trace)
        yield events.select("rank", "step", "layer", call_ns=pl.col("launch_end_ns") - pl.col("launch_start_ns"))
        ends = events.group_by("rank").agg(
            low=pl.col("start_ns").min(), high=(pl.col("start_ns") + pl.col("dur_ns")).max()
        )
        ends = ends.join(scope.windows.select("rank", "start_ns", "dur_ns"), on="rank")
        yield ends.select(before_ns=pl.col("low") - pl.col("start_ns"))
        yield ends.select(after_ns=pl.col("start_ns") + pl.col("dur_ns") - pl.col("high"))
        yield pl.DataFrame({"part_ns": [scope.span_ns / scope.parts]})


_BY = ("rank", "step", "phase", "stage", "category", "kind", "cause", "part", "measure", "name", "held_kind", "source")


def _aggregates(frame: pl.DataFrame, column: str) -> list[float]:
    """Values of a column and of its aggregates: over all rows, by each label, and by some pairs of labels."""
    value = pl.col(column).cast(pl.Float64)
    sums = [value.sum(), value.mean(), value.median(), value.min(), value.max()]
    exprs = [e.alias(f"{column}_{i}") for i, e in enumerate(sums)]
    by: list[list[str]] = [[label] for label in _BY if label in frame.columns and label != column]
    by += [list(pair) for pair in (("rank", "step"), ("rank", "layer"), ("rank", "step", "layer"), ("rank", "phase"),
                                   ("rank", "kind"), ("rank", "cause")) if set(pair) <= set(frame.columns)]  # fmt: skip
    found = [frame.select(exprs)] + [frame.group_by(labels).agg(exprs).select(pl.exclude(labels)) for labels in by]
    out = [float(v) for part in found for series in part for v in series.drop_nulls().to_list()]
    # medians by rank or step of what a step holds, as tables of the notebooks show them
    for labels in (("rank", "step"), ("rank", "step", "layer")):
        if set(labels) <= set(frame.columns):
            grouped = frame.group_by(labels).agg(value.sum().alias("s"), value.median().alias("m"))
            out += [float(v) for v in grouped.select(pl.col("s", "m").median()).row(0) if v is not None]
    if frame.height <= 20_000:
        out += frame[column].drop_nulls().cast(pl.Float64).to_list()
    return [v for v in out if np.isfinite(v)]


def sentences(text: str) -> list[str]:
    """Sentences and items of lists of a text."""
    return [part.strip() for part in re.split(r"(?<=[.:?!])[*]{0,2}\s+(?=[*A-Z-])|\n+", text) if part.strip()]


def contradictions(recording: Recording, text: str, *, figures: bool = True) -> list[str]:
    """What a text says of a recording that its data do not bear out; empty where all holds.

    Parameters
    ----------
    recording : Recording
        What it is about.
    text : str
        Sentences in Markdown or plain text.
    figures : bool
        Whether to look for its figures with a unit in the frames.
    """
    out = []
    # why something cannot be had, and how to record it, may name any profiler's options; so may the report's headings
    text = re.sub(r"(?s)\*Not to be had from this recording:.*?\*", "", text)
    text = re.sub(r"\*Nothing says that[^*]*\*", "", text)
    text = re.sub(r"Nothing to show:[^.\n]*", "", text)  # it names what is not there
    methods = [one.section.words for one in analyses() if not isinstance(one.section, str)]
    for what in ("kernels and copies", "operators"):
        for method in (*HEADINGS, *(named(words, what) for words in methods)):
            text = text.replace(re.sub(r"\s+", " ", method).strip(), "")
    for said in sentences(text):
        out += [f"{why}: {said[:300]}" for why in _faults(recording, said, figures=figures)]
    return out


def _faults(recording: Recording, said: str, *, figures: bool) -> Iterator[str]:
    plain = _without_names(recording, said)
    for pattern in FORBIDDEN:
        if found := re.search(pattern, plain):
            yield f"forbidden {found[0]!r}"
    yield from _named(recording, plain)
    yield from _counted(recording, plain)
    if re.search(WAITING, plain) and (len(recording.ranks) < 2 or recording.communicating < 2):
        yield "waiting where no two ranks communicate"
    for kind, pattern in KINDS.items():
        if re.search(rf"\b{kind}s?\b", plain) and not recording.has(pattern):
            yield f"{kind} that did not run"
    for phase in ("decode", "prefill"):
        no = rf"(?:no|not tell|nor|steady state of|There (?:is|are) no)[^.]*{phase}|{phase} from"
        if re.search(rf"\b{phase}\b", re.sub(no, "", plain)) and phase not in set(recording.steps["phase"]) - {None}:
            yield f"{phase}, which no step is"
    told = not plain.lstrip("*").startswith(("No ", "Each part "))
    if told and re.search(r"\bsteps? \d+\b|[1-9] steps?\b|\bof a step\b", plain) and not recording.steps.height:
        yield "steps where there are none"
    if figures:
        yield from _figures(recording, plain)


def _without_names(recording: Recording, said: str) -> str:
    """The text without code and without names that stand in the raw tables: those are quotations."""
    text = re.sub(r"`[^`]*`", "x", said)
    text = re.sub(r"\S*….*", "x", text)
    for name in recording.names.filter(recording.names.str.len_chars() > 3).to_list():
        if name in text:
            text = text.replace(name, "x")
    return text


def _named(recording: Recording, plain: str) -> Iterator[str]:
    devices = " ".join(recording.devices)
    for name in re.findall(DEVICES, plain):
        if name not in devices:
            yield f"device {name}"
    for name in re.findall(MODELS, plain):
        if not recording.has(f"(?i){re.escape(name.rstrip('.'))}"):
            yield f"model {name}"
    for engine, pattern in ENGINES.items():
        if re.search(rf"\b{engine}\b", plain) and not recording.has(pattern):
            yield f"engine {engine}"
    for vendor, pattern in VENDORS.items():
        if (found := re.search(pattern, plain)) and not recording.has(EVIDENCE[vendor]):
            yield f"word of {vendor}: {found[0]}"
    if re.search(r"\bGPUs?\b", plain) and not (recording.has(EVIDENCE["nvidia"]) or recording.has(EVIDENCE["amd"])):
        yield "GPU"


def _numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def _counted(recording: Recording, plain: str) -> Iterator[str]:
    for text in re.findall(r"\b[Rr]anks? \*{0,2}(\d+(?:(?:, | and | to )\d+)*)(?![\d.,]|:? \w?iB| ms)", plain):
        if not set(_numbers(text)) <= {*recording.ranks, *range(recording.trace.meta.get("world_size") or 0)}:
            yield f"rank {text}"
    groups = recording.trace.collectives["world"].drop_nulls().to_list() if recording.trace.has("collectives") else []
    most = max(len(recording.ranks), recording.trace.meta.get("world_size") or 0, *groups, 0)
    for text in re.findall(r"(\d[\d,]*) (?:x |ranks?\b|GPUs\b|NPUs\b|devices\b)", plain):
        if _numbers(text)[0] > most:
            yield f"{text} ranks or devices"
    for text in re.findall(r"(?<![\d.])(\d[\d,]*) layers\b", plain):
        if _numbers(text)[0] not in recording.layers:
            yield f"{text} layers"
    steps = recording.steps
    most = steps.group_by("rank").len()["len"].max() if steps.height else 0
    for text in re.findall(r"(?<![\d.,])(\d[\d,]*) (?:steady |decode |empty |mixed ){0,2}steps?\b", plain):
        if _numbers(text)[0] > max(int(most or 0), int(steps["step"].n_unique() if steps.height else 0)):
            yield f"{text} steps"
    for what, table in (("kernels", "kernels"), ("copies", "copies")):
        own = recording.trace.table(table).height if recording.trace.has(table) else 0
        for text in re.findall(rf"(?<![\d.,])(\d[\d,]*) {what}\b(?! and)", plain):
            if _numbers(text)[0] > own:
                yield f"{text} {what}"


def _figures(recording: Recording, plain: str) -> Iterator[str]:
    for digits, unit in re.findall(_FIGURE, plain):
        kind, scale = ("time", TIMES[unit]) if unit in TIMES else ("size", SIZES[unit])
        value = float(digits.replace(",", ""))
        step = (
            10.0 ** -len(digits.partition(".")[2])
            if "." in digits
            else 10.0 ** max(0, len(digits.replace(",", "")) - 3)
        )
        low, high = (value - 0.51 * step) * scale, (value + 0.51 * step) * scale
        known = recording.figures[kind]
        at = int(np.searchsorted(known, low))
        if value and not (at < known.size and known[at] <= high):
            yield f"no frame holds {digits} {unit}"
    for share in re.findall(r"(?<![\w.])(\d+(?:\.\d+)?) %", plain):
        if float(share) > 100.05:
            yield f"a share of {share} %"


def cells(
    path: Path, parameters: Mapping[str, Any], replaced: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, Any]]:
    """Run a notebook's code cells in this process; yields what each shows.

    Kinds are ``static``, ``said``, ``title`` (of a chart), ``chart``, ``frame`` and ``figures`` (JSON).

    Parameters
    ----------
    path : pathlib.Path
        The notebook.
    parameters : mapping
        Values for its cell tagged ``parameters``.
    replaced : mapping, optional
        Attributes of :mod:`llmprof` to stand in while it runs.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    kept = {name: getattr(llmprof, name) for name in replaced or {}}
    renderer = alt.renderers.active
    formats = pl.Config.save()
    try:
        for name, value in (replaced or {}).items():
            setattr(llmprof, name, value)
        for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                yield "static", text
                continue
            tree = ast.parse(text)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(tree, f"{path.stem}[{number}]", "exec"), space)
                value = (
                    eval(compile(ast.Expression(last.value), f"{path.stem}[{number}]", "eval"), space) if last else None
                )
            if "parameters" in cell["metadata"].get("tags", []):
                assert set(parameters) <= set(space), f"{path.stem} has no such parameter"
                space.update(parameters)
            yield from _shown(value)
            if printed.getvalue():
                yield "said", printed.getvalue()
    finally:
        pl.Config.load(formats)
        alt.renderers.enable(renderer)
        for name, value in kept.items():
            setattr(llmprof, name, value)


def _shown(value: Any) -> Iterator[tuple[str, Any]]:
    from IPython.display import JSON, Markdown

    if isinstance(value, Markdown):
        yield "said", value.data
    elif isinstance(value, JSON):
        yield "figures", value.data
    elif isinstance(value, pl.DataFrame):
        yield "frame", value
    elif (hasattr(value, "to_dict") and hasattr(value, "mark_bar")) or type(value).__name__.endswith("Chart"):
        yield from (("title", text) for text in _titles(getattr(value, "title", None)))
        yield "chart", value


def _titles(title: Any) -> Iterable[str]:
    """Texts of a chart's title and subtitle."""
    if isinstance(title, str):
        return [title]
    found = title.to_dict() if hasattr(title, "to_dict") else {}
    texts = [found.get("text", ""), found.get("subtitle", "")]
    return [" ".join(text) if isinstance(text, list) else text for text in texts if text]


def words_of_page(html: str) -> str:
    """The text of a page, a line a block."""
    from html import unescape

    body = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>", " ", html)
    body = re.sub(
        r"<(?:/?(?:p|li|h\d|tr|td|th|dt|dd|div|section|summary|figcaption|caption|button))\b[^>]*>", "\n", body
    )
    lines = (re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", line))).strip() for line in body.split("\n"))
    return "\n".join(line for line in lines if line)
