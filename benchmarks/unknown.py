"""How much device time llmprof has no name for, recording by recording:

``python benchmarks/unknown.py [PATH...]``.

Without paths: the recordings of the folder ``../shared``, where it is there. A category is what a
kernel does; a stage is its part of a model, which only language models have.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import polars as pl

import llmprof
from llmprof.errors import LlmprofError
from llmprof.trace import Trace

_ROOT = Path(__file__).resolve().parent.parent
_SHARED = _ROOT.parent / "shared"

FOLDERS = (
    "captures/*_*",
    "real/chrome/megatron_tp8",
    "real/chrome/param/dlrm",
    "real/ascend/msinsight_level1/*",
)
FILES = (
    "real/chrome/hta/*",
    "real/chrome/kineto/*",
    "real/chrome/tracelens/*",
    "real/nsys/*.sqlite",
    "real/nsys_odd/*.sqlite",
    "real/rocm/*",
    "real/onnxruntime/*",
    "real/ascend/msprof_analyze/*",
)

LANGUAGE_MODELS = (
    "torch_",
    "nsys_t",
    "megatron",
    "b200__",
    "Qwen",
    "inference__",
    "gaunernst_bert",
    "ort_tiny_transformer",
    "nsysai_mfu",
    "nsysai_h100",
)
"""What the names of recordings of language models hold."""


def recordings(shared: Path = _SHARED) -> Iterator[Path]:
    """Recordings of the shared folder, each a file or a folder of ranks."""
    for pattern in FOLDERS:
        yield from sorted(
            path for path in shared.glob(pattern) if path.is_dir() and "ncu" not in path.name
        )
    for pattern in FILES:
        yield from sorted(path for path in shared.glob(pattern) if path.is_file())


def unknown(trace: Trace) -> tuple[float, float, str]:
    """Share of device time without a category, share without a stage, and the name with most of
    the former.
    """
    events = trace.events.select("name", "dur_ns", "category", "stage")
    total = max(1, int(events["dur_ns"].sum()))
    no_category = events.filter(pl.col("category").is_null() | (pl.col("category") == "other"))
    no_stage = events.filter(pl.col("stage").is_null() | (pl.col("stage") == "other"))
    most = (
        no_category.group_by("name")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", descending=True)["name"]
    )
    return (
        int(no_category["dur_ns"].sum()) / total,
        int(no_stage["dur_ns"].sum()) / total,
        most[0] if most.len() else "",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    args = parser.parse_args()
    write = sys.stdout.write
    write(
        "| recording | language model | no category | no stage | most of it |\n| --- | --- | ---: | ---: | --- |\n"
    )
    for path in args.paths or recordings():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                no_category, no_stage, most = unknown(llmprof.read(path))
        except LlmprofError:
            continue
        model = "yes" if any(part in path.name for part in LANGUAGE_MODELS) else ""
        write(
            f"| {path.name[:60]} | {model} | {no_category:.2%} | {no_stage:.2%} | {most[:60]} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
