"""Stand-in packages of vLLM in the form of several versions, and runs of the engine scripts on
them.
"""

import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmprof.run.launch import ExperimentConfig, engines
from llmprof.run.launch.run import command as run_command
from llmprof.run.workers import JOB

HERE = Path(__file__).parent / "stand_ins" / "vllm"
COMMON = [
    *(
        "model",
        "dtype",
        "max_model_len",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "seed",
        "load_format",
    ),
    *(
        "distributed_executor_backend",
        "skip_tokenizer_init",
        "enforce_eager",
        "enable_prefix_caching",
        "max_num_seqs",
    ),
    *(
        "disable_custom_all_reduce",
        "worker_extension_cls",
        "disable_log_stats",
        "served_model_name",
    ),
    "compilation_config",
]
TORCH = ["dir", "with_stack", "record_shapes", "with_memory", "dump_cuda_time_total", "use_gzip"]


def job_of(program):
    """The job that is packed in a program."""
    return json.loads(zipfile.ZipFile(io.BytesIO(program)).read(JOB))["job"]


def job(**changes):
    """A job of two short prompts."""
    config = ExperimentConfig(
        model="m", batch_size=2, input_tokens=3, max_tokens=3, max_model_len=128, repeat=2
    )
    usual, _ = run_command.job(config, "m")
    usual |= {
        "model": "",
        "random_weights": True,
        "prompt_token_ids": [[5, 6, 7], [8, 9, 10]],
        "synthetic": None,
    }
    usual |= {"max_iterations": 0, "prefix_caching": False}
    usual["server"] |= {"num_prompts": 4, "max_concurrency": 2, "health_timeout_s": 30.0}
    return usual | changes


@dataclass
class Ran:
    """How a script ended and what it left."""

    status: int
    out: Path
    calls: list[dict[str, Any]]
    errors: str
    worker: dict[str, Any] = field(default_factory=dict)

    def called(self, what):
        """What the stand-in was asked, of one kind."""
        return [call for call in self.calls if call["what"] == what]

    @property
    def order(self):
        """What the stand-in was asked, in order."""
        return [call["what"] for call in self.calls]


class StandInVllm:
    """A package ``vllm`` of some version in a folder, and GPUs that ``nvidia-smi`` tells of."""

    how: Callable[..., object]

    def __init__(self, folder, version="0.33.0", gpus=2):
        self.folder, self.version = folder, version
        self.model = folder / "tiny"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        site = folder / "site"
        info = site / f"vllm-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        minor = int(version.split(".")[1])
        self.old = minor < 13
        package = site / "vllm"
        for name in ("engine", "config", "entrypoints/openai", "entrypoints/cli"):
            (package / name).mkdir(parents=True)
        for path in [package, *(p for p in package.rglob("*") if p.is_dir())]:
            (path / "__init__.py").touch()
        (package / "__init__.py").write_text((HERE / "llm.py").read_text())
        (package / "entrypoints" / "cli" / "main.py").write_text((HERE / "server.py").read_text())
        fields = COMMON if self.old else [*COMMON, "profiler_config", "gdn_prefill_backend"]
        (package / "engine" / "arg_utils.py").write_text(_class("EngineArgs", fields))
        (package / "entrypoints" / "openai" / "cli_args.py").write_text(
            _class("FrontendArgs", ["api_key"])
        )
        profiler = [
            "profiler",
            *(f"torch_profiler_{name}" for name in TORCH),
            "max_iterations",
            "ignore_frontend",
        ]
        if not self.old:
            (package / "config" / "profiler.py").write_text(_class("ProfilerConfig", profiler))
        variables = ["DIR", "RECORD_SHAPES", "WITH_STACK"] + (["USE_GZIP"] if minor >= 12 else [])
        known = [f"VLLM_TORCH_PROFILER_{name}" for name in variables]
        known += ["VLLM_TORCH_CUDA_PROFILE"] if minor >= 11 else []
        known += ["VLLM_PROFILER_MAX_ITERS"] if minor >= 12 else []
        (package / "envs.py").write_text(
            "\n".join(f'{name} = ""' for name in (known if self.old else []))
        )
        smi = folder / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        rows = "\n".join(f"{i}, GPU-{i}{i}{i}{i}, NVIDIA H200" for i in range(gpus))
        smi.write_text(f"#!/bin/sh\ncat <<'END'\n{rows}\nEND\n")
        smi.chmod(smi.stat().st_mode | stat.S_IXUSR)

    def environment(self, how):
        """Environment in which a script finds the stand-ins, and nothing of the machine's own."""
        return {
            "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]]),
            "PYTHONPATH": str(self.folder / "site"),
            "STAND_IN_CALLS": str(self.folder / "calls.jsonl"),
            "STAND_IN_VLLM": json.dumps({"old": self.old, **how}),
        }

    def start(self, how=None, **changes):
        """Start the script of a job."""
        script = self.folder / "inference_script.pyz"
        script.write_bytes(engines.script(job(**{"model": str(self.model), **changes})))
        extra = (how or {}).get("environment", {})
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(script), "--out", str(self.folder / "out")],
                env=self.environment(how or {}) | extra,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def finish(self, process):
        """Wait for a script and gather what it left."""
        status = process.wait(60)
        log = (self.folder / "log").read_text()
        worker = self.folder / "out" / "worker.json"
        return Ran(
            status,
            self.folder / "out",
            self.calls(),
            log,
            json.loads(worker.read_text()) if worker.exists() else {},
        )

    def calls(self, what=""):
        """What the stand-in was asked so far, of one kind or all."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if not what or call["what"] == what]

    def run(self, how=None, **changes):
        """Run a job to its end."""
        return self.finish(self.start(how, **changes))


def _class(name, fields):
    return "\n".join([f"class {name}:", *(f"    {field}: object = None" for field in fields), ""])
