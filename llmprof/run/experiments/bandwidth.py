"""Experiment ``bandwidth`` (memory, matrix products and links of a machine), and self-test of
the operators' timer.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from msgspec.structs import replace

from llmprof.errors import ConfigError, LaunchError, LlmprofError, ReadError
from llmprof.run.launch.run import process
from llmprof.run.workers import packed
from llmprof.run.workers.bandwidth import SPEC
from llmprof.text import Progress
from llmprof.theory import hardware
from llmprof.trace.storage import files, typed

_MEASURED: Final = ("memory_bytes_per_s", "link_bytes_per_s")
FORMAT: Final = "llmprof-bandwidth"


@dataclass(frozen=True)
class Bandwidth:
    """Measured bandwidths, as frames."""

    memory: pl.DataFrame
    matmul: pl.DataFrame
    links: pl.DataFrame
    all_reduce: pl.DataFrame
    document: dict[str, Any]

    @property
    def device(self) -> str:
        """Name of the device; ``CPU`` if there was none."""
        devices = self.document["devices"]
        return str(devices[0]["name"]) if devices and self.document["platform"] == "cuda" else "CPU"

    def measured(self) -> hardware.Device:
        """Device with measured peaks instead of those of its data sheet."""
        if self.document["platform"] != "cuda":
            raise LlmprofError(
                "the peaks were measured on a CPU", expected="a measurement on a GPU"
            )
        base = hardware.device(self.device)
        best = self.matmul.group_by("dtype").agg(pl.max("tflop_per_s"))
        rates = dict(base.flop_per_s) | {
            dtype: rate * 1e12 for dtype, rate in best.iter_rows() if dtype in hardware.TYPES
        }
        copy = self.memory.filter(kind="copy")["gb_per_s"].min()
        one_way = self.links.filter(~pl.col("both"))["gb_per_s"].max()
        link = base.link_bytes_per_s if one_way is None else 2e9 * float(one_way)  # type: ignore[arg-type]
        sentence = f"measured by llmprof experiment bandwidth, torch {self.document['torch']}"
        return replace(
            base,
            name=f"{base.name} (measured)",
            flop_per_s=rates,
            memory_bytes_per_s=float(copy) * 1e9 if copy is not None else base.memory_bytes_per_s,  # type: ignore[arg-type]
            link_bytes_per_s=link,
            sources={**base.sources, **dict.fromkeys([*best["dtype"], *_MEASURED], sentence)},
        )


_CHOICES: Final = {
    "parts": SPEC["parts"],
    "dtypes": SPEC["dtypes"],
    "device": ["auto", "cuda", "cpu"],
}
_MAY_BE_ZERO: Final = ("ranks", "warmup")


def checked_spec(spec: Any) -> dict[str, Any]:
    """Options of the measurement, whose names and values were checked."""
    from llmprof.run.launch.config.options import checked_option, refuse_unknown_keys

    if not isinstance(spec, Mapping):
        raise ConfigError(f"spec is {spec!r}", expected=f"a mapping with some of {', '.join(SPEC)}")
    refuse_unknown_keys(spec, SPEC, "spec")
    for key, value in spec.items():
        values, usual = (value, SPEC[key]) if isinstance(value, list) else ([value], SPEC[key])
        kind: Any = type(usual[0] if isinstance(usual, list) else usual)
        checked_option(value, list[kind] if isinstance(usual, list) else kind, f"spec.{key}")
        known = _CHOICES.get(key)
        for one in values:
            if known is not None and one not in known:
                raise ConfigError(f"spec.{key} has {one!r}", expected=f"one of {', '.join(known)}")
            least = 0 if key in _MAY_BE_ZERO else 1
            if known is None and not isinstance(one, bool) and one < least:
                raise ConfigError(f"spec.{key} is {one}", expected=f"at least {least}")
        if not values:
            raise ConfigError(f"spec.{key} is empty", expected="at least one value")
    return dict(spec)


def bandwidth_command(
    out: Path, *, python: str = sys.executable, spec: Mapping[str, Any] | None = None
) -> list[str]:
    """Command line of the measurement on one machine, whose program is written beside ``out``."""
    more = ["--spec", json.dumps(checked_spec(spec))] if spec else []
    program = out.with_name("bandwidth.pyz")
    files.made(out.parent)
    files.write(program, packed("bandwidth"))
    return [python, str(program), "--out", str(out), *more]


def torchrun(out: Path, *, nodes: int, ranks: int, spec: Mapping[str, Any] | None = None) -> str:
    """Command line of the measurement on several nodes, which must be started on each node."""
    head = [
        "torchrun",
        "--nnodes",
        str(nodes),
        "--nproc-per-node",
        str(ranks),
        "--rdzv-backend",
        "c10d",
    ]
    return shlex.join(
        [*head, "--rdzv-endpoint", "HOST:29500", *bandwidth_command(out, spec=spec)[1:]]
    )


def run_bandwidth(
    out: str | Path,
    *,
    python: str = sys.executable,
    spec: Mapping[str, Any] | None = None,
    timeout_s: float = 1800.0,
    progress: Progress | None = None,
) -> Bandwidth:
    """Run the measurement in a separate process."""
    path = Path(out)
    if progress is not None:
        progress("measuring memory, matrix products and links", 0, 0)
    argv = bandwidth_command(path, python=python, spec=spec)
    _run(
        argv,
        timeout_s=timeout_s,
        otherwise="check --device and ranks, or lower max_bytes of spec",
    )
    return read_bandwidth(path)


def _run(argv: list[str], *, timeout_s: float, otherwise: str = "") -> str:
    """Run the measurement with another interpreter; the last line that it printed."""
    environment = {
        key: value for key, value in os.environ.items() if key not in {"RANK", "WORLD_SIZE"}
    }
    status, lines = process.output_of(argv, env=environment, timeout_s=timeout_s)
    last = lines[-1] if lines else "it printed no message"
    if status:
        alone = "No module named 'torch'" in last
        hint = "set python to an interpreter that has PyTorch" if alone else otherwise
        raise LaunchError(f"the measurement failed: {last[:300]}", hint=hint)
    return last


AGREES: Final = 0.05
"""Largest difference that counts as agreement (share); launch and marks around a large matrix
product take less.
"""


def self_test(python: str = sys.executable, *, timeout_s: float = 300.0) -> dict[str, Any]:
    """Time a known matrix product as the measurements do, and with PyTorch's profiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "bandwidth.pyz")
        program.write_bytes(packed("bandwidth"))
        printed = _run([python, str(program)], timeout_s=timeout_s)
    document: dict[str, Any] = json.loads(printed)
    profiled = document["profiler_us"]
    document["difference"] = document["timed_us"] / profiled - 1 if profiled else None
    document["agrees"] = (
        document["difference"] is not None and abs(document["difference"]) <= AGREES
    )
    return document


def read_bandwidth(path: str | Path) -> Bandwidth:
    """Read the results file of :func:`run_bandwidth`."""
    document = typed.read(Path(path), dict[str, Any])
    if document.get("format") != FORMAT:
        raise ReadError(
            f"{Path(path).name} holds no measured bandwidth", expected=f'"format": "{FORMAT}"'
        )
    try:
        return _frames(document)
    except (pl.exceptions.PolarsError, LookupError, AttributeError, TypeError, ValueError) as error:
        raise ReadError(
            f"{Path(path).name} is damaged: {str(error)[:200]}", hint="measure again"
        ) from error


def _frames(document: dict[str, Any]) -> Bandwidth:
    peak = _peaks(document)
    memory = _table(
        [*document["memory"], *document["host"]],
        {"rank": pl.Int64, "kind": pl.String, "bytes": pl.Int64, "gb_per_s": pl.Float64},
    )
    on_host = pl.col("kind").is_in(["host_to_device", "device_to_host"])
    memory = memory.with_columns(
        peak_gb_per_s=pl.when(on_host).then(peak["host"]).otherwise(peak["memory"])
    )
    matmul = _table(
        document["matmul"], {"dtype": pl.String, "n": pl.Int64, "tflop_per_s": pl.Float64}
    )
    rates = pl.DataFrame(
        {"dtype": list(peak["rates"]), "peak_tflop_per_s": list(peak["rates"].values())},
        schema={"dtype": pl.String, "peak_tflop_per_s": pl.Float64},
    )
    matmul = matmul.join(rates, on="dtype", how="left")
    fields = {
        "src": pl.Int64,
        "dst": pl.Int64,
        "bytes": pl.Int64,
        "both": pl.Boolean,
        "peer_access": pl.Boolean,
        "seconds": pl.Float64,
        "gb_per_s": pl.Float64,
    }
    links = pl.concat(
        [
            _table(document["p2p"], fields).with_columns(how=pl.lit("copy between devices")),
            _table(document["p2p_ranks"], fields).with_columns(how=pl.lit("ranks")),
        ]
    )
    peak_gb_per_s = (
        pl.when("both")
        .then(peak["link"])
        .otherwise(None if peak["link"] is None else peak["link"] / 2)
    )
    links = links.with_columns(latency_us=pl.col("seconds") * 1e6, peak_gb_per_s=peak_gb_per_s)
    reduced = _table(
        document["all_reduce"],
        {
            "algorithm": pl.String,
            "bytes": pl.Int64,
            "world": pl.Int64,
            "seconds": pl.Float64,
            "algorithm_gbps": pl.Float64,
            "bus_gbps": pl.Float64,
        },
    )
    half = pl.lit(None if peak["link"] is None else peak["link"] / 2, dtype=pl.Float64)
    reduced = reduced.with_columns(latency_us=pl.col("seconds") * 1e6, peak_gbps=half)
    return Bandwidth(
        memory.with_columns(share=pl.col("gb_per_s") / pl.col("peak_gb_per_s")),
        matmul.with_columns(share=pl.col("tflop_per_s") / pl.col("peak_tflop_per_s")),
        links.with_columns(share=pl.col("gb_per_s") / pl.col("peak_gb_per_s")).select(
            "src",
            "dst",
            "bytes",
            "both",
            "how",
            "peer_access",
            "latency_us",
            "gb_per_s",
            "peak_gb_per_s",
            "share",
        ),
        reduced.with_columns(share=pl.col("bus_gbps") / pl.col("peak_gbps")).drop("seconds"),
        document,
    )


def _peaks(document: Mapping[str, Any]) -> dict[str, Any]:
    """Stated peaks of the device, in GB/s and TFLOP/s; None if the device is unknown."""
    unknown: dict[str, Any] = {"memory": None, "host": None, "link": None, "rates": {}}
    if document["platform"] != "cuda" or not document["devices"]:
        return unknown
    try:
        machine = hardware.device(document["devices"][0]["name"])
    except LlmprofError:
        return unknown
    rates = {dtype: rate / 1e12 for dtype, rate in machine.flop_per_s.items() if rate is not None}

    def gb(value: float | None, share: float = 1.0) -> float | None:
        return value / 1e9 * share if value else None

    return {
        "memory": gb(machine.memory_bytes_per_s),
        "host": gb(machine.host_link_bytes_per_s, 0.5),
        "link": gb(machine.link_bytes_per_s),
        "rates": rates,
    }


def _table(rows: list[dict[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(
        [{name: row.get(name) for name in schema} for row in rows], schema=dict(schema)
    )
