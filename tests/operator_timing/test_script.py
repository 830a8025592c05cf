"""Scripts that run operators alone: what is in them, and that they run."""

import ast
import os
import sys
from pathlib import Path

import pytest

import llmprof
from llmprof.analyze.operator_arguments import RecordedTensor
from llmprof.errors import LaunchError
from llmprof.run.operator_timing.script import expression
from tests.operator_timing.recordings import MM, NORM, recorded


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    evil = '"""\nimport os  # \\'
    return recorded(
        tmp_path_factory.mktemp("trace"),
        [
            ("aten::mm", MM, [(f"secret_gemm{evil}", 4.0)]),
            ("_C::rms_norm", NORM, [("norm", 2.0)]),
            (f"aten::mm{evil}", MM, [("gemm", 1.0)]),
            (
                "aten::mul",
                {**MM, "Input Dims": [[4, 8], [4, 8]], "Input Strides": None},
                [("mul", 1.5)],
            ),
        ],
    )


@pytest.fixture
def python(root, monkeypatch):
    found = os.environ.get("LLMPROF_ENGINE_PYTHON") or str(root / ".venv-vllm" / "bin" / "python")
    if not Path(found).exists():
        pytest.skip("no interpreter with PyTorch")
    monkeypatch.setenv(
        "OMP_NUM_THREADS", "1"
    )  # threads that wait for each other take long on a busy machine
    return found


def test_what_is_in_it(trace):
    made = llmprof.time_operators(trace, top=9)
    assert made.operators["operator"].to_list() == ["aten::mm", "_C::rms_norm", "aten::mul"]
    tree = ast.parse(made.script)
    assert [one.name for one in tree.body if isinstance(one, ast.FunctionDef)][-3:] == [
        "operator_1",
        "operator_2",
        "operator_3",
    ]
    assert "MadeTensor((8, 2), (1, 8), 'bfloat16')" in made.script
    assert "1e-05," in made.script
    for word in ("secret", "import os  #", "llmprof.run.operator_timing", "noqa", "recorded.pt"):
        assert word not in made.script
    assert llmprof.time_operators(trace).operators.height == 1


def test_arguments_as_python():
    values = (
        True,
        -3,
        1e-6,
        "auto",
        (1, 2),
        None,
        RecordedTensor((2,), (1,), "int64", ("below", 5)),
    )
    assert [ast.literal_eval(expression(one)) for one in values[:6]] == [
        True,
        -3,
        1e-6,
        "auto",
        [1, 2],
        None,
    ]
    assert expression(values[6]) == "MadeTensor((2,), (1,), 'int64', 'below', 5)"
    assert expression(float("-inf")) == "float('-inf')"


def test_an_interpreter_without_torch(trace):
    with pytest.raises(LaunchError, match="No module named 'torch'"):
        llmprof.time_operators(trace).run(python=sys.executable, timeout_s=60)


@pytest.mark.slow
def test_it_runs(python, trace):
    made = llmprof.time_operators(trace, top=9)
    found = made.run(python=python, device="cpu", seconds=0.02)
    assert found["operator"].to_list() == ["aten::mm", "_C::rms_norm", "aten::mul"]
    ran = found.filter(found["operator"].str.starts_with("aten"))
    assert (ran["warm_ns"] > 0).all()
    assert (ran["cold_ns"] > 0).all()
    assert ran["weights_cold_ns"].is_not_null().to_list() == [True, False]


@pytest.mark.slow
def test_operators_of_a_recording_on_a_cpu(python, sample_trace):
    names = ("aten::mul", "aten::copy_", "aten::index_select")
    rows = llmprof.analyze.operator_calls(
        sample_trace("torch_cpu_tp2_layer_annotations")
    ).drop_nulls("key")
    rows = rows.filter(rows["operator"].is_in(names)).unique(
        "operator", keep="first", maintain_order=True
    )
    assert rows.height == 3
    made = llmprof.run.operator_timing.OperatorTiming(
        llmprof.run.operator_timing.script.written(rows), rows
    )
    found = made.run(python=python, device="cpu", seconds=0.02)
    assert found.filter(found["warm_ns"].is_null())["words"].to_list() == []


@pytest.mark.slow
def test_all_reduce_in_processes(python, tmp_path, sample_trace):
    trace = sample_trace("torch_cpu_tp2_layer_annotations")
    made = llmprof.time_operators(trace, operator="allreduce")
    found = made.run(python=python, device="cpu", seconds=0.02)
    assert found["kind"].to_list() == ["all_reduce"]
    assert found["warm_ns"][0] > 0
    assert found["clock"].to_list() == ["wall"]
