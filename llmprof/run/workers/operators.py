"""Program of a timing script: makes random arguments, runs operators alone, times them, and writes
the results.

A script contains the source of this module and of the clock. It needs PyTorch, and vLLM for vLLM's
operators, but not llmprof. The all-reduce runs with one process for each rank.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import functools
import importlib
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .device_clock import DeviceClock

MODES = ("warm", "in_turn", "weights_cold", "cold")
"""Content of the caches: everything (warm); only data that were just written, after other kernels,
whose code replaced that of this kernel (in turn); the same without other kernels (weights cold);
nothing (cold).
"""

LIBRARIES = {
    **dict.fromkeys(("_C", "_moe_C", "_C_cache_ops"), "vllm._custom_ops"),
    **dict.fromkeys(("_vllm_fa2_C", "_vllm_fa3_C"), "vllm.vllm_flash_attn"),
    "sgl_kernel": "sgl_kernel",
}
"""Modules that register the operators of a namespace."""

BLOCK = 1 << 22
MOST_CALLS = 100


@dataclass(frozen=True)
class MadeTensor:
    """Description of a tensor that is made when the operator runs."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    holds: str = "random"
    number: int = 0
    most: int = 0

    @property
    def elements(self) -> int:
        """Elements of memory from the first to the last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))  # noqa: B905


@dataclass(frozen=True)
class TimedOperator:
    """An operator to run: its name, its arguments, and which of them are weights or caches."""

    key: str
    name: str
    arguments: list[Any]
    stored: tuple[int, ...] = ()
    calls: int = 0
    recorded_ns: float = 0.0
    world: int = 1
    collective: bool = False


@dataclass
class OperatorBench:
    """Timing of operators on a device."""

    device: str
    seconds: float
    torch: Any = field(init=False)
    clock: DeviceClock = field(init=False)
    floor_ns: float = field(init=False, default=0.0)
    flushed: Any = field(init=False, default=None)
    other: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.torch.manual_seed(0)
        self.cuda = self.device.startswith("cuda")
        self.clock = DeviceClock(self.torch, cuda=self.cuda)
        self.name, self.cache_bytes = platform.processor() or platform.machine(), 64 << 20
        if self.cuda:
            properties = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
            self.name = properties.name
            self.cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or self.cache_bytes
            self.floor_ns = statistics.median(self.clock.times([lambda: None] * 20))

    # arguments

    def tensor(self, spec: MadeTensor) -> Any:
        """A tensor of random numbers, or of the numbers that the operator needs."""
        torch, count, n, place = self.torch, spec.elements, spec.number, {"device": self.device}
        dtype, few = getattr(torch, spec.dtype), min(spec.elements, BLOCK)
        if spec.holds == "random":
            fractions = dtype.is_floating_point or dtype.is_complex
            some = torch.randn(few, **place) if fractions else torch.randint(0, 2, (few,), **place)
            base = _repeated(torch, some.to(dtype), count)
        elif spec.holds == "filled":
            base = torch.full((count,), n, **place)
        elif spec.holds == "below":
            base = torch.randint(0, max(1, n), (count,), **place)
        elif spec.holds == "slots":
            base = torch.randperm(n, **place)[:count]
        elif spec.holds == "pages":
            base = _repeated(torch, torch.randperm(n, **place), count)
        elif spec.holds == "ends":
            base = torch.tensor(sequence_ends(n, count - 1, spec.most), **place)
        else:
            raise ValueError(f"nothing is known of tensors that hold {spec.holds!r}")
        return base.to(dtype).as_strided(spec.shape, spec.strides)

    def arguments(self, operator: TimedOperator) -> list[Any]:
        """Arguments of an operator."""
        made: list[Any] = []
        for argument in operator.arguments:
            if isinstance(argument, MadeTensor):
                made.append(None if argument.holds == "fa3_metadata" else self.tensor(argument))
            elif isinstance(argument, list) and argument and isinstance(argument[0], MadeTensor):
                made.append([self.tensor(part) for part in argument])
            else:
                made.append(argument)
        for place, argument in enumerate(operator.arguments):
            if isinstance(argument, MadeTensor) and argument.holds == "fa3_metadata":
                made[place] = self._fa3_metadata(made)
        return made

    def _fa3_metadata(self, made: list[Any]) -> Any:
        """Scheduler metadata of FlashAttention 3, which vLLM computes once in each step."""
        q, k, v = made[0], made[1], made[2]
        if made[11] is None or made[14] is None:
            return None
        plan = self.torch.ops._vllm_fa3_C.get_scheduler_metadata
        return plan(
            made[11].shape[0],
            made[12],
            made[13],
            q.shape[-2],
            k.shape[-2],
            q.shape[-1],
            v.shape[-1],
            q.dtype,
            made[11],
            made[7],
            None,
            None,
            None,
            None,
            k.shape[1],
            0,
            made[24],
            made[25],
            made[26],
            (made[27] or 0.0) > 0,
            made[30] or 0,
            made[31],
            made[32] or 0,
        )

    # calls

    def bound(self, operator: TimedOperator) -> tuple[Callable[..., Any], list[str], int]:
        """The overload that accepts the recorded arguments, with the names of its keyword
        arguments.
        """
        namespace, name = operator.name.split("::")
        if namespace in LIBRARIES:
            importlib.import_module(LIBRARIES[namespace])
        packet = getattr(getattr(self.torch.ops, namespace), name)
        for overload in packet.overloads():
            function = getattr(packet, overload)
            parameters = function._schema.arguments
            if len(parameters) == len(operator.arguments) and all(
                map(fits_parameter, operator.arguments, parameters)
            ):
                positional = sum(not parameter.kwarg_only for parameter in parameters)
                return function, [parameter.name for parameter in parameters], positional
        raise ValueError(
            f"no form of {operator.name} takes {len(operator.arguments)} such arguments"
        )

    def callable(self, operator: TimedOperator) -> Callable[[list[Any]], Any]:
        """Function that calls the operator with its arguments."""
        function, names, positional = self.bound(operator)
        parameters = function._schema.arguments  # type: ignore[attr-defined]
        defaults = [
            one.default_value if given is None and not _optional(one) else None
            for given, one in zip(operator.arguments, parameters)  # noqa: B905
        ]

        def call(made: list[Any]) -> Any:
            full = [default if one is None else one for one, default in zip(made, defaults)]  # noqa: B905
            named = dict(zip(names[positional:], full[positional:]))  # noqa: B905
            return function(*full[:positional], **named)

        return call

    # times

    def flush(self) -> None:
        """Write a buffer larger than the caches."""
        if self.flushed is None:
            size = max(4 * self.cache_bytes, 256 << 20) if self.cuda else 2 * self.cache_bytes
            self.flushed = self.torch.empty(size, dtype=self.torch.int8, device=self.device)
        self.flushed.zero_()

    def run(self, operator: TimedOperator) -> dict[str, Any]:
        """Time an operator warm, with cold weights, and cold."""
        with self.torch.inference_mode():
            return self._run(operator)

    def _run(self, operator: TimedOperator) -> dict[str, Any]:
        out: dict[str, Any] = {"modes": {}, "floor_ns": self.floor_ns}
        function, made = self.callable(operator), self.arguments(operator)
        call = functools.partial(function, made)
        once = max(self._took(call), 1e-6)
        calls = {"warm": self._count(once)}
        plans: dict[str, Callable[[], None] | None] = {"warm": None, "cold": self.flush}
        plans["in_turn"] = lambda: self._weights_cold(operator, made, after=self._others)
        if operator.stored:
            plans["weights_cold"] = lambda: self._weights_cold(operator, made)
        for mode, before in plans.items():
            calls.setdefault(mode, self._count(once + self._took(before)))
        until = time.perf_counter() + min(0.1, self.seconds)
        while time.perf_counter() < until:  # clocks rise
            call()
        self.clock.wait()
        try:
            profiled = self._profiled(operator, call, plans, calls)
        except (RuntimeError, OSError, ValueError, LookupError) as error:
            profiled = {mode: {"times": [], "host": [], "kernels": set()} for mode in plans}
            out["profiler_error"] = f"{type(error).__name__}: {error}"[:300]
        for mode in (mode for mode in MODES if mode in plans):
            seen, timed = profiled[mode], self._clocked(call, plans[mode], calls[mode])
            times = {"profiler": seen["times"], "clock": timed, "host": seen["host"]}
            out["modes"][mode] = {clock: timing_interval(values) for clock, values in times.items()}
        out["kernels"] = sorted({name for mode in profiled.values() for name in mode["kernels"]})
        return out

    def _count(self, once: float) -> int:
        """Number of calls that fit into the time of one of the six series."""
        return int(min(MOST_CALLS, max(5, self.seconds / once / 6)))

    def _took(self, work: Callable[[], Any] | None) -> float:
        """Seconds that work takes when it is repeated."""
        began = 0.0
        for _ in range(2):
            began = time.perf_counter()
            if work is not None:
                work()
            self.clock.wait()
        return time.perf_counter() - began

    def _others(self) -> None:
        """Run kernels of other kinds, as in a step, so that the operator's code leaves the
        instruction caches.
        """
        torch = self.torch
        if self.other is None:
            kind = torch.bfloat16 if self.cuda else torch.float32
            self.other = [torch.randn(size, 512, device=self.device).to(kind) for size in (8, 512)]
        few, many = self.other
        for result in (
            few @ many,
            many @ many,
            torch.softmax(many.float(), -1),
            many.sort(-1).values,
        ):
            result.cumsum(-1)
        torch.nn.functional.layer_norm(many, (512,))
        torch.topk(many, 8)
        torch.nn.functional.gelu(few)
        many.t().contiguous().sum()

    def _weights_cold(
        self, operator: TimedOperator, made: list[Any], after: Callable[[], None] | None = None
    ) -> None:
        """Flush the caches, run other kernels, then write again the data that the operator
        before would write.
        """
        self.flush()
        if after is not None:
            after()
        for place, argument in enumerate(made):
            for part in argument if isinstance(argument, list) else [argument]:
                own = place not in operator.stored and isinstance(part, self.torch.Tensor)
                if own and not any(
                    step == 0 and size > 1
                    for size, step in zip(part.shape, part.stride())  # noqa: B905
                ):
                    part.copy_(part.clone())

    def _profiled(
        self,
        operator: TimedOperator,
        call: Callable[[], Any],
        plans: dict[str, Any],
        calls: dict[str, int],
    ) -> dict[str, Any]:
        """Times by PyTorch's profiler: of the kernels of each call, or of the operator itself on
        a CPU.
        """
        profiler = importlib.import_module("torch.profiler")
        kinds = [profiler.ProfilerActivity.CPU] + [profiler.ProfilerActivity.CUDA] * self.cuda
        with profiler.profile(activities=kinds) as profile:
            for mode, before in plans.items():
                for number in range(calls[mode]):
                    if before is not None:
                        before()
                    with profiler.record_function(f"replay:{mode}:{number}"):
                        call()
                self.clock.wait()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(file))
            events = json.loads(file.read_text())["traceEvents"]
        return call_times(events, operator.name, plans, cuda=self.cuda)

    def _clocked(
        self, call: Callable[[], Any], before: Callable[[], None] | None, calls: int
    ) -> list[float]:
        """Times in ns, less those of an empty call on a GPU."""
        times = self.clock.times([call] * calls, before)
        return [max(0.0, time_ns - self.floor_ns) for time_ns in times]


def sequence_ends(total: int, parts: int, most: int) -> list[int]:
    """Ends of parts that add up to a total: as many as possible have the greatest length, the
    others have length 1.
    """
    ends, left = [0], total
    for after in range(parts - 1, -1, -1):
        size = min(most or -(-left // (after + 1)), max(0, left - after)) if after else left
        ends.append(ends[-1] + size)
        left -= size
    return ends


def _repeated(torch: Any, some: Any, count: int) -> Any:
    """A few numbers, repeated up to a count."""
    if not count:
        return torch.empty(0, dtype=some.dtype, device=some.device)
    return (
        some
        if some.numel() >= count
        else some.repeat(math.ceil(count / some.numel()))[:count].contiguous()
    )


def _optional(parameter: Any) -> bool:
    return str(parameter.type).startswith("Optional")


def fits_parameter(given: Any, parameter: Any) -> bool:
    """Whether a recorded argument can be that of a form of an operator."""
    kind = str(parameter.type)
    if given is None:
        return _optional(parameter) or bool(parameter.has_default_value())
    if isinstance(given, MadeTensor):
        return "Tensor" in kind and "List" not in kind
    if isinstance(given, list):
        return "List" in kind and ("Tensor" in kind) == bool(
            given and isinstance(given[0], MadeTensor)
        )
    if "Tensor" in kind or "List" in kind:
        return False
    if isinstance(given, str):
        return "str" in kind
    if isinstance(given, bool):
        return "bool" in kind or "number" in kind or "Scalar" in kind
    if isinstance(given, int):
        return "bool" not in kind and "str" not in kind
    return "float" in kind or "number" in kind or "Scalar" in kind


def call_times(
    events: list[dict[str, Any]], name: str, plans: dict[str, Any], *, cuda: bool
) -> dict[str, Any]:
    """Times of calls from the events of a profile: device work by the call that launched it,
    else the operator.
    """
    out: dict[str, Any] = {mode: {"times": [], "host": [], "kernels": set()} for mode in plans}
    whole = [event for event in events if event.get("ph") == "X"]
    marks = sorted(
        (
            event
            for event in whole
            if event.get("cat") == "user_annotation" and event["name"].startswith("replay:")
        ),
        key=lambda event: float(event["ts"]),
    )
    starts = [float(mark["ts"]) for mark in marks]
    work: dict[int, list[Any]] = {}
    for event in whole:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            work.setdefault(event["args"].get("correlation", -1), []).append(event)
    sums, host = [0.0] * len(marks), [0.0] * len(marks)
    names: list[set[str]] = [set() for _ in marks]
    for event in whole:
        category, start = event.get("cat", ""), float(event["ts"])
        if not (category.startswith("cuda_") or category == "cpu_op"):
            continue
        place = bisect.bisect_right(starts, start) - 1
        mark = marks[max(0, place)]
        if place < 0 or start > starts[place] + float(mark["dur"]) or event["tid"] != mark["tid"]:
            continue
        if category == "cpu_op":
            if event["name"] == name:
                host[place] = max(host[place], float(event["dur"]) * 1e3)
            continue
        for kernel in work.get(event.get("args", {}).get("correlation", -1), ()):
            sums[place] += float(kernel["dur"]) * 1e3
            names[place].add(kernel["name"])
    for place, mark in enumerate(marks):
        mode = out[mark["name"].split(":")[1]]
        took = sums[place] if cuda else host[place]
        mode["times"] += [took] if took else []
        mode["host"] += [host[place]] if host[place] else []
        mode["kernels"] |= names[place]
    return out


def timing_interval(values: list[float]) -> dict[str, float]:
    """Count, median and its 95 % interval (sign test)."""
    ordered, n = sorted(values), len(values)
    if not n:
        return {"calls": 0}
    reach = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return {
        "calls": n,
        "median_ns": statistics.median(ordered),
        "low_ns": ordered[low],
        "high_ns": ordered[high],
    }


def _ranks(operators: list[TimedOperator], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the collectives in separate processes, and read the results of rank 0."""
    torch = importlib.import_module("torch")
    out = []
    for world in sorted({operator.world for operator in operators}):
        mine = [operator for operator in operators if operator.world == world]
        devices = torch.cuda.device_count() if args.device.startswith("cuda") else world
        if world < 2 or devices < world:
            few = f"the recording has {world} ranks, and {devices} devices are here"
            out += _failed(mine, few if world > 1 else "its ranks are not recorded")
            continue
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rank0.json"
            options = {"--device": args.device, "--seconds": str(args.seconds), "--json": str(file)}
            command = [
                sys.executable,
                sys.argv[0],
                *(word for pair in options.items() for word in pair),
            ]
            shared = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(world),
            }
            children = [
                subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)})  # noqa: S603
                for rank in range(world)
            ]
            failed = [child.wait() for child in children]
            if file.exists():
                out += json.loads(file.read_text())["operators"]
            else:
                out += _failed(mine, f"the ranks ended with {', '.join(map(str, failed))}")
    return out


def _failed(operators: list[TimedOperator], why: str) -> list[dict[str, Any]]:
    return [
        {"key": operator.key, "operator": operator.name, "error": why} for operator in operators
    ]


def _rank(operators: list[TimedOperator], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time collectives on this rank: from a barrier to the end of the call."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = args.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
    bench, out = OperatorBench(f"cuda:{rank}" if cuda else "cpu", args.seconds), []
    for operator in (operator for operator in operators if operator.world == world):
        flat = [
            x
            for given in operator.arguments
            for x in (given if isinstance(given, list) else [given])
        ]
        tensor = bench.tensor(next(x for x in flat if isinstance(x, MadeTensor)))
        reduce, how = _all_reduce(torch, distributed, tensor, cuda=cuda)
        times: list[float] = []
        for number in range(60):
            distributed.barrier()
            bench.clock.wait()
            took = bench.clock.times([functools.partial(reduce, tensor)])
            times += [took[0] - bench.floor_ns] if number >= 10 else []
        modes = {
            "warm": {
                "profiler": {"calls": 0},
                "clock": timing_interval(times),
                "host": {"calls": 0},
            }
        }
        out.append(
            {
                "key": operator.key,
                "operator": operator.name,
                "modes": modes,
                "kernels": [],
                "how": how,
            }
        )
    distributed.destroy_process_group()
    return out


def _all_reduce(
    torch: Any, distributed: Any, tensor: Any, *, cuda: bool
) -> tuple[Callable[[Any], Any], str]:
    """The all-reduce of vLLM if it accepts the tensor, otherwise that of PyTorch."""
    if cuda:
        with contextlib.suppress(ImportError, RuntimeError, AssertionError, ValueError):
            module = importlib.import_module(
                "vllm.distributed.device_communicators.custom_all_reduce"
            )
            own = module.CustomAllreduce(distributed.new_group(backend="gloo"), tensor.device)
            if not own.disabled and own.should_custom_ar(tensor):
                return own.custom_all_reduce, "vLLM's custom all-reduce"
    return distributed.all_reduce, "NCCL" if cuda else "gloo"


def main(operators: list[TimedOperator]) -> int:
    """Time the operators, print a table and write the results."""
    torch = importlib.import_module("torch")
    parser = argparse.ArgumentParser(
        description="Run operators of a recording alone, with random data, and time them."
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="about how long each operator is timed"
    )
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="begin no operator after so many seconds"
    )
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
    bench = OperatorBench(args.device, args.seconds)
    for number in range(args.first, len(alone)):
        operator = alone[number]
        row: dict[str, Any] = {"key": operator.key, "operator": operator.name}
        if time.perf_counter() - _BEGAN > args.limit:
            row["error"] = "not begun: no time was left"
        else:
            try:
                row |= bench.run(operator)
            except _FAILURES as error:
                row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[
                    :300
                ]
        rows.append(row)
        _tell(operator, row)
        _save(args, bench.name, rows)
        if (
            "CUDA error" in row.get("error", "") and args.json and number + 1 < len(alone)
        ):  # the device is lost here
            rest = args.limit - (time.perf_counter() - _BEGAN)
            again = [
                "--device",
                args.device,
                "--seconds",
                str(args.seconds),
                "--limit",
                str(rest),
                "--json",
                args.json,
            ]
            os.execv(  # noqa: S606
                sys.executable, [sys.executable, sys.argv[0], *again, "--first", str(number + 1)]
            )
    collectives = [operator for operator in operators if operator.collective]
    if collectives:
        _save(args, bench.name, rows + _ranks(collectives, args))
    return 0


_BEGAN = time.perf_counter()
_FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    ImportError,
    NotImplementedError,
    LookupError,
    AssertionError,
)


def _save(args: argparse.Namespace, device: str, rows: list[dict[str, Any]]) -> None:
    """Write the results so far."""
    if not args.json:
        return
    versions = {
        "torch": str(importlib.import_module("torch").__version__),
        "python": platform.python_version(),
    }
    if engine := sys.modules.get("vllm"):
        versions["vllm"] = str(getattr(engine, "__version__", ""))
    document = {
        "format": "llmprof operator replay",
        "version": 1,
        "device": device,
        "cuda": args.device.startswith("cuda"),
        "versions": versions,
        "operators": rows,
    }
    part = Path(f"{args.json}.part")
    part.write_text(json.dumps(document, indent=1))
    part.replace(args.json)


def _tell(operator: TimedOperator, row: dict[str, Any]) -> None:
    """Print a result in microseconds."""
    parts = [str(row["error"])] if "error" in row else []
    for mode, timing in row.get("modes", {}).items():
        best = timing["profiler"] if timing["profiler"].get("median_ns") else timing["clock"]
        parts.append(f"{mode} {best['median_ns'] / 1e3:.2f} us")
    words = ", ".join(parts)
    recorded = (
        f"recorded {operator.recorded_ns / 1e3:.2f} us ({operator.calls} calls); "
        if operator.calls
        else ""
    )
    sys.stdout.write(f"{operator.name} {operator.key}: {recorded}{words}\n")
    sys.stdout.flush()
