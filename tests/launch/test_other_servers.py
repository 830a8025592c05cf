"""Scripts of SGLang's and TensorRT-LLM's servers on stand-ins: their command lines, and when the window is open.

What the stand-ins answer is what the documentation of the two says; nothing here has seen the real servers.
"""

from __future__ import annotations

import json
import stat
import sys

import pytest

from llmprof.errors import ConfigError
from llmprof.launch import ExperimentConfig, plan
from tests.launch.vllm_stand_in import HERE, StandInVllm, job
from tests.processes import is_running

COMPLETIONS = "/v1/completions"


@pytest.fixture
def site(tmp_path):
    """Stand-ins of both servers, and a model with a tokenizer."""
    made = StandInVllm(tmp_path)
    server = (HERE / "server.py").read_text()
    package = tmp_path / "site" / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(server)
    for name, version in (("sglang", "0.5.11"), ("tensorrt_llm", "1.2.0")):
        info = tmp_path / "site" / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    program = tmp_path / "bin" / "trtllm-serve"
    program.write_text(f"#!{sys.executable}\n{server}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (made.model / "tokenizer.json").write_text("{}")
    return made


def run(site, name, how=None, **changes):
    return site.run(how, engine=name, served=True, repeat=1, random_weights=False, **changes)


def argv_of(ran):
    (call,) = ran.called("serve")
    return call["argv"]


def test_sglang_is_told_to_record_the_profiled_requests_alone(site):
    ran = run(site, "sglang", tensor_parallel_size=2, engine_args={"mem_fraction_static": 0.7, "enable_metrics": True})
    assert ran.status == 0, ran.errors
    assert ran.order == [
        *("serve", "child", *[COMPLETIONS] * 2, *[COMPLETIONS] * 4),
        *("/start_profile", *[COMPLETIONS] * 4, "/stop_profile", "interrupted"),
    ]
    argv = argv_of(ran)
    port = argv[-1]
    assert argv == [
        *("--model-path", str(site.model), "--served-model-name", "model", "--dtype", "bfloat16"),
        *("--context-length", "128", "--tp-size", "2", "--pp-size", "1", "--random-seed", "0", "--disable-radix-cache"),
        *("--mem-fraction-static", "0.7", "--enable-metrics", "--host", "127.0.0.1", "--port", port),
    ]
    (began,) = ran.called("/start_profile")
    assert began["body"] == {
        "output_dir": str(ran.out / "traces"), "activities": ["CPU", "GPU"], "record_shapes": True, "with_stack": False,
    }  # fmt: skip
    phases = [(one["phase"], one["request"]) for one in ran.worker["requests"]]
    wanted = {"warmup": 2, "plain": 4, "profiled": 4}
    assert phases == [(phase, k) for phase, count in wanted.items() for k in range(count)]
    assert ran.worker["engine_version"] == "0.5.11"
    assert any("never on hardware" in note for note in ran.worker["notes"])
    assert not is_running(ran.called("child")[0]["pid"])


def test_trtllm_serve_gets_its_window_by_the_environment(site, tmp_path):
    server = job()["server"] | {"profile_from_iteration": 40}
    seen = tmp_path / "environment.json"
    program = tmp_path / "bin" / "trtllm-serve"
    text = program.read_text()
    write = f"import json, os\nopen({str(seen)!r}, 'w').write(json.dumps(dict(os.environ)))\n"
    program.write_text(text.replace('"""A stand-in', f'{write}"""A stand-in', 1))
    ran = run(site, "tensorrt_llm", server=server, max_iterations=30, engine_args={"max_batch_size": 8})
    assert ran.status == 0, ran.errors
    assert ran.order == ["serve", "child", *[COMPLETIONS] * 10, "interrupted"]
    assert argv_of(ran)[:-4] == [
        *(str(site.model), "--backend", "pytorch", "--tp_size", "1", "--pp_size", "1", "--max_seq_len", "128"),
        *("--max_batch_size", "8"),
    ]
    values = json.loads(seen.read_text())
    assert values["TLLM_PROFILE_START_STOP"] == "40-70"
    assert values["TLLM_TORCH_PROFILE_TRACE"] == str(ran.out / "traces" / "rank0.pt.trace.json")
    assert ran.worker["engine_version"] == "1.2.0"
    assert any("iterations 40-70" in note for note in ran.worker["notes"])
    run(site, "tensorrt_llm", profiler="none")
    assert "TLLM_PROFILE_START_STOP" not in json.loads(seen.read_text())


@pytest.mark.parametrize("name", ["sglang", "tensorrt_llm"])
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"layer_annotations": True}, "layer_annotations works with the engine vllm only"),
        ({"memory_snapshot": True}, "memory_snapshot works with the engine vllm only"),
        ({"tensor_parallel_size": 4}, "needs 4 GPUs"),
    ],
)
def test_what_they_cannot_do_is_refused_before_a_server_starts(site, name, changes, found):
    ran = run(site, name, **changes)
    assert ran.status == 3
    assert found in ran.worker["error"]["message"]
    assert ran.calls == []


def test_a_model_without_a_tokenizer_is_refused_and_so_are_random_weights_where_they_cannot_be(site):
    ran = site.run(None, engine="tensorrt_llm", served=True, random_weights=True)
    assert "random weights" in ran.worker["error"]["message"]
    (site.model / "tokenizer.json").unlink()
    assert "no tokenizer" in run(site, "sglang").worker["error"]["message"]


def test_a_server_that_dies_or_refuses_is_explained(site):
    ran = run(site, "sglang", {"dies": True})
    assert "CUDA out of memory" in ran.worker["error"]["message"]
    ran = run(site, "tensorrt_llm", {"refuses": True})
    assert ran.worker["error"]["message"] == 'the server answered 404: {"error": "no such model"}'
    assert not is_running(ran.called("child")[0]["pid"])


def test_command_lines_under_nsys_and_modes_that_are_refused(tmp_path):
    config = ExperimentConfig(
        model=str(tmp_path), engine="tensorrt_llm", served=True, profile_mode="nsys", python="/usr/bin/python3"
    )
    ((name, argv),) = plan(config)
    assert (name, argv[1]) == ("nsys", "profile")
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--trace-fork-before-exec=true"} <= set(argv)
    with pytest.raises(ConfigError, match="tensorrt_llm does not support profile_mode ops; expected one of inference"):
        config.replace(profile_mode="ops")
    with pytest.raises(ConfigError, match="sglang runs as a server only"):
        config.replace(engine="sglang", served=False, profile_mode="torch")
