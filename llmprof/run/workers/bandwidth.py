"""Script that measures the peaks of a machine: memory, matrix products, links between devices,
all-reduce.

A packed program that needs only PyTorch (and vLLM for its custom all-reduce, if installed)::

    python bandwidth.pyz --out results.json [--spec '{"max_bytes": 67108864}']
    torchrun --nnodes 2 --nproc-per-node 8 bandwidth.pyz --out results.json      # several nodes

Each device has one process; without ``torchrun`` the program starts them itself. NVLink multicast
stays off. Results of a part are saved as soon as it is measured (``.results.json.ranks/``), so the
same command continues after an interrupt.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .device_clock import DeviceClock
from .machine import write_document
from .server import HOST, free_port

GUARDS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""NVLink multicast can put the GPUs of a shared host out of service when a program that uses it
dies.
"""

MIB = 1 << 20
_CUSTOM = "vllm.distributed.device_communicators.custom_all_reduce"
SPEC: dict[str, Any] = {
    "parts": ["memory", "matmul", "host", "p2p", "all_reduce", "topology"],
    "device": "auto",
    "ranks": 0,
    "min_bytes": MIB,
    "max_bytes": 2048 * MIB,
    "memory_bytes": 1024 * MIB,
    "all_reduce_min": 1024,
    "all_reduce_max": 256 * MIB,
    "matmul_sizes": [2048, 4096, 8192],
    "dtypes": ["fp32", "tf32", "fp16", "bf16", "fp8", "int8"],
    "repeat": 20,
    "warmup": 3,
    "custom_all_reduce": True,
    "timeout_s": 120,
}
"""Default options of the measurement; ``ranks`` 0 means one per device (2 on a CPU)."""


class _Bench:
    """Measurements of one process (``rank`` of ``world`` ranks) with the options ``spec``."""

    def __init__(self, torch: Any, spec: Mapping[str, Any], rank: int, world: int) -> None:
        self.torch, self.spec, self.rank, self.world = torch, spec, rank, world
        self.cuda = spec["device"] == "cuda"
        local = int(os.environ.get("LOCAL_RANK", rank))
        self.device = torch.device(f"cuda:{local}" if self.cuda else "cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        self.clock = DeviceClock(torch, cuda=self.cuda)
        self.notes: list[str] = []

    def times(self, work: Callable[[], Any], *, repeat: int | None = None) -> list[float]:
        """Seconds of each of several warm calls."""
        for _ in range(self.spec["warmup"]):
            work()
        times = self.clock.times([work] * (repeat or self.spec["repeat"]))
        return [time_ns / 1e9 for time_ns in times]

    def row(self, times: list[float], **facts: Any) -> dict[str, Any]:
        """Row of a measurement: median, spread and number of its repeats, and further facts."""
        return {
            **facts,
            "seconds": statistics.median(times),
            "seconds_min": min(times),
            "seconds_max": max(times),
            "repeats": len(times),
            "times": [round(seconds, 9) for seconds in times],
            "rank": self.rank,
        }

    def _moved(self, times: list[float], moved: int, **facts: Any) -> dict[str, Any]:
        return {**self.row(times, **facts), "gb_per_s": moved / statistics.median(times) / 1e9}

    def memory(self) -> list[dict[str, Any]]:
        """Copy, read and write in the memory of the device; a copy moves its bytes twice."""
        torch, size = self.torch, int(self.spec["memory_bytes"])
        source = torch.ones(size // 4, dtype=torch.float32, device=self.device)
        target, rows = torch.empty_like(source), []
        for kind, call, moved in (
            ("copy", functools.partial(target.copy_, source), 2 * size),
            ("read", functools.partial(torch.amax, source), size),
            ("write", target.zero_, size),
        ):
            rows.append(self._moved(self.times(call), moved, kind=kind, bytes=moved))
        return rows

    def matmul(self) -> list[dict[str, Any]]:
        """Square matrix products by type; types that the device does not support are left out
        with a note.
        """
        torch, rows = self.torch, []
        plain = {
            "fp32": torch.float32,
            "tf32": torch.float32,
            "fp16": torch.float16,
            "bf16": torch.bfloat16,
        }
        for dtype in self.spec["dtypes"]:
            if dtype == "tf32" and not self.cuda:
                continue
            for n in self.spec["matmul_sizes"]:
                try:
                    if dtype in plain:
                        if self.cuda:
                            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
                        a, b, out = (
                            torch.randn(n, n, device=self.device).to(plain[dtype]) for _ in range(3)
                        )
                        call: Callable[[], Any] = functools.partial(torch.matmul, a, b, out=out)
                    else:
                        call = self._narrow(dtype, n)
                    times = self.times(call, repeat=max(5, self.spec["repeat"] // 2))
                except (RuntimeError, AttributeError, TypeError, ValueError) as error:
                    self.notes.append(
                        f"no matrix product in {dtype} here: {str(error).splitlines()[0][:160]}"
                    )
                    break
                measured = self.row(times, dtype=dtype, n=n, flop=2 * n**3)
                rows.append({**measured, "tflop_per_s": 2 * n**3 / measured["seconds"] / 1e12})
        return rows

    def _narrow(self, dtype: str, n: int) -> Callable[[], Any]:
        torch = self.torch
        if dtype == "int8":
            a, b = (
                torch.randint(-8, 8, (n, n), dtype=torch.int8, device=self.device) for _ in range(2)
            )
            return lambda: torch._int_mm(a, b.t())
        if not self.cuda:
            raise ValueError("8-bit floating point needs a GPU")
        kind = torch.float8_e4m3fn
        a, b = (torch.randn(n, n, device=self.device).to(kind) for _ in range(2))
        scale = torch.ones((), device=self.device)
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )

    def host(self) -> list[dict[str, Any]]:
        """Copies between pinned host memory and the device."""
        if not self.cuda:
            return []
        torch, size, rows = self.torch, min(256 * MIB, int(self.spec["max_bytes"])), []
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty(size, dtype=torch.uint8, device=self.device)
        for kind, call in (
            ("host_to_device", functools.partial(on_device.copy_, pinned, non_blocking=True)),
            ("device_to_host", functools.partial(pinned.copy_, on_device, non_blocking=True)),
        ):
            rows.append(self._moved(self.times(call), size, kind=kind, bytes=size))
        return rows

    def p2p_devices(self) -> list[dict[str, Any]]:
        """Copies between every pair of devices that this process sees, in one direction and in
        both at once.
        """
        torch, rows = self.torch, []
        count = min(torch.cuda.device_count(), self.world)
        sizes = self._sizes(int(self.spec["min_bytes"]), int(self.spec["max_bytes"]))
        for one in range(count):
            for two in range(count):
                if one == two:
                    continue
                access = bool(torch.cuda.can_device_access_peer(one, two))
                rows += [
                    self._pair(one, two, size, access, both=False) for size in [8, 4096, *sizes]
                ]
                if one < two:
                    rows += [self._pair(one, two, size, access, both=True) for size in sizes]
        return rows

    def _pair(self, one: int, two: int, size: int, access: bool, *, both: bool) -> dict[str, Any]:
        torch = self.torch
        ends = [torch.empty(size, dtype=torch.uint8, device=f"cuda:{i}") for i in (one, two)]
        back = (
            [torch.empty(size, dtype=torch.uint8, device=f"cuda:{i}") for i in (one, two)]
            if both
            else []
        )
        streams = [torch.cuda.Stream(device=f"cuda:{i}") for i in (one, two)]
        repeat = self.spec["repeat"] if size < 512 * MIB else max(5, self.spec["repeat"] // 4)

        def copies() -> None:
            with torch.cuda.stream(streams[0]):
                ends[1].copy_(ends[0], non_blocking=True)
            if both:
                with torch.cuda.stream(streams[1]):
                    back[0].copy_(back[1], non_blocking=True)

        def done() -> None:
            for i in (one, two):
                torch.cuda.synchronize(i)

        times, inner = [], 1 if size >= MIB else 20
        for turn in range(repeat + self.spec["warmup"]):
            done()
            began = time.perf_counter()
            for _ in range(inner):
                copies()
            done()
            if turn >= self.spec["warmup"]:
                times.append((time.perf_counter() - began) / inner)
        moved = size * (2 if both else 1)
        return self._moved(
            times, moved, src=one, dst=two, bytes=size, both=both, peer_access=access
        )

    def p2p_ranks(self, dist: Any) -> list[dict[str, Any]]:
        """Messages between every pair of ranks, through the process group; rank 0 keeps the
        measurements.
        """
        torch, rows = self.torch, []
        sizes = self._sizes(
            int(self.spec["min_bytes"]), min(int(self.spec["max_bytes"]), 256 * MIB)
        )
        for one in range(self.world):
            for two in range(one + 1, self.world):
                for size in [8, 4096, *sizes]:
                    dist.barrier()
                    if self.rank not in {one, two}:
                        continue
                    data = torch.empty(size, dtype=torch.uint8, device=self.device)
                    other = two if self.rank == one else one

                    def there_and_back(
                        data: Any = data, other: int = other, first: bool = self.rank == one
                    ) -> None:
                        for sends in (first, not first):
                            (dist.send if sends else dist.recv)(data, other)

                    times = [
                        t / 2
                        for t in self.times(there_and_back, repeat=max(5, self.spec["repeat"] // 2))
                    ]
                    rows.append(
                        self._moved(
                            times, size, src=one, dst=two, bytes=size, both=False, peer_access=None
                        )
                    )
        return [row for row in rows if row["src"] == self.rank]

    def all_reduce(self, dist: Any, cpu_group: Any) -> list[dict[str, Any]]:
        """All-reduce by size: through the backend (NCCL, gloo) and through vLLM's own kernel."""
        torch, rows = self.torch, []
        custom = self._custom(cpu_group) if self.cuda and self.spec["custom_all_reduce"] else None
        size = int(self.spec["all_reduce_min"])
        while size <= int(self.spec["all_reduce_max"]):
            kind = torch.bfloat16 if self.cuda else torch.float32
            width = 2 if self.cuda else 4
            data = torch.ones(size // width, dtype=kind, device=self.device)
            ways: list[tuple[str, Callable[[], Any]]] = [
                (dist.get_backend(), functools.partial(dist.all_reduce, data))
            ]
            if custom is not None and custom.should_custom_ar(data):
                ways.append(
                    ("vllm_custom", functools.partial(custom.all_reduce, data, registered=False))
                )
            for way, call in ways:
                dist.barrier()
                rows.append(self._reduced(self.times(call), way, size))
            if self.cuda:
                call = functools.partial(dist.all_reduce, data)
                rows += self._in_graph(dist, call, "nccl", size, nullcontext())
            if custom is not None and len(ways) > 1:
                call = functools.partial(custom.custom_all_reduce, data)
                rows += self._in_graph(dist, call, "vllm_custom", size, custom.capture())
            size *= 4
        if custom is not None:
            custom.close()
        return rows

    def _in_graph(
        self, dist: Any, call: Callable[[], Any], way: str, size: int, inside: Any
    ) -> list[dict[str, Any]]:
        """An all-reduce replayed in a CUDA graph, as in decode: no time of the host, and for
        vLLM's kernel no copy into a registered buffer.
        """
        torch, inner = self.torch, 20
        try:
            graph = torch.cuda.CUDAGraph()
            # by default the watchdog of NCCL, another thread, would end the capture
            with inside, torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(inner):
                    call()
            dist.barrier()
            times = [t / inner for t in self.times(graph.replay)]
        except RuntimeError as error:
            self.notes.append(
                f"{way} could not be captured in a graph: {str(error).splitlines()[0][:160]}"
            )
            return []
        return [self._reduced(times, f"{way}_graph", size)]

    def _reduced(self, times: list[float], way: str, size: int) -> dict[str, Any]:
        measured = self.row(times, algorithm=way, bytes=size, world=self.world)
        speed = size / measured["seconds"] / 1e9
        return {
            **measured,
            "algorithm_gbps": speed,
            "bus_gbps": speed * 2 * (self.world - 1) / self.world,
        }

    def _custom(self, cpu_group: Any) -> Any:
        try:
            custom = importlib.import_module(_CUSTOM).CustomAllreduce(cpu_group, self.device)
        except (
            ImportError,
            RuntimeError,
            AssertionError,
            OSError,
            AttributeError,
            TypeError,
        ) as error:
            message = (str(error).splitlines() or [type(error).__name__])[0][:160]
            self.notes.append(f"vLLM's custom all-reduce is not available: {message}")
            return None
        if custom.disabled:
            self.notes.append(
                "vLLM's custom all-reduce is off here: it needs 2, 4, 6 or 8 GPUs with peer access"
            )
            return None
        return custom

    def _sizes(self, first: int, last: int) -> list[int]:
        sizes = [max(1, first)]
        while sizes[-1] * 4 <= last:
            sizes.append(sizes[-1] * 4)
        return sizes if sizes[-1] == last or last < first else [*sizes, last]


def _agreement(torch: Any, device: str) -> dict[str, Any]:
    """A matrix product as it is timed here, and as PyTorch's profiler sees the same calls."""
    profiler: Any = importlib.import_module("torch.profiler")
    bench = _Bench(torch, {**SPEC, "device": device, "warmup": 0}, 0, 1)
    n = 4096 if bench.cuda else 512
    a, b = (torch.randn(n, n, device=bench.device) for _ in range(2))
    product = functools.partial(torch.matmul, a, b)
    bench.times(product, repeat=SPEC["warmup"])
    activities = [profiler.ProfilerActivity.CPU] + [profiler.ProfilerActivity.CUDA] * bench.cuda
    with profiler.profile(activities=activities) as profile:
        timed = bench.times(product)
    device_type = "DeviceType.CUDA" if bench.cuda else "DeviceType.CPU"
    seen = [
        float(event.device_time if bench.cuda else event.cpu_time)
        for event in profile.events()
        if str(event.device_type) == device_type
        and (
            not any(part in event.name for part in ("emset", "spin_kernel"))
            if bench.cuda
            else event.name == "aten::matmul"
        )
    ]
    return {
        "platform": device,
        "n": n,
        "timed_us": statistics.median(timed) * 1e6,
        "profiler_us": statistics.median(seen or [0.0]),
        "calls": len(timed),
        "seen": len(seen),
        "torch": str(torch.__version__),
    }


def topology() -> dict[str, str]:
    """Output of nvidia-smi about links, without serial numbers and identifiers."""
    if shutil.which("nvidia-smi") is None:
        return {}
    queries = {
        "topology": ["topo", "-m"],
        "nvlink": ["nvlink", "-s"],
        "pcie": [
            "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max,pcie.link.gen.current",
            "--format=csv",
        ],
    }
    printed = {}
    for name, arguments in queries.items():
        process = subprocess.run(  # noqa: S603 (a fixed program and arguments)
            ["nvidia-smi", *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        lines = [
            line for line in process.stdout.splitlines() if "UUID" not in line or name != "nvlink"
        ]
        printed[name] = "\n".join(line.split(" (UUID")[0] for line in lines) or process.stdout
    return printed


def device_facts(torch: Any) -> list[dict[str, Any]]:
    """Name, memory and multiprocessors of every device."""
    if not torch.cuda.is_available():
        return []
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "index": index,
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return devices


def _work(rank: int, world: int, spec: Mapping[str, Any], out: str, address: str) -> None:
    """Measure as one process and write to the folder ``out``; ``address`` joins the processes
    (not under torchrun).
    """
    torch: Any = importlib.import_module("torch")
    bench = _Bench(torch, spec, rank, world)
    kept = Kept(Path(out, f"rank{rank}.json"), torch, spec, world)
    bench.notes = kept.document["notes"]
    parts = set(spec["parts"])
    if "memory" in parts:
        kept.measure("memory", bench.memory)
    if "matmul" in parts and rank == 0:
        kept.measure("matmul", bench.matmul)
    if "host" in parts and rank == 0:
        kept.measure("host", bench.host)
    if bench.cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    if world > 1:
        dist: Any = importlib.import_module("torch.distributed")
        if (
            bench.cuda and rank == 0 and "p2p" in parts
        ):  # before the others' devices are busy with NCCL
            kept.measure("p2p", bench.p2p_devices)
            torch.cuda.empty_cache()
        where: dict[str, Any] = (
            {"init_method": address, "rank": rank, "world_size": world} if address else {}
        )
        where |= {"device_id": bench.device} if bench.cuda else {}
        dist.init_process_group("nccl" if bench.cuda else "gloo", **where)
        cpu_group = dist.new_group(backend="gloo")
        dist.barrier()
        together: dict[str, Callable[[], Any]] = {
            "p2p_ranks": functools.partial(bench.p2p_ranks, dist),
            "all_reduce": functools.partial(bench.all_reduce, dist, cpu_group),
        }
        for name in [part for part in together if part.removesuffix("_ranks") in parts]:
            had = torch.tensor([int(name in kept.parts)])
            dist.all_reduce(had, op=dist.ReduceOp.MIN, group=cpu_group)
            if not had.item():  # if one rank lacks a part, all ranks measure it again
                kept.parts.pop(name, None)
                kept.measure(name, together[name])
        dist.barrier()
        dist.destroy_process_group()
    kept.finish()


class Kept:
    """File of what a rank has measured: a killed experiment goes on if options, devices and
    PyTorch are the same.
    """

    def __init__(self, path: Path, torch: Any, spec: Mapping[str, Any], world: int) -> None:
        names = [facts["name"] for facts in device_facts(torch)]
        key = json.dumps([dict(spec), world, names, str(torch.__version__)], sort_keys=True)
        self.path = path
        self.document: dict[str, Any] = {
            "key": key,
            "parts": {},
            "notes": [],
            "seconds": 0.0,
            "finished": False,
        }
        try:
            before = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            before = {}
        if before.get("key") == key and not before["finished"]:
            self.document = before
        self.parts: dict[str, Any] = self.document["parts"]
        self.document["earlier"] = sorted(self.parts)

    def measure(self, name: str, work: Callable[[], list[dict[str, Any]]]) -> None:
        """Measure a part and write the file, unless the file holds the part already."""
        if name not in self.parts:
            began = time.perf_counter()
            self.parts[name] = work()
            self.document["earlier"] = [part for part in self.document["earlier"] if part != name]
            self.document["seconds"] += time.perf_counter() - began
            write_document(self.path, self.document)

    def finish(self) -> None:
        """Mark the file as finished: the next experiment measures all parts again."""
        write_document(self.path, {**self.document, "finished": True})


def _gather(out: str, world: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Join the results of all ranks in one document."""
    torch: Any = importlib.import_module("torch")
    document: dict[str, Any] = {
        "format": "llmprof-bandwidth",
        "version": 1,
        "spec": dict(spec),
        "world": world,
        "platform": "cuda" if spec["device"] == "cuda" else "cpu",
        "torch": str(torch.__version__),
        "devices": device_facts(torch),
        "cores": os.cpu_count(),
        "notes": [],
        "topology": {},
        "memory": [],
        "matmul": [],
        "host": [],
        "p2p": [],
        "p2p_ranks": [],
        "all_reduce": [],
        "continued": [],
    }
    for rank in range(world):
        path = Path(out, f"rank{rank}.json")
        if not path.is_file():
            document["notes"].append(
                f"rank {rank} wrote nothing here: it ran on another node, or failed"
            )
            continue
        part = json.loads(path.read_text("utf-8"))
        for key in ("memory", "matmul", "host", "p2p", "p2p_ranks"):
            document[key] += part["parts"].get(key, [])
        document["continued"] = sorted({*document["continued"], *part["earlier"]})
        document["notes"] += [note for note in part["notes"] if note not in document["notes"]]
        if rank == 0:
            document["all_reduce"], document["seconds"] = (
                part["parts"].get("all_reduce", []),
                part["seconds"],
            )
    if "topology" in spec["parts"]:
        document["topology"] = topology()
    if document["continued"]:
        document["notes"].append(
            "continued; measured before it was interrupted: " + ", ".join(document["continued"])
        )
    if world == 1:
        document["notes"].append(
            "one device: links between devices and all-reduce were not measured"
        )
    return document


def main() -> int:
    """Measure all parts and write the document."""
    os.environ.update(GUARDS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="JSON file to write; without it, only the timer is tested"
    )
    parser.add_argument(
        "--spec", type=json.loads, default={}, help="options that override the defaults, as JSON"
    )
    args = parser.parse_args()
    torch: Any = importlib.import_module("torch")
    spec = {**SPEC, **args.spec}
    if spec["device"] == "auto":
        spec["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if args.out is None:
        print(json.dumps(_agreement(torch, spec["device"])))  # noqa: T201
        return 0
    if spec["device"] == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device", file=sys.stderr)  # noqa: T201
        return 3
    if spec["device"] == "cpu":
        for name, most in (("max_bytes", 64), ("memory_bytes", 256), ("all_reduce_max", 16)):
            spec[name] = min(spec[name], most * MIB)
        spec["matmul_sizes"] = [n for n in spec["matmul_sizes"] if n <= 1024] or [512]
    folder = args.out.parent / f".{args.out.name}.ranks"
    folder.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _work(rank, world, spec, str(folder), "")
        if rank == 0:
            write_document(args.out, _gather(str(folder), world, spec))
        return 0
    count = torch.cuda.device_count() if spec["device"] == "cuda" else 2
    world = int(spec["ranks"]) or count
    if world > count and spec["device"] == "cuda":
        print(f"{world} devices are needed, this machine has {count}", file=sys.stderr)  # noqa: T201
        return 3
    if world == 1:
        _work(0, 1, spec, str(folder), "")
    else:
        meeting = f"tcp://{HOST}:{free_port(0)}"
        spawn = importlib.import_module("torch.multiprocessing").spawn
        spawn(_work, (world, spec, str(folder), meeting), nprocs=world)
    write_document(args.out, _gather(str(folder), world, spec))
    shutil.rmtree(folder, ignore_errors=True)
    return 0
