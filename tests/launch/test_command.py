from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmprof.launch import ExperimentConfig, plan
from llmprof.launch.run import command

RUN = Path("/runs/r")
WORKER = ["/venv/bin/python", "/runs/r/inference_script.py", "--out", "/runs/r"]


def config(**values) -> ExperimentConfig:
    return ExperimentConfig.from_dict({"model": "random:tiny", "python": "/venv/bin/python"} | values)


def test_ncu_takes_exactly_the_kernels_that_were_chosen():
    made = command.ncu(config(), WORKER, RUN / "report", kernels=["gemm<4>", "kern(x)"], skip=7, count=3, device=1)
    assert made[13:21] == [
        *("--kernel-name-base", "function", "--devices", "1"),
        *("--kernel-name", r"regex:^(gemm<4>|kern\(x\))$"),
        *("--launch-skip", "7"),
    ]
    assert made[21:23] == ["--launch-count", "3"]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "cross_device_reduce_1stage",
        "multimem_all_reduce_kernel",
        "allreduce_fusion_kernel_oneshot_lamport",
        "two_shot_all_reduce_kernel",
    ],
)
def test_collectives_never_pass_the_filter_of_a_run_on_several_gpus(name):
    made = command.ncu(config(tensor_parallel_size=2), WORKER, RUN / "report")
    pattern = made[made.index("--kernel-name") + 1].removeprefix("regex:")
    assert not re.search(pattern, name)
    assert re.search(pattern, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT")
    assert re.search(pattern, "fused_add_rms_norm_kernel")
    assert "--kernel-name" not in command.ncu(config(), WORKER, RUN / "report"), "one GPU waits for nobody"


def test_options_of_ncu_go_over_everything():
    options = {
        "kernel_name": "regex:flash", "launch_skip": 0, "launch_count": 2, "set": "basic",
        "options": {"clock-control": "base", "--cache-control": "none", "force-overwrite": False, "replay-mode": None},
    }  # fmt: skip
    made = command.ncu(config(ncu_options=options), WORKER, RUN / "report", kernels=["a"], skip=5, count=9)
    pairs = dict(zip(made[1::2], made[2::2], strict=False))
    assert pairs["--kernel-name"] == "regex:flash"
    assert (pairs["--launch-skip"], pairs["--launch-count"], pairs["--set"]) == ("0", "2", "basic")
    assert (pairs["--clock-control"], pairs["--cache-control"]) == ("base", "none")
    assert not {"--force-overwrite", "--replay-mode"} & set(made)


@pytest.mark.parametrize("name", ["gemm", "regex:gemm", "^nvjet|gemm$", "."])
def test_collectives_are_left_out_whatever_name_is_asked_for(name):
    several = config(ncu_options={"kernel_name": name}, tensor_parallel_size=2)
    made = command.ncu(several, WORKER, RUN / "report")
    pattern = made[made.index("--kernel-name") + 1].removeprefix("regex:")
    assert re.search(pattern, "cutlass_gemm" if name != "." else "x")
    for waits in ("ncclDevKernel_AllReduce_gemm", "cross_device_reduce_1stage", "all_gather_gemm"):
        assert not re.search(pattern, waits)


def test_what_would_break_a_shell_is_one_argument():
    nasty = "/models/a b; touch $(x) `y` \"z\" 'q' \n"
    made = command.worker(config(python=f"{nasty}/python"), Path(nasty), RUN)
    assert made[1] == nasty
    assert len(made) == 4


# --- environment


def test_the_environment_makes_captures_right():
    found = command.environment(config())
    assert found == {
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        "VLLM_USE_NCCL_SYMM_MEM": "0",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    assert "HF_HUB_OFFLINE" not in command.environment(config(model="org/name"))


def test_the_configuration_has_the_last_word_on_the_environment():
    made = config(environment={"NCCL_NVLS_ENABLE": "1", "MINE": "x"})
    found = command.whole_environment(made, {"NCCL_NVLS_ENABLE": "2", "HOME": "/h"})
    assert (found["NCCL_NVLS_ENABLE"], found["MINE"], found["HOME"]) == ("1", "x", "/h")


def test_secrets_are_kept_from_reports_that_hold_the_environment():
    inherited = dict.fromkeys(
        ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "GOOGLE_CREDENTIALS", "BASIC_AUTH"], "s"
    ) | {"TOKENIZERS_PARALLELISM": "true", "PATH": "/bin", "AUTHOR": "a"}
    kept = command.whole_environment(config(profile_mode="nsys"), inherited)
    assert "s" not in kept.values()
    assert {"PATH", "AUTHOR"} <= set(kept)
    assert command.whole_environment(config(profile_mode="torch"), inherited)["HF_TOKEN"] == "s"
    asked = config(profile_mode="ncu", environment={"HF_TOKEN": "mine"})
    assert command.whole_environment(asked, inherited)["HF_TOKEN"] == "mine"


# --- plan


@pytest.mark.parametrize(
    ("mode", "passes"),
    [
        ("inference_only", [("engine", "/venv/bin/python")]),
        ("torch", [("engine", "/venv/bin/python")]),
        ("nsys", [("nsys", "nsys")]),
        ("ncu", [("ncu", "ncu")]),
        ("nsys_ncu", [("nsys", "nsys"), ("ncu", "ncu")]),
    ],
)
def test_the_plan_lists_the_passes_and_writes_nothing(tmp_path, monkeypatch, mode, passes):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = plan(config(profile_mode=mode, results_dir=str(tmp_path / "results")))
    assert [(name, argv[0]) for name, argv in made] == passes
    assert not (tmp_path / "results").exists()
