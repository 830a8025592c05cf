"""Main part of a replay script: its command line, its results, and the all-reduce with one process for each rank.

The script contains the source of this module after that of :mod:`llmprof.operator_replay.timer`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmprof.operator_replay.timer import Bench, Operator, Tensor, summary


def _ranks(operators: list[Operator], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the collectives in separate processes, and read the results of rank 0."""
    torch = importlib.import_module("torch")
    out = []
    for world in sorted({operator.world for operator in operators}):
        mine = [operator for operator in operators if operator.world == world]
        devices = torch.cuda.device_count() if args.device.startswith("cuda") else world
        if world < 2 or devices < world:
            why = (
                f"the recording has {world} ranks, and {devices} devices are here"
                if world > 1
                else "its ranks are not recorded"
            )
            out += [{"key": operator.key, "operator": operator.name, "error": why} for operator in mine]
            continue
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            file = Path(folder) / "rank0.json"
            command = [
                sys.executable,
                sys.argv[0],
                "--device",
                args.device,
                "--seconds",
                str(args.seconds),
                "--json",
                str(file),
            ]
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
            children = [
                subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)})  # noqa: S603
                for rank in range(world)
            ]
            failed = [child.wait() for child in children]
            if file.exists():
                out += json.loads(file.read_text())["operators"]
            else:
                why = f"the ranks ended with {', '.join(map(str, failed))}"
                out += [{"key": operator.key, "operator": operator.name, "error": why} for operator in mine]
    return out


def _rank(operators: list[Operator], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time collectives on this rank: from a barrier to the end of the call."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = args.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
    bench, out = Bench(f"cuda:{rank}" if cuda else "cpu", args.seconds), []
    for operator in (operator for operator in operators if operator.world == world):
        flat = [x for given in operator.arguments for x in (given if isinstance(given, list) else [given])]
        tensor = bench.tensor(next(x for x in flat if isinstance(x, Tensor)))
        reduce, how = _all_reduce(torch, distributed, tensor, cuda=cuda)
        times: list[float] = []
        for number in range(60):
            distributed.barrier()
            bench.wait()
            if cuda:
                took = bench.events([functools.partial(reduce, tensor)])[0] - bench.floor_ns
            else:
                start = time.perf_counter_ns()
                reduce(tensor)
                took = float(time.perf_counter_ns() - start)
            times += [took] if number >= 10 else []
        times_by_clock = {"profiler": {"calls": 0}, "clock": summary(times), "host": {"calls": 0}}
        out.append(
            {
                "key": operator.key,
                "operator": operator.name,
                "modes": {"warm": times_by_clock},
                "kernels": [],
                "how": how,
            }
        )
    distributed.destroy_process_group()
    return out


def _all_reduce(torch: Any, distributed: Any, tensor: Any, *, cuda: bool) -> tuple[Callable[[Any], Any], str]:
    """The all-reduce of vLLM if it accepts the tensor, otherwise that of PyTorch."""
    if cuda:
        with contextlib.suppress(ImportError, RuntimeError, AssertionError, ValueError):
            module = importlib.import_module("vllm.distributed.device_communicators.custom_all_reduce")
            own = module.CustomAllreduce(distributed.new_group(backend="gloo"), tensor.device)
            if not own.disabled and own.should_custom_ar(tensor):
                return own.custom_all_reduce, "vLLM's custom all-reduce"
    return distributed.all_reduce, "NCCL" if cuda else "gloo"


def main(operators: list[Operator]) -> int:
    """Time the operators, print a table and write the results."""
    torch = importlib.import_module("torch")
    parser = argparse.ArgumentParser(description="Run operators of a recording alone, with random data, and time them.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long each operator is timed")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin no operator after so many seconds")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rows = _rank([operator for operator in operators if operator.collective], args)
        if not int(os.environ["RANK"]):
            _save(args, "", rows)
        return 0
    alone = [operator for operator in operators if not operator.collective]
    rows = json.loads(Path(args.json).read_text())["operators"] if args.first and args.json else []
    bench = Bench(args.device, args.seconds)
    for number in range(args.first, len(alone)):
        operator = alone[number]
        row: dict[str, Any] = {"key": operator.key, "operator": operator.name}
        if time.perf_counter() - _BEGAN > args.limit:
            row["error"] = "not begun: no time was left"
        else:
            try:
                row |= bench.run(operator)
            except _FAILURES as error:
                row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]
        rows.append(row)
        _tell(operator, row)
        _save(args, bench.name, rows)
        if "CUDA error" in row.get("error", "") and args.json and number + 1 < len(alone):  # the device is lost here
            rest = args.limit - (time.perf_counter() - _BEGAN)
            again = ["--device", args.device, "--seconds", str(args.seconds), "--limit", str(rest), "--json", args.json]
            os.execv(sys.executable, [sys.executable, sys.argv[0], *again, "--first", str(number + 1)])  # noqa: S606
    collectives = [operator for operator in operators if operator.collective]
    if collectives:
        _save(args, bench.name, rows + _ranks(collectives, args))
    return 0


_BEGAN = time.perf_counter()
_FAILURES = (
    RuntimeError, ValueError, TypeError, AttributeError, ImportError, NotImplementedError, LookupError, AssertionError,
)  # fmt: skip


def _save(args: argparse.Namespace, device: str, rows: list[dict[str, Any]]) -> None:
    """Write the results so far."""
    if not args.json:
        return
    versions = {"torch": str(importlib.import_module("torch").__version__), "python": platform.python_version()}
    if "vllm" in sys.modules:
        versions["vllm"] = str(getattr(sys.modules["vllm"], "__version__", ""))
    document = {
        "format": "llmprof operator replay", "version": 1, "device": device, "cuda": args.device.startswith("cuda"),
        "versions": versions, "operators": rows,
    }  # fmt: skip
    part = Path(f"{args.json}.part")
    part.write_text(json.dumps(document, indent=1))
    part.replace(args.json)


def _tell(operator: Operator, row: dict[str, Any]) -> None:
    """Print a result in microseconds."""
    if "error" in row:
        words = str(row["error"])
    else:
        parts = []
        for mode, timing in row["modes"].items():
            best = timing["profiler"] if timing["profiler"].get("median_ns") else timing["clock"]
            parts.append(f"{mode} {best['median_ns'] / 1e3:.2f} us")
        words = ", ".join(parts)
    recorded = f"recorded {operator.recorded_ns / 1e3:.2f} us ({operator.calls} calls); " if operator.calls else ""
    sys.stdout.write(f"{operator.name} {operator.key}: {recorded}{words}\n")
    sys.stdout.flush()
