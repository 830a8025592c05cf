"""How often layers and stages are right: labelled recordings, analysed without their labels.

A labelled recording names the module of each launch (stacks of the torch profiler, layerwise NVTX,
annotations). The truth is what the modules say; then the markers that name modules are taken out
and the rest is analysed as any other recording. What the modules leave open is not counted.
``python benchmarks/fidelity.py [FILE...]``; without files, the labelled recordings of
``sample_traces`` and, where it is there, of the folder ``../shared``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from pathlib import Path

import polars as pl

import llmprof
from llmprof.label.modules import module_calls
from llmprof.names import modules as purposes
from llmprof.trace import Trace

BINS = [0.0, 0.5, 0.7, 0.9, 1.0]
_ROOT = Path(__file__).resolve().parent.parent


def without_modules(trace: Trace) -> Trace:
    """The trace without the markers that name modules."""
    marks = trace.markers
    names = pl.any_horizontal(
        pl.col("domain") == purposes.DOMAIN,
        *(pl.col("name").str.contains(pattern) for pattern in purposes.PATHS),
    )
    return Trace({**trace.tables, "markers": marks.filter(~names)}, trace.meta, trace.coverage)


def compare(trace: Trace) -> pl.DataFrame:
    """Events whose layer or stage a module says, with what the analysis says of them without
    modules.

    Returns
    -------
    polars.DataFrame
        ``name, dur_ns, category, true_layer, true_stage, layer, stage, confidence, evidence`` (null
        where the analysis says unknown), ``said`` (whether either has a layer), ``right_layer,
        right_stage``.
    """
    truth = trace.events.select(
        "event",
        "step",
        "name",
        "dur_ns",
        "category",
        true_layer="layer",
        true_stage="stage",
        by="evidence",
    )
    known = truth["by"] == "module"
    labels = without_modules(trace).events.select(
        "layer", "stage", "confidence", "evidence", "category_by"
    )
    both = truth.hstack(labels).filter(known & pl.col("step").is_not_null())
    # layers of a path have their number in the model, others are counted from the first
    offset = pl.col("true_layer").min().over("step") - pl.col("layer").min().over("step")
    both = both.with_columns(true_layer=pl.col("true_layer") - offset.fill_null(0))
    return both.with_columns(
        right_layer=pl.col("layer").eq_missing(pl.col("true_layer")),
        right_stage=pl.col("stage").eq_missing(pl.col("true_stage")),
        said=pl.col("layer").is_not_null() | pl.col("true_layer").is_not_null(),
    )


def against(replayed: Trace, named: Trace) -> pl.DataFrame:
    """Kernels of the decode steps of CUDA graphs, with what modules say of the same kernel in an
    eager run.

    A kernel of a replay is the one of the eager step with its name, on the main stream or beside
    it, and its place among those of this name there, if both steps have as many of them. The others
    are left out; ``known`` is the time of all (ns).
    """
    steps = []
    for trace in (replayed, named):
        events = trace.events.filter((pl.col("phase") == "decode") & (pl.col("source") == "kernel"))
        main = (pl.col("stream") == pl.col("stream").mode().min().over("step")).alias("main")
        same = ("step", "name", "main")
        events = events.sort("start_ns").with_columns(main)
        steps.append(
            events.with_columns(place=pl.int_range(pl.len()).over(same), count=pl.len().over(same))
        )
    mine, eager = steps
    eager = eager.filter(pl.col("evidence") == "module", pl.col("step") == pl.col("step").max())
    key = ["name", "main", "place", "count"]
    truth = eager.select(*key, true_layer="layer", true_stage="stage")
    both = mine.join(truth, on=key, how="inner")
    offset = pl.col("true_layer").min().over("step") - pl.col("layer").min().over("step")
    return both.with_columns(true_layer=pl.col("true_layer") - offset.fill_null(0)).with_columns(
        right_layer=pl.col("layer").eq_missing(pl.col("true_layer")),
        right_stage=pl.col("stage").eq_missing(pl.col("true_stage")),
        said=pl.col("layer").is_not_null() | pl.col("true_layer").is_not_null(),
        known=pl.lit(mine["dur_ns"].sum()),
    )


def share(frame: pl.DataFrame, right: str) -> float:
    """Share of device time that is right."""
    total = frame["dur_ns"].sum()
    return float(frame.filter(right)["dur_ns"].sum() / total) if total else float("nan")


def table(files: list[Path]) -> tuple[str, pl.DataFrame]:
    """Markdown table with a row a recording, and all events."""
    head = [
        "recording",
        "events",
        "layer right (time)",
        "stage right (time)",
        "layer right (events)",
        "unknown",
    ]
    lines = ["| " + " | ".join(head) + " |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    parts = []
    for path in files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = llmprof.read(path)
        if not module_calls(trace).height:
            continue
        both = compare(trace).with_columns(recording=pl.lit(path.name))
        if not both.height:  # a graph's replay, whose modules were called when it was captured
            continue
        unknown = both.filter(pl.col("evidence").is_null())["dur_ns"].sum() / max(
            1, both["dur_ns"].sum()
        )
        both = both.filter(pl.col("evidence").is_not_null())
        layers = both.filter("said")
        lines.append(
            f"| {path.parent.name}/{path.name[:48]} | {both.height:,} | {share(layers, 'right_layer'):.2%} | "
            f"{share(both, 'right_stage'):.2%} | {layers['right_layer'].mean() or 0:.2%} | {unknown:.2%} |"
        )
        parts.append(both)
    return "\n".join(lines), pl.concat(parts)


def graphs() -> str:
    """Markdown table: decode steps under CUDA graphs against the eager recording of the same
    model.
    """
    lines = [
        "| recording | kernels | compared (time) | layer right | stage right |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for path in sorted((_ROOT / "tests/analyze/labelled").glob("*_graph.pt.trace.json.gz")):
        named = path.with_name(path.name.replace("_graph.", "_named."))
        if named.exists():
            both = against(llmprof.read(path), llmprof.read(named))
            compared = both["dur_ns"].sum() / both["known"][0]
            right = f"{share(both.filter('said'), 'right_layer'):.2%} | {share(both, 'right_stage'):.2%}"
            lines.append(
                f"| {path.name.partition('.')[0]} | {both.height:,} | {compared:.1%} | {right} |"
            )
    return "\n".join(lines)


def calibration(events: pl.DataFrame) -> str:
    """Markdown table: of the events with a layer, how many are right by the confidence that they
    have.
    """
    lines = ["| confidence | events | layer right | stage right |", "| --- | ---: | ---: | ---: |"]
    with_confidence = events.filter(pl.col("confidence").is_not_null())
    for low, high in itertools.pairwise(BINS):
        within = with_confidence.filter(
            pl.col("confidence").is_between(low, high, closed="both" if high == 1.0 else "left")
        )
        if within.height:
            right = within["right_layer"].mean(), within["right_stage"].mean()
            lines.append(
                f"| {low} to {high} | {within.height:,} | {right[0]:.2%} | {right[1]:.2%} |"
            )
    return "\n".join(lines)


def by_evidence(events: pl.DataFrame) -> str:
    """Markdown table: how many stages are right by what they rest on."""
    lines = ["| evidence | events | stage right |", "| --- | ---: | ---: |"]
    for evidence in events["evidence"].unique(maintain_order=True):
        within = events.filter(pl.col("evidence").eq_missing(evidence))
        lines.append(f"| {evidence} | {within.height:,} | {within['right_stage'].mean():.2%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--wrong", type=int, default=0, help="show so many of the labels that are wrong most often"
    )
    args = parser.parse_args()
    files = args.files or labelled_recordings()
    text, events = table(files)
    total = f"All: layer {share(events.filter('said'), 'right_layer'):.2%}, stage {share(events, 'right_stage'):.2%}"
    sys.stdout.write(
        f"{text}\n\n{total} of device time\n\n{calibration(events)}\n\n{by_evidence(events)}\n\n{graphs()}\n"
    )
    if args.wrong:
        wrong = events.filter(~pl.col("right_stage") | (~pl.col("right_layer") & pl.col("said")))
        keys = ["recording", "true_stage", "stage", "right_layer", "category", "evidence"]
        most = wrong.group_by(keys).agg(
            n=pl.len(), us=pl.col("dur_ns").sum() / 1e3, name=pl.col("name").first()
        )
        for row in most.sort("us", descending=True).head(args.wrong).iter_rows(named=True):
            sys.stdout.write(
                f"{row['recording'][:30]} {row['n']}x {row['us']:.0f} us, {row['stage']} should be "
                f"{row['true_stage']}, layer right {row['right_layer']}, {row['category']} by "
                f"{row['evidence']}: {row['name'][:90]}\n"
            )


def labelled_recordings() -> list[Path]:
    """Recordings that name modules: of the samples and, where it is there, of the shared folder."""
    shared = _ROOT.parent / "shared"
    files = [
        _ROOT / "sample_traces/torch_cpu_tp2_layer_annotations",
        _ROOT / "sample_traces/nsys_tp1_layer_nvtx",
        *sorted((_ROOT / "tests/analyze/labelled").glob("*.json.gz")),
        *sorted((_ROOT / "tests/analyze/labelled").glob("*.sqlite")),
        *sorted((shared / "real/chrome/tracelens").glob("*.json.gz")),
    ]
    return [path for path in files if path.exists()]


if __name__ == "__main__":
    main()
