"""The hunt: what an independent look finds in a file must not be in its copy, and the copy gives
the same tables.
"""

import re
import time
import warnings
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import read_metrics
from llmprof.errors import LlmprofError, TraceWarning
from llmprof.readers.redaction.copying import redacted_into
from llmprof.readers.registry import detect
from llmprof.trace.storage.pseudonyms import Pseudonyms
from tests.redaction import hunt

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
_FAST_BYTES = 120_000


_ALONE = {"sample.json", "config.json", "SOURCES.tsv", "steps_h200"}
_ASCEND = (
    "msinsight_level1/text",
    "msinsight_level1/db",
    "mindinsight/PROF_000001_20230818142704322_COJGGGCANRMICFBC",
)


def _places():
    """Every real file by itself, and the folders that are read as one."""
    roots = [ROOT / "sample_traces", SHARED / "real", SHARED / "captures"]
    files = [p for root in roots if root.is_dir() for p in root.rglob("*") if p.is_file()]
    files = [
        p
        for p in files
        if p.name not in _ALONE and p.suffix not in {".py", ".md"} and "steps_h200" not in p.parts
    ]
    files = [
        p
        for p in files
        if "run_torch_tp1" not in p.parts and not re.search(r"_0_2_(?:[3-9]|10)\.json$", p.name)
    ]
    # of four ranks the first and the last
    files = [p for p in files if not re.search(r"/torch_tp4_[a-z_]+/rank[12]\.", p.as_posix())]
    # most samples are captures, too
    files = list({(*p.parts[-2:], p.stat().st_size): p for p in files}.values())
    folders = [SHARED / "real/ascend" / name for name in _ASCEND]
    folders += [f / f"rank{i}_ascend_pt" for f in folders[:2] for i in (0, 1)]
    return sorted(files) + [f for f in folders if f.is_dir()]


def _marked(path):
    name = "/".join(path.parts[-2:])
    size = path.stat().st_size if path.is_file() else _FAST_BYTES + 1
    return pytest.param(path, id=name, marks=[pytest.mark.slow] if size > _FAST_BYTES else [])


@pytest.mark.parametrize("path", [_marked(p) for p in _places()])
def test_nothing_of_a_real_file_is_left_and_its_tables_are_the_same(path, tmp_path):
    names, copy = Pseudonyms(b"a key of the tests"), tmp_path / path.name
    kind = detect(path)
    trace = None if kind in {None, "ncu"} else _trace(path)
    if path.suffix in {".ncu-rep", ".xz"} or (
        trace is None and kind != "ncu"
    ):  # named, and not copied
        with pytest.raises(LlmprofError, match=rf"{re.escape(path.name)}|report|the file "):
            redacted_into(path, copy, names)
        assert not copy.exists()
        return
    redacted_into(path, copy, names)
    assert hunt.left(hunt.identities(path), copy) == {}
    with warnings.catch_warnings(action="ignore", category=TraceWarning):
        if trace is None:
            ours, theirs = read_metrics(copy), read_metrics(path)
            assert_frame_equal(ours.metrics, names.frame(theirs.metrics))
            assert_frame_equal(
                ours.rules.drop("text"), names.frame(theirs.rules).drop("text")
            )  # the reader edits it
            return
        ours, theirs = llmprof.read(copy, cache=False), trace.redact(names)
    assert set(ours.tables) == set(theirs.tables)
    for name, frame in ours.tables.items():
        assert_frame_equal(frame, theirs.tables[name])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("absolute path", "/data/planted/models"),
        ("home", "/home/planted"),
        ("Windows path", "C:\\Users\\Planted\\run.py"),
        ("address", "10.99.88.77"),
        ("e-mail", "planted@example.test"),
        ("UUID", "deadbeef-1111-2222-3333-444455556666"),
        *(("token", f"{start}Planted99") for start in ("sk-", "hf_", "ghp_", "glpat-", "AKIA")),
        *(
            ("domain", f"planted.example.{end}")
            for end in ("com", "net", "org", "edu", "gov", "local", "internal")
        ),
        ("variable", "PLANTED_KEY=planted"),
    ],
)
def test_the_look_finds_each_kind(kind, text, tmp_path):
    path = tmp_path / "a text"
    path.write_text(f"(kernel) {text} (stream)")
    assert text.encode() in hunt.identities(path).get(kind, set())


def _trace(path):
    """The trace of a file, if it is one."""
    try:
        with warnings.catch_warnings(action="ignore", category=TraceWarning):
            return llmprof.read(path, cache=False)
    except LlmprofError:
        return None


def test_names_that_profilers_write_are_no_prompts():
    names = Pseudonyms(b"k")
    kept = [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>, std::array<char*, 1>"
        ">(int, at::native::FillFunctor<c10::BFloat16>, std::array<char*, 1ul>)",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIN3c108BFloat16EEESt5arrayIPcLm1EEEEviT0_T1",
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT",
        "Torch-Compiled Region: 0/0",
        "Memcpy HtoD (Pageable -> Device)",
        "nn.Module: Linear_0",
        "Runtime Triggered Module Loading",
        "## Call CompiledFxGraph fv2djjzxqfwy5kq3m7y2abcdefghijklmnopqrstuvwxyz234567ab ##",
        "{'Module': 'Qwen3ForCausalLM.model.layers.0', 'TrainableParams': 12, 'Inputs': [[256, 4096]]}",
        "CUDA profiling data flush overhead",
        "Optimizer.step#AdamW.step",
        "execute_context_4(256)_generation_0(0)",
        "hcom_allReduce__872_0_1",
        "AscendCL@aclrtSynchronizeStreamWithTimeout",
        "Dequeue@aclnnGatherV2",
        "GE@Infer",
        "hipGetDevicePropertiesR0600",
        "module memory ME",
        "unsigned long long const",
        "record_param_comms",
        "<built-in method decode of str object at 0x7f>",
        "model.layers.0.self_attn.q_proj",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "gpu_model_runner: forward",
    ]
    assert [text for text in kept if names.text(text) != text] == []


@pytest.mark.parametrize("unit", ["a", "a1", "Ab ", "a.", "/a", "a@", "f0", "=", '"', "-"])
def test_a_long_word_takes_time_that_grows_with_its_length(unit):
    def seconds(length):
        start = time.thread_time()
        Pseudonyms(b"k").text((unit * length)[:length])
        return time.thread_time() - start

    assert any(seconds(16_000) < max(40 * seconds(1_600), 0.05) for _ in range(4))
