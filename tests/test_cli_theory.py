import json

import polars as pl
import pytest


def test_a_model_on_a_device_is_a_table_of_its_components(run):
    code, out, err = run("theory llama2-70b --gpu a100-sxm-40gb --tp 8 --batch-size 20 --predict")
    assert (code, out) == (2, "")
    assert "no calibration of A100" in err
    code, out, err = run("theory llama2-70b --gpu a100-sxm-40gb --tp 8 --batch-size 20")
    assert (code, err) == (0, "")
    assert "68.98 G parameters" in out
    assert "down_proj" in out
    assert "lower bounds" in out
    like = json.loads(run("theory Qwen3-8B --gpu H200 --predict --json")[1])
    assert like["predicted_outside"] == []
    assert like["predicted_decode_s"] > like["decode_latency_s"]
    argv = ("theory", "DeepSeek-V3", "--gpu", "H200", "--tp", "8", "--predict")
    assert [
        reason.split()[0] for reason in json.loads(run(*argv, "--json")[1])["predicted_outside"]
    ] == [
        "layers",
        "weights",
        "layout",
        "parameters",
    ]
    assert "latent_attention" in run(*argv)[1].split("Note: ")[1]


def test_json_and_csv_for_programs(run, tmp_path):
    said = json.loads(run("theory Qwen3-8B --gpu H200 --json --mode training --dp 8 --zero 2")[1])
    assert said["parameters"] == 8190735360
    assert said["training"]["gradients"] == 2 * 8190735360 / 8
    assert {"phase", "component", "bound"} <= set(said["components"][0])
    file = tmp_path / "components.csv"
    assert run(f"theory Qwen3-8B --gpu H200 --csv {file}")[0] == 0
    assert pl.read_csv(file)["phase"].unique().sort().to_list() == ["decode", "prefill"]


def test_a_trace_is_joined_with_its_bound(run):
    code, out, _ = run("theory Qwen2.5-1.5B --trace sample:torch_tp1_cudagraph")
    assert code == 0
    assert "kernel below the roof" in out
    assert "98.8 % of the device time" in out
    assert (
        "H100 is taken"
        in run("theory Qwen2.5-1.5B --gpu H100 --trace sample:torch_tp1_cudagraph")[1]
    )
    said = json.loads(run("theory Qwen2.5-1.5B --trace sample:torch_tp1_cudagraph --json")[1])
    assert said["coverage"]["below_bound"] == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "no model"),
        (("Qwen3-8B",), "no device"),
        (("Qwen3-9B", "--gpu", "H200"), "Qwen3-8B"),
        (("Qwen3-8B", "--gpu", "H201"), "H200"),
        (("Qwen3-8B", "--gpu", "H200", "--tp", "3"), "attention heads"),
        (("Qwen3-8B", "--gpu", "H200", "--hbm-efficiency", "0"), "efficiency is 0"),
    ],
)
def test_errors_say_what_to_do(run, argv, said):
    code, _, err = run("theory", *argv)
    assert code == 2
    assert said in err


@pytest.mark.slow
def test_charts_are_drawn_into_a_folder(run, tmp_path):
    assert run(f"theory Qwen2.5-0.5B --gpu H200 --charts {tmp_path}/c")[0] == 0
    names = {
        "structure",
        "shares",
        "parameters",
        "roofline",
        "batch",
        "tensor_parallel",
        "length",
        "memory",
    }
    assert {file.stem for file in (tmp_path / "c").glob("*.png")} == names
