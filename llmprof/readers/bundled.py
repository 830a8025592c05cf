"""Bundled data: the sample traces that come with llmprof, and the folders of its other data.

A sample is a folder in ``sample_traces/`` with the files of a profiler, or with the run folder of
``llmprof run``. Its ``sample.json`` says what ran, where the files come from, their licence and
their sha256. An installed package has the files of two samples; the repository has all. The
environment variable ``LLMPROF_SAMPLES`` names another folder.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl

from llmprof.errors import LlmprofError, ReadError, listed, one_of
from llmprof.readers import read
from llmprof.readers.ncu.reader import read_metrics
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics

ENVIRONMENT_VARIABLE = "LLMPROF_SAMPLES"
HEAD_FILE = "sample.json"
_TRACES = "traces/"
_METRICS_PROFILER = "Nsight Compute"


class SampleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a sample: its name in the folder, size (B) and sha256."""

    name: str
    bytes: int
    sha256: str


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of ``sample.json``.

    ``measured`` has times in seconds that the run itself measured: ``plain_s`` without the
    profiler, ``profiled_s`` with it, and ``stop_profile_s`` for writing the trace; None if nothing
    was measured.
    """

    name: str
    title: str
    description: str
    model: str
    engine: str
    versions: dict[str, str]
    device: str
    devices: int
    ranks: int
    parallelism: dict[str, int]
    execution: str
    dtype: str
    workload: dict[str, int]
    profiler: str
    profiler_options: str
    measured: dict[str, float] | None
    notes: list[str]
    captured: str
    origin: str
    licence: str
    files: list[SampleFile]


def folder_of(name: str, variable: str) -> Path:
    """Path of a folder of bundled data: next to the package in a checkout, inside the package if
    it is installed.
    """
    package = Path(__file__).resolve().parents[1]
    named = os.environ.get(variable)
    places = [Path(named)] if named else [package.parent / name, package / "data" / name]
    for place in places:
        if place.is_dir():
            return place
    hint = (
        f"install llmprof again, or set {variable} to the folder {name} of a clone of its"
        " repository"
    )
    raise LlmprofError(
        f"there is no folder {places[0]}", expected=f"the folder {name} of llmprof", hint=hint
    )


class MissingSampleError(LlmprofError):
    """A sample is known, but its files did not come with this installation."""


def samples_folder() -> Path:
    """Path of the folder with the samples."""
    return folder_of("sample_traces", ENVIRONMENT_VARIABLE)


def notebook_data(name: str) -> Path:
    """Path of a folder with results that the notebooks explain."""
    folder = folder_of("notebooks", "LLMPROF_NOTEBOOKS") / "data" / name
    if not folder.is_dir():
        raise LlmprofError(
            f"there are no results {name!r} for the notebooks", hint="install llmprof again"
        )
    return folder


def describe_sample(name: str) -> Sample:
    """Description of a sample: what ran in it, and its origin."""
    folder = samples_folder()
    if name not in (names := _names(folder)):
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        found = f"there is no sample {name!r}"
        raise LlmprofError(
            found, expected=one_of(names, near), hint="llmprof samples lists them all", nearest=near
        )
    head = folder / name / HEAD_FILE
    try:
        return msgspec.json.decode(head.read_bytes(), type=Sample)
    except (OSError, ValueError, RecursionError) as error:
        raise ReadError(
            f"{head} is damaged: {error}", hint="restore it from the repository"
        ) from error


def sample_files(name: str) -> list[Path]:
    """Trace files of a sample, in the order of the ranks; for a run folder, the files in
    ``traces``.
    """
    folder = samples_folder() / name
    stored = describe_sample(name).files
    paths = []
    for file in [file for file in stored if file.name.startswith(_TRACES)] or stored:
        path = folder / file.name
        size = path.stat().st_size if path.is_file() else None
        if size is None and not _is_here(name):
            expected = f"one of {', '.join(filter(_is_here, _names(samples_folder())))}"
            hint = (
                f"clone the repository of llmprof and set {ENVIRONMENT_VARIABLE} to its folder"
                " sample_traces"
            )
            raise MissingSampleError(
                f"the files of the sample {name!r} are not installed", expected=expected, hint=hint
            )
        if size != file.bytes:
            found = f"{path} " + ("is missing" if size is None else f"has {size:,} bytes")
            raise ReadError(
                found, expected=f"{file.bytes:,} bytes", hint="restore it from the repository"
            )
        paths.append(path)
    return paths


def _is_here(name: str) -> bool:
    """Whether the files of a sample are on this machine, in addition to its description."""
    return any(path.name != HEAD_FILE for path in (samples_folder() / name).iterdir())


def samples() -> pl.DataFrame:
    """The samples that can be opened with :func:`sample`.

    Returns
    -------
    polars.DataFrame
        ``name, title, model, engine, device, ranks, tensor_parallel, pipeline_parallel, execution
        (eager | cuda_graphs), profiler, files, bytes, here (whether its files are on this machine),
        captured, licence, description``, one row per sample, sorted by name.

    Raises
    ------
    LlmprofError
        There is no folder of samples.

    Examples
    --------
    >>> "torch_tp1_cudagraph" in llmprof.samples()["name"]
    True
    """
    schema = {
        **dict.fromkeys(("name", "title", "model", "engine", "device"), pl.String),
        **dict.fromkeys(("ranks", "tensor_parallel", "pipeline_parallel"), pl.Int32),
        **dict.fromkeys(("execution", "profiler"), pl.String),
        "files": pl.Int32,
        "bytes": pl.Int64,
        "here": pl.Boolean,
        **dict.fromkeys(("captured", "licence", "description"), pl.String),
    }
    heads = [describe_sample(name) for name in _names(samples_folder())]
    rows = [
        msgspec.structs.asdict(head)
        | {
            "tensor_parallel": head.parallelism.get("tensor"),
            "pipeline_parallel": head.parallelism.get("pipeline"),
            "files": len(head.files),
            "bytes": sum(file.bytes for file in head.files),
            "here": _is_here(head.name),
        }
        for head in heads
    ]
    return pl.DataFrame([{key: row[key] for key in schema} for row in rows], schema=schema)


def sample(name: str) -> Trace:
    """Open a bundled sample.

    Parameters
    ----------
    name : str
        Name of a sample, as :func:`samples` lists it.

    Returns
    -------
    Trace
        All ranks of the sample.

    Raises
    ------
    LlmprofError
        There is no such sample (the message has the nearest names), or it is not a trace.
    ReadError
        A file is missing or damaged.

    Examples
    --------
    >>> llmprof.sample("torch_tp1_cudagraph").ranks
    [0]
    """
    if describe_sample(name).profiler == _METRICS_PROFILER:
        found = f"the sample {name!r} has metrics of single kernels, and is not a trace"
        raise LlmprofError(found, hint="open it with llmprof.sample_metrics")
    return read(sample_files(name))


def sample_metrics(name: str) -> Metrics:
    """Open a bundled sample of Nsight Compute.

    Parameters
    ----------
    name : str
        Name of a sample whose profiler is Nsight Compute, as :func:`samples` lists it.

    Returns
    -------
    Metrics
        Hardware metrics of its kernel launches.

    Raises
    ------
    LlmprofError
        There is no such sample, or it is a trace.
    ReadError
        A file is missing or damaged.

    Examples
    --------
    >>> llmprof.sample_metrics("ncu_tp1_eager").launches.height
    24
    """
    if describe_sample(name).profiler != _METRICS_PROFILER:
        raise LlmprofError(
            f"the sample {name!r} is a trace", hint=f"open it with llmprof.sample({name!r})"
        )
    return read_metrics(sample_files(name))


SYNTHETIC_VARIANTS = ("baseline", "split", "micro_batch", "both")
"""Variants of the synthetic recording of an NPU."""


def synthetic_npu(variant: str, folder: Path) -> Path:
    """Make a synthetic recording of a DeepSeek-V3-like model on two Ascend NPUs; nothing in it
    was measured.
    """
    if variant not in SYNTHETIC_VARIANTS:
        raise LlmprofError(
            f"there is no variant {variant!r}", expected=f"one of {listed(SYNTHETIC_VARIANTS)}"
        )
    return _generated("ascend_synthetic.py", folder, "--variant", variant)


def synthetic_ranks(folder: Path) -> Path:
    """Make a synthetic run of 32 ranks on four hosts, of which ``host2`` is slow from step 8 on;
    nothing was measured.

    The new folder has a file for each rank; ``sample_traces/ranks_synthetic.py`` says what they
    hold.
    """
    return _generated("ranks_synthetic.py", folder)


def _generated(script: str, folder: Path, *options: str) -> Path:
    """Run a script beside the samples that writes a recording."""
    done = subprocess.run(  # noqa: S603 (a script of llmprof)
        [sys.executable, "-B", str(samples_folder() / script), str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        found = (
            f"the synthetic recording could not be written to {folder}:"
            f" {(done.stderr.splitlines() or ['?'])[-1]}"
        )
        raise LlmprofError(found, hint="choose a folder that can be written")
    return folder


def _names(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob(f"*/{HEAD_FILE}"))
