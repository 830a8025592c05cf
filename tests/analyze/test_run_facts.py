"""What ran, as far as a trace says it, on recordings whose model, engine and device are known."""

from pathlib import Path

import pytest

import llmprof
from llmprof.analyze import findings
from llmprof.analyze.findings.facts import run_facts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "known", "batch"),
    [
        ("captures/nsys_tp1_layer_nvtx", ("Qwen3, 36 layers", "vLLM", "NVIDIA H200"), 4),
        ("captures/torch_tp4_eager_nccl", ("name unknown, 28 layers", "vLLM", "4 x NVIDIA H200"), 4),
        ("captures/torch_transformers_generate", ("name unknown, 8 layers", None, "NVIDIA H200"), 4),
        ("real/nsys/nsysai_mfu_2gpu_before.sqlite", (None, None, "2 devices, name unknown"), None),
    ],
)
def test_what_ran(path: str, known: tuple[str | None, ...], batch: int | None, shared: Path) -> None:
    trace = llmprof.read(shared / path)
    found = dict(run_facts(trace).select("what", "value").iter_rows())
    assert (found["model"], found["engine"], found["device"]) == known
    assert (found["batch"] is None) if batch is None else found["batch"].startswith(f"{batch} requests in decode")
    if found["step time"] is not None:
        # the same time that findings call their denominator
        assert findings(trace)["denominator"].str.contains(f"{found['step time']} on average", literal=True).any()
