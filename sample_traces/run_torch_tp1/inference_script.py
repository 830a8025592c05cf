"""A run of vllm, written by llmprof. To repeat it: python THIS_FILE [--out FOLDER]."""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

JOB = json.loads((
    '{'
    '"engine": "vllm", '
    '"served": false, '
    '"profiler": "torch", '
    '"model": "results/Qwen2.5-7B_torch_20261121-133919/model/Qwen2.5-7B", '
    '"random_weights": true, '
    '"tensor_parallel_size": 1, '
    '"pipeline_parallel_size": 1, '
    '"batch_size": 4, '
    '"prompts": null, '
    '"prompt_token_ids": [[24841, 29176, 13786, 1331, 8489, 16758, 15927, 13273, 25688, 27197, 9943, 15622, 11737, 19121, 29222, 29762, 7162, 16542, 4568, 9240, 4584, 24771, 3112, 20267, 26199, 8213, 29815, 17456, 23112, 26554, 19728, 29567, 4820, 10167, 3241, 23920, 2421, 29458, 27873, 22417, 10824, 15476, 18348, 3304, 11598, 14231, 10366, 20022, 20990, 29922, 6705, 18110, 15635, 14511, 28359, 17088, 8540, 2045, 26384, 17984, 465, 3061, 23588, 27533], [23278, 27033, 25729, 21899, 20493, 42, 20055, 16178, 27138, 28434, 10921, 7997, 23934, 10661, 23061, 28528, 2068, 6265, 18601, 7269, 7823, 26329, 4674, 26323, 17797, 14684, 2993, 2641, 10492, 28679, 16649, 16037, 3578, 9882, 18068, 9543, 23157, 4094, 17943, 10908, 26693, 17709, 6663, 26200, 19770, 17936, 19260, 9430, 14586, 3007, 19544, 26151, 12617, 10393, 18867, 7938, 9518, 6030, 6210, 26922, 6123, 1085, 20084, 21522], [15619, 2268, 2948, 22245, 24830, 4272, 28735, 4905, 1271, 27610, 2634, 29436, 22920, 27181, 17719, 22401, 12826, 27460, 23115, 17194, 9036, 17103, 26600, 7721, 27840, 7056, 29333, 22270, 19331, 27047, 13748, 19000, 9023, 14769, 16148, 21639, 21015, 22949, 26000, 11715, 2704, 10632, 20084, 3784, 15944, 19242, 20653, 10991, 27696, 6243, 7968, 536, 23974, 8886, 3843, 23117, 7229, 12196, 26041, 5591, 10901, 13968, 26740, 2042], [25666, 4800, 28032, 22866, 7173, 1487, 26780, 18809, 20786, 29824, 17509, 19736, 22306, 2429, 879, 4082, 20812, 6182, 19873, 27205, 18877, 3927, 12824, 3004, 12133, 27328, 3807, 1197, 19846, 713, 6381, 6066, 23536, 4064, 15708, 6905, 23832, 26243, 2006, 22265, 751, 17838, 13951, 20340, 3330, 27395, 8522, 2298, 7241, 2363, 21203, 9870, 11483, 14294, 5913, 2005, 16508, 15311, 1295, 19550, 3311, 22920, 12826, 6537]], '
    '"max_tokens": 16, '
    '"temperature": 0.0, '
    '"ignore_eos": true, '
    '"seed": 0, '
    '"warmup": 1, '
    '"repeat": 3, '
    '"plain": true, '
    '"profile_repeats": 1, '
    '"max_iterations": 256, '
    '"with_stack": false, '
    '"record_shapes": true, '
    '"layer_annotations": false, '
    '"all_reduce": "auto", '
    '"eager": null, '
    '"dtype": "bfloat16", '
    '"max_model_len": 4096, '
    '"engine_args": {"gpu_memory_utilization": 0.4}, '
    '"server": {"port": 0, "num_prompts": 16, "request_rate": 0.0, "max_concurrency": 4, "profile_after_s": 0.0, "health_timeout_s": 300.0}'
    '}'
))
EXTENSION = (
    '"""Methods that a run adds to vLLM\'s workers: names of layers in the trace, CUDA\'s profiler, and facts of the device."""\n'
    '\n'
    'from __future__ import annotations\n'
    '\n'
    'import importlib\n'
    'import resource\n'
    'from typing import Any\n'
    '\n'
    'torch: Any = importlib.import_module("torch")\n'
    '\n'
    '_DEPTH = 5\n'
    '\n'
    '\n'
    'class LlmprofWorker:\n'
    '    """Mixed into the class of the workers; the names of its methods must not be theirs."""\n'
    '\n'
    '    model_runner: Any\n'
    '    rank: int\n'
    '\n'
    '    def llmprof_annotate(self, nvtx: bool = False) -> int:\n'
    '        """Put a range around each call of each module: ``layer::`` and its name. How many modules that are."""\n'
    '        open_ranges: list[Any] = []\n'
    '        count = 0\n'
    '\n'
    '        def before(name: str) -> Any:\n'
    '            def hook(_module: Any, _args: Any, _kwargs: Any) -> None:\n'
    '                if nvtx:\n'
    '                    torch.cuda.nvtx.range_push(name)\n'
    '                else:\n'
    '                    open_ranges.append(torch.profiler.record_function(name))\n'
    '                    open_ranges[-1].__enter__()\n'
    '\n'
    '            return hook\n'
    '\n'
    '        def after(_module: Any, _args: Any, _kwargs: Any, _output: Any) -> None:\n'
    '            if nvtx:\n'
    '                torch.cuda.nvtx.range_pop()\n'
    '            else:\n'
    '                open_ranges.pop().__exit__(None, None, None)\n'
    '\n'
    '        for name, module in self.model_runner.get_model().named_modules():\n'
    '            if name and name.count(".") <= _DEPTH:\n'
    '                module.register_forward_pre_hook(before(f"layer::{name}"), with_kwargs=True)\n'
    '                module.register_forward_hook(after, with_kwargs=True)\n'
    '                count += 1\n'
    '        return count\n'
    '\n'
    '    def llmprof_cuda_profiler(self, on: bool) -> None:\n'
    '        """Start or stop CUDA\'s profiler, in versions that cannot do it themselves."""\n'
    '        torch.cuda.synchronize()\n'
    '        (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()\n'
    '\n'
    '    def llmprof_facts(self) -> dict[str, Any]:\n'
    '        """Rank, name of the device, peak memory and size of the cache of keys and values, in bytes."""\n'
    '        cuda = torch.cuda.is_available()\n'
    '        caches: dict[int, int] = {}\n'
    '        for one in _tensors(getattr(self.model_runner, "kv_caches", None)):\n'
    '            storage = one.untyped_storage()\n'
    '            caches[storage.data_ptr()] = storage.nbytes()\n'
    '        return {\n'
    '            "rank": int(self.rank),\n'
    '            "device": torch.cuda.get_device_name() if cuda else None,\n'
    '            "peak": torch.cuda.max_memory_allocated()\n'
    '            if cuda\n'
    '            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,\n'
    '            "kv_bytes": sum(caches.values()) or None,\n'
    '        }\n'
    '\n'
    '\n'
    'def _tensors(value: Any) -> list[Any]:\n'
    '    if isinstance(value, torch.Tensor):\n'
    '        return [value]\n'
    '    if isinstance(value, dict):\n'
    '        value = list(value.values())\n'
    '    return [found for one in value for found in _tensors(one)] if isinstance(value, list | tuple) else []\n'
)

_UNKNOWN = (
    *("start_ns", "prompt_tokens", "output_tokens", "finish_reason"),
    *("ttft_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "decode_s", "e2e_s"),
)


class Record:
    """Files of one run of an engine script.

    Parameters
    ----------
    out : pathlib.Path
        Folder of the files; it is made.
    job : mapping
        What is run.
    """

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.events = out / "events.jsonl"
        self.document: dict[str, Any] = {
            "engine": job["engine"],
            "engine_version": None,
            "torch_version": version_of("torch"),
            "python_version": sys.version.split()[0],
            "platform": None,
            "device_names": [],
            "profiler": job["profiler"],
            "argv": sys.argv,
            "stages": [],
            "requests": [],
            "kv_cache": None,
            "peak_memory_bytes": None,
            "notes": [],
            "dropped_engine_args": [],
            "error": None,
        }

    def event(self, event: str, message: str = "", *, done: int = 0, total: int = 0) -> None:
        """Append an event; a reader sees it at once."""
        values = {"time_ns": time.time_ns(), "event": event, "done": done, "total": total, "message": message}
        with self.events.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    @contextlib.contextmanager
    def stage(self, name: str, *, repeat: int | None = None, total: int = 0, message: str = "") -> Iterator[None]:
        """Time what is done inside; it counts only if it ends well."""
        self.event(name, message, done=repeat or 0, total=total)
        start, began = time.time_ns(), time.perf_counter_ns()
        yield
        took = time.perf_counter_ns() - began
        self.document["stages"].append({"name": name, "start_ns": start, "dur_ns": took, "repeat": repeat})

    def note(self, text: str) -> None:
        """Say something that the user should know; once."""
        if text not in self.document["notes"]:
            self.document["notes"].append(text)

    def request(self, phase: str, repeat: int, request: int, **known: Any) -> None:
        """Add a request; what is not given is not known."""
        head = {"phase": phase, "repeat": repeat, "request": request}
        self.document["requests"].append({**head, **dict.fromkeys(_UNKNOWN), **known})

    def outputs(self, texts: Sequence[str | None], tokens: Sequence[Sequence[int] | None]) -> None:
        """Write what was generated: the text, or the tokens where there is no tokenizer."""
        parts = []
        for k, (text, ids) in enumerate(zip(texts, tokens)):  # noqa: B905 (the engine's Python may be older than ours)
            body = text or (" ".join(map(str, ids)) if ids else "(nothing)")
            parts.append(f"=== request {k}: {'text' if text else 'token numbers'}\n{body}\n")
        (self.out / "generated_output.txt").write_text("\n".join(parts), encoding="utf-8")

    def write(self) -> None:
        """Write ``worker.json``, whole or not at all."""
        part = self.out / f".worker.json.{os.getpid()}"
        part.write_text(json.dumps(self.document, indent=1), encoding="utf-8")
        part.replace(self.out / "worker.json")


def version_of(*distributions: str) -> str | None:
    """Version of the first distribution that is installed, without importing it."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


_TAIL = 64 * 1024
_TRACEBACK = 4000
_LINE = 500
_ERROR_LINE = r"(?m)(?:^|[\s\]])((?:[A-Za-z_]+\.)*[A-Z]\w*(?:Error|Exception|Exit): .+)$"

_MEMORY = (
    "the memory does not suffice: lower gpu_memory_utilization if others use the device, max_model_len if the cache of "
    "keys and values does not fit, or give kv_cache_memory_bytes; fewer layers, a smaller batch_size or a larger "
    "tensor_parallel_size also help"
)
_ADVICE: tuple[tuple[str, str], ...] = (
    (r"already in use|errno 98|eaddrinuse", "choose another server port, or 0 for a free one"),
    (r"not enough allowed numa nodes", "set VLLM_CPU_OMP_THREADS_BIND to the cores of each rank, such as '0|1'"),
    (
        r"out of memory|cannot allocate memory|no available memory for the cache|not enough memory|"
        r"kv ?cache (?:memory|is) .*(?:needed|larger)|larger than the (?:available|maximum) .*kv|"
        r"desired gpu memory utilization|insufficient memory|defaultcpuallocator|error in memory profiling",
        _MEMORY,
    ),
    (
        r"must be divisible by tensor parallel|not divisible by|is not divisible",
        "choose a tensor_parallel_size that divides the model's attention heads, vocabulary and hidden sizes",
    ),
    (
        r"no module named 'flashinfer|flashinfer.*(?:not|fail)",
        "set VLLM_USE_FLASHINFER_SAMPLER=0, or install flashinfer",
    ),
    (
        r"(?:user-specified|max_model_len).{0,80}greater than the derived",
        "lower max_model_len to what the model's config.json allows",
    ),
    (r"longer than the maximum|decoder prompt .* is longer", "raise max_model_len, or shorten the prompts"),
    (r"no space left on device", "the disk is full: free some space, or choose another results_dir"),
    (
        r"unrecognized arguments|unexpected keyword argument|extra inputs are not permitted",
        "this version of the engine does not know one of engine_args",
    ),
    (
        r"is not a valid model identifier|repository not found|couldn't connect to|offline mode is enabled|"
        r"localentrynotfounderror|cannot find an appropriate cached",
        "give a folder with the model's config.json, or random:tiny; names are only looked up in the local cache",
    ),
    (
        r"model architectures? .* (?:are|is) not supported|does not recognize this architecture|"
        r"has no vllm implementation|unrecognized model",
        "this version of the engine does not know the model's architecture: update it, or choose another model",
    ),
    (
        r"nccl error|ncclsystemerror|ncclunhandled|nccl.*failed",
        "run once with NCCL_DEBUG=WARN in environment; NCCL_P2P_DISABLE=1 or all_reduce: nccl often gets it going",
    ),
    (r"no cuda gpus are available|found no nvidia driver|driver too old", "see what llmprof doctor says of the driver"),
)


class Refused(Exception):  # noqa: N818 (the user reads this name)
    """Something that the user can change.

    Parameters
    ----------
    message : str
        What was found.
    advice : str, optional
        What to do.
    """

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice


def failure(error: BaseException, log: str) -> dict[str, Any]:
    """An error as ``worker.json`` has it.

    Parameters
    ----------
    error : BaseException
        What was raised.
    log : str
        End of the engine's output: where its workers write the cause.

    Returns
    -------
    dict
        ``type, message, advice, traceback``.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = str(error) or type(error).__name__
    found: str | None = error.advice if isinstance(error, Refused) else None
    if not found and isinstance(error, Exception):
        causes = errors_in(log)
        found = advice(_messages(error)) or advice("\n".join(causes))
        cause = causes[0] if causes else None
        if cause and cause not in message:
            message = f"{message} (its log: {cause})"
    return {"type": type(error).__name__, "message": message, "advice": found, "traceback": text[-_TRACEBACK:]}


def advice(text: str) -> str | None:
    """What to do about the first known error in the messages of errors."""
    low = text.lower()
    return next((what for pattern, what in _ADVICE if re.search(pattern, low)), None)


def _messages(error: BaseException | None) -> str:
    """Messages of an error and of those that led to it, without the paths and code of their tracebacks."""
    found: list[str] = []
    while error is not None:
        found.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(found)


def errors_in(log: str) -> list[str]:
    """Errors in a log; the first is the cause, later ones mostly its consequences."""
    return [line.strip()[:_LINE] for line in re.findall(_ERROR_LINE, log)]


class OwnLog:
    """The file that this process writes its output to, if it is one: engines tell the cause of a failure only there."""

    def __init__(self) -> None:
        found = os.fstat(1) if _is_open(1) else None
        self._path = Path("/proc/self/fd/1") if found and stat.S_ISREG(found.st_mode) else None
        self._from = found.st_size if self._path and found else 0

    def tail(self) -> str:
        """What was written since this object was made; the end of it."""
        return tail(self._path, self._from) if self._path else ""


def tail(path: Path, start: int = 0) -> str:
    """End of a file as text."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 8.0
_POLL_S = 0.05


def adopt() -> None:
    """Become the parent of processes whose own parent dies, so that none is lost (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int | None = None) -> list[int]:
    """Processes below one (this one if none is given), without the trackers of Python, which end by themselves."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents.setdefault(int(parent), []).append(int(entry.name))
    found, left = [], [os.getpid() if root is None else root]
    while left:
        below = parents.get(left.pop(), [])
        left += below
        found += [pid for pid in below if not _is_tracker(pid)]
    return found


def end_children(patience_s: float = _PATIENCE_S) -> list[int]:
    """End all processes below this one: asked first, then killed.

    Returns
    -------
    list of int
        Those that had to be killed.
    """
    killed: list[int] = []
    for how, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        left = descendants()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        if how == signal.SIGKILL:
            killed = left
        until = time.monotonic() + patience
        while left and time.monotonic() < until:
            _reap(left)
            time.sleep(_POLL_S)
            left = descendants()
        if not left:
            break
    return killed


def _reap(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


_EXPLAINED = 3
_INTERRUPTED = 130


def run_job(job: Mapping[str, Any], work: Callable[[Mapping[str, Any], Record], None]) -> int:
    """Run a job and write what there is of it, however it ends.

    Parameters
    ----------
    job : mapping
        What is run.
    work : callable
        Takes the job and the record.

    Returns
    -------
    int
        Exit status: 0, 3 for an error with an advice, 130 after an interrupt.
    """
    parser = argparse.ArgumentParser(description="Repeat this run.")
    parser.add_argument("--out", type=Path, help="folder for what it writes (default: a new one beside this script)")
    out = parser.parse_args().out or Path(__file__).parent / f"repeat-{time.strftime('%Y%m%d-%H%M%S')}"
    record = Record(out.absolute(), job)
    log = OwnLog()
    adopt()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    status = 0
    try:
        work(job, record)
    except BaseException as error:
        record.document["error"] = found = failure(error, tail(record.out / "server.log") + log.tail())
        record.event("error", found["message"])
        if isinstance(error, KeyboardInterrupt):
            status = _INTERRUPTED
        elif found["advice"]:
            status = _EXPLAINED
            traceback.print_exc(file=sys.stderr)
        else:
            raise
    else:
        record.event("done")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        record.write()
        killed = end_children()
        if killed:
            record.note(f"{len(killed)} processes of the engine did not end by themselves and were killed")
            record.write()
    return status


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")


_SAFE = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # a forked worker is lost to profilers, and CUDA cannot be used again after a fork
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # NVLink multicast hangs in graph replay under nsys, and must stay off on shared hosts
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
_ASK_S = 20


def set_defaults(values: Mapping[str, str]) -> None:
    """Set variables of the environment that are not set yet."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def guard(job: Mapping[str, Any]) -> None:
    """Set what every run needs, before an engine is imported."""
    set_defaults(_SAFE)
    if Path(job["model"]).is_dir():
        set_defaults({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    if job["all_reduce"] == "nccl":
        set_defaults({"VLLM_ALLREDUCE_USE_FLASHINFER": "0"})


def gpu_names() -> list[str] | None:
    """Names of the NVIDIA GPUs that this process may use; None where that is not known. No CUDA context is made."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        found = subprocess.run(  # noqa: S603
            [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in found.splitlines() if line.count(",") >= 2]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [name for _, _, name in rows]
    wanted = [one.strip() for one in chosen.split(",") if one.strip()]
    named = [next((n for i, u, n in rows if one == i or (len(one) > 3 and u.startswith(one))), None) for one in wanted]
    return [name for name in named if name is not None] if any(named) or not wanted else None


def cpu_name() -> str:
    """Name of the processor."""
    with contextlib.suppress(OSError):
        found = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if found:
            return found.group(1).strip()
    return os.uname().machine


def cpu_threads(ranks: int) -> dict[str, str]:
    """Variables that give each rank its share of the cores of a CPU."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks == 1:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if len(cores) < ranks:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    each = len(cores) // ranks
    shares = [cores[i * each : (i + 1) * each] for i in range(ranks)]
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, share)) for share in shares)}


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "spiece.model")
EXTENSION_MODULE = "llmprof_worker"


def vllm_folder() -> Path:
    """Folder of the installed vLLM.

    Raises
    ------
    Refused
        There is none.
    """
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise Refused(f"{sys.executable} has no vLLM", "give python: the interpreter of an environment that has vLLM")
    return Path(next(iter(found.submodule_search_locations)))


def fields_of(file: Path, *classes: str) -> set[str] | None:
    """Names of the annotated fields of classes in a source file; None if the file does not have them."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in classes]
    names = {
        item.target.id
        for node in found
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return names or None


def place(job: Mapping[str, Any], record: Record) -> str:
    """Write down the engine and its devices, and check that there are enough of them.

    Returns
    -------
    str
        ``cuda`` or ``cpu``.

    Raises
    ------
    Refused
        There are more ranks than GPUs, or the model's folder has no ``config.json``.
    """
    version = version_of("vllm", "vllm-cpu") or _written_version() or ""
    on_cpu = "cpu" in version or (version_of("vllm-cpu") is not None and version_of("vllm") is None)
    record.document["engine_version"] = version or None
    ranks = job["tensor_parallel_size"] * job["pipeline_parallel_size"]
    model = Path(job["model"])
    if (model.is_absolute() or model.is_dir()) and not (model / "config.json").is_file():
        raise Refused(
            f"the model's folder {model} {'has no config.json' if model.is_dir() else 'is missing'}",
            "give a folder with the model's config.json, or random:tiny",
        )
    record.document["platform"] = "cpu" if on_cpu else "cuda"
    if on_cpu:
        record.document["device_names"] = [cpu_name()]
        return "cpu"
    names = gpu_names()
    if names is not None:
        record.document["device_names"] = names[:ranks]
        if len(names) < ranks:
            raise Refused(
                f"the run needs {ranks} GPUs (tensor_parallel_size × pipeline_parallel_size), there are {len(names)}",
                "lower tensor_parallel_size or pipeline_parallel_size, or look at CUDA_VISIBLE_DEVICES",
            )
    return "cuda"


def _written_version() -> str | None:
    try:
        text = (vllm_folder() / "_version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"(?m)^(?:__version__ = )?version = ['\"]([^'\"]+)", text) or re.search(r"'(\d+\.\d[^']*)'", text)
    return found.group(1) if found else None


def environment(job: Mapping[str, Any], platform: str) -> None:
    """Set what vLLM needs on this platform, before it is imported."""
    ranks = job["tensor_parallel_size"] * job["pipeline_parallel_size"]
    if platform == "cpu":
        set_defaults(cpu_threads(ranks))
        if "kv_cache_memory_bytes" not in job["engine_args"]:
            set_defaults({"VLLM_CPU_KVCACHE_SPACE": "1"})  # GiB; it would go over the argument
        if job["pipeline_parallel_size"] == 1 and job["eager"] is not False:
            set_defaults({"TORCHDYNAMO_DISABLE": "1"})
    if importlib.util.find_spec("flashinfer") is None:
        set_defaults({"VLLM_USE_FLASHINFER_SAMPLER": "0"})
    alone = platform == "cpu" or os.environ.get("LLMPROF_IN_PROCESS") == "1"
    if ranks == 1 and not job["served"] and alone:
        set_defaults({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})


def has_tokenizer(job: Mapping[str, Any]) -> bool:
    """Whether the model comes with a tokenizer; a name on the hub is taken to have one."""
    folder = Path(job["model"])
    return not folder.is_dir() or any((folder / name).exists() for name in _TOKENIZERS)


def engine_options(
    job: Mapping[str, Any], record: Record, platform: str, *, also: Collection[str] = ()
) -> dict[str, Any]:
    """Arguments of the engine; those of ``engine_args`` that this version does not know are left out with a note.

    Parameters
    ----------
    job, record, platform
        As everywhere here.
    also : collection of str
        More names that are known.
    """
    eager = job["eager"]
    if eager is None and job["layer_annotations"]:
        eager = True
        record.note("eager: names of layers are lost inside CUDA graphs and compiled code")
    elif eager is None and platform == "cpu":
        eager = True
        record.note("eager: on a CPU, compiling takes longer than most runs; eager: false asks for it")
    parallel = job["tensor_parallel_size"] * job["pipeline_parallel_size"] > 1
    wanted = {
        "dtype": job["dtype"],
        "max_model_len": job["max_model_len"],
        "tensor_parallel_size": job["tensor_parallel_size"],
        "pipeline_parallel_size": job["pipeline_parallel_size"],
        "distributed_executor_backend": "mp" if parallel else None,
        "seed": job["seed"],
        "load_format": "dummy" if job["random_weights"] else None,
        "skip_tokenizer_init": True if not has_tokenizer(job) else None,
        "enforce_eager": eager,
        "enable_prefix_caching": False,
        "disable_custom_all_reduce": {"nccl": True, "custom": False}.get(job["all_reduce"]),
        "worker_extension_cls": f"{EXTENSION_MODULE}.LlmprofWorker",
    }
    if platform == "cpu" and job["pipeline_parallel_size"] > 1:
        # eager pipelines of 0.32 stop at an assertion on a CPU: their warm-up is skipped
        wanted |= {"enforce_eager": False, "compilation_config": {"mode": 2, "backend": "eager"}}
        record.note("enforce_eager is false: vLLM's pipelines on a CPU need it")
    if platform == "cpu":
        wanted["max_num_seqs"] = max(8, job["batch_size"])
    known = fields_of(vllm_folder() / "engine" / "arg_utils.py", "EngineArgs", "AsyncEngineArgs")
    known = known and known.union(also)
    if known is None:
        record.note("the engine's options could not be listed, so none was left out")
    dropped = [name for name in job["engine_args"] if known is not None and name not in known]
    for name in dropped:
        record.note(f"engine option {name} ignored: vLLM {record.document['engine_version']} does not know it")
    record.document["dropped_engine_args"] = dropped
    options = {name: value for name, value in wanted.items() if known is None or name in known}
    options |= {name: value for name, value in job["engine_args"].items() if name not in dropped}
    return {name: value for name, value in options.items() if value is not None}


@contextlib.contextmanager
def extension(out: Path, text: str) -> Iterator[None]:
    """Let this process and its children find the module of the workers' extension; its folder is removed at the end."""
    folder = out / ".extension"
    folder.mkdir(exist_ok=True)
    folder.joinpath(f"{EXTENSION_MODULE}.py").write_text(text, encoding="utf-8")
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def profiler_options(job: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Arguments of the engine for its profiler; versions up to 0.12 are asked by the environment, which is set here.

    Returns
    -------
    dict
        ``{"profiler_config": {…}}``, or nothing.
    """
    if job["profiler"] == "none":
        return {}
    folder = vllm_folder()
    engine = fields_of(folder / "engine" / "arg_utils.py", "EngineArgs")
    if engine is not None and "profiler_config" not in engine:
        _by_environment(job, record)
        return {}
    wanted: dict[str, Any] = {"profiler": job["profiler"], "max_iterations": job["max_iterations"]}
    if job["profiler"] == "torch":
        wanted |= {
            "torch_profiler_dir": str(_traces(record)),
            "torch_profiler_with_stack": job["with_stack"],
            "torch_profiler_record_shapes": job["record_shapes"],
            "torch_profiler_dump_cuda_time_total": False,  # a table in the log, for seconds of work
            "ignore_frontend": True,  # the server's own process has no work of the model
        }
    known = fields_of(folder / "config" / "profiler.py", "ProfilerConfig")
    _check_iterations(job, record, known is None or "max_iterations" in known)
    return {"profiler_config": {name: value for name, value in wanted.items() if known is None or name in known}}


def _by_environment(job: Mapping[str, Any], record: Record) -> None:
    variables = (vllm_folder() / "envs.py").read_text(encoding="utf-8")
    if job["profiler"] == "cuda":
        wanted = {"VLLM_TORCH_CUDA_PROFILE": "1"}
    else:
        wanted = {
            "VLLM_TORCH_PROFILER_DIR": str(_traces(record)),
            "VLLM_TORCH_PROFILER_RECORD_SHAPES": str(int(job["record_shapes"])),
            "VLLM_TORCH_PROFILER_WITH_STACK": str(int(job["with_stack"])),
            "VLLM_TORCH_PROFILER_USE_GZIP": "1",
            "VLLM_TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL": "0",
            "VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM": "1",
        }
    if job["max_iterations"]:
        wanted["VLLM_PROFILER_MAX_ITERS"] = str(job["max_iterations"])
    _check_iterations(job, record, "VLLM_PROFILER_MAX_ITERS" in variables)
    os.environ.update({name: value for name, value in wanted.items() if name in variables})


def cuda_profiler_is_known() -> bool:
    """Whether this version starts and stops CUDA's profiler by itself."""
    engine = fields_of(vllm_folder() / "engine" / "arg_utils.py", "EngineArgs")
    if engine is None or "profiler_config" in engine:
        return True
    return "VLLM_TORCH_CUDA_PROFILE" in (vllm_folder() / "envs.py").read_text(encoding="utf-8")


def _check_iterations(job: Mapping[str, Any], record: Record, known: bool) -> None:
    if job["max_iterations"] and not known:
        record.note("max_iterations ignored: this version of vLLM records the whole window")


def _traces(record: Record) -> Path:
    folder = record.out / "traces"
    folder.mkdir(exist_ok=True)
    return folder


def run_vllm(job: Mapping[str, Any], record: Record, worker: str) -> None:
    """Import, build, warm up, measure, profile.

    Parameters
    ----------
    job : mapping
        What is run.
    record : Record
        Takes stages, requests and facts.
    worker : str
        Text of the module of the workers' extension.
    """
    guard(job)
    platform = place(job, record)
    environment(job, platform)
    options = engine_options(job, record, platform) | profiler_options(job, record)
    options["disable_log_stats"] = False  # without it, requests have no times
    with extension(record.out, worker):
        with record.stage("import", message="importing vLLM"):
            vllm: Any = importlib.import_module("vllm")
            engine_class, sampling_class = vllm.LLM, vllm.SamplingParams
        with record.stage("init", message="starting the engine"):
            llm = engine_class(model=job["model"], **options)
        try:
            _generate_all(job, record, llm, sampling_class)
            _facts(record, llm)
        finally:
            with contextlib.suppress(AttributeError):
                llm.llm_engine.engine_core.shutdown()


def _generate_all(job: Mapping[str, Any], record: Record, llm: Any, sampling_class: Any) -> None:
    prompts: Sequence[Any] = job["prompts"] or [{"prompt_token_ids": ids} for ids in job["prompt_token_ids"]]
    own = {"detokenize": False} if llm.llm_engine.vllm_config.model_config.skip_tokenizer_init else {}
    sampling = [
        sampling_class(
            temperature=job["temperature"],
            max_tokens=job["max_tokens"],
            ignore_eos=job["ignore_eos"],
            seed=job["seed"] + k if job["temperature"] > 0 else None,
            **own,
        )
        for k in range(len(prompts))
    ]

    def generate(phase: str, repeats: int) -> list[Any]:
        outputs: list[Any] = []
        for i in range(repeats):
            with record.stage(phase, repeat=i, total=repeats):
                outputs = llm.generate(prompts, sampling, use_tqdm=False)
            for k, output in enumerate(outputs):
                record.request(phase, i, k, **_times(output))
        return outputs

    if job["layer_annotations"]:
        count = llm.collective_rpc("llmprof_annotate", args=(job["profiler"] == "cuda",))
        record.note(f"names of {count[0]} modules are in the trace; they cost time")
    outputs = generate("warmup", job["warmup"])
    if job["plain"] or job["profiler"] == "none":
        outputs = generate("plain", job["repeat"])
    if job["profiler"] != "none":
        with record.stage("start_profile"):
            _profile(job, llm, on=True)
        outputs = generate("profiled", job["profile_repeats"])
        with record.stage("stop_profile", message="writing the trace"):
            _profile(job, llm, on=False)
    texts = [output.outputs[0].text for output in outputs]
    record.outputs(texts, [list(output.outputs[0].token_ids) for output in outputs])


def _profile(job: Mapping[str, Any], llm: Any, *, on: bool) -> None:
    if job["profiler"] == "cuda" and not cuda_profiler_is_known():
        llm.collective_rpc("llmprof_cuda_profiler", args=(on,))
    else:
        (llm.start_profile if on else llm.stop_profile)()


def _times(output: Any) -> dict[str, Any]:
    """What vLLM tells of a request. Its clocks differ: arrival is wall-clock time, the rest is the engine's own."""
    tokens = len(output.outputs[0].token_ids)
    found: dict[str, Any] = {
        "prompt_tokens": len(output.prompt_token_ids) if output.prompt_token_ids is not None else None,
        "output_tokens": tokens,
        "finish_reason": output.outputs[0].finish_reason,
    }
    told = output.metrics
    first, last = getattr(told, "first_token_ts", 0), getattr(told, "last_token_ts", 0)
    if not first or not last:
        return found
    decode, to_first = last - first, getattr(told, "first_token_latency", 0) or None
    return found | {
        "start_ns": round(told.arrival_time * 1e9) if told.arrival_time else None,
        "ttft_s": to_first,
        "tpot_s": decode / (tokens - 1) if tokens > 1 else None,
        "queue_s": told.scheduled_ts - told.queued_ts,
        "prefill_s": first - told.scheduled_ts,
        "decode_s": decode,
        "e2e_s": to_first + decode if to_first else None,
    }


def _facts(record: Record, llm: Any) -> None:
    facts = llm.collective_rpc("llmprof_facts")
    if record.document["platform"] == "cuda" and all(fact["device"] for fact in facts):
        record.document["device_names"] = [fact["device"] for fact in facts]
    record.document["peak_memory_bytes"] = {str(fact["rank"]): fact["peak"] for fact in facts}
    cache = llm.llm_engine.vllm_config.cache_config
    blocks, size = cache.num_gpu_blocks, cache.block_size
    record.document["kv_cache"] = {
        "blocks": blocks,
        "block_size": size,
        "tokens": blocks * size if blocks and size else None,
        "bytes": facts[0]["kv_bytes"],
        "peak_usage": None,
    }


if __name__ == "__main__":
    sys.exit(run_job(JOB, lambda job, record: run_vllm(job, record, EXTENSION)))
