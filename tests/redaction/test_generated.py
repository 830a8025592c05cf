"""Secrets of generated kinds in generated positions and encodings are found; what only looks
like one stays.
"""

import json
import re
from random import Random

import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof.readers.redaction import redact
from llmprof.trace.storage.pseudonyms import Pseudonyms
from tests.conftest import RANDOM
from tests.redaction import generated
from tests.test_samples import NAMES

SEED = Random().randrange(10**9) if RANDOM else 7


@pytest.mark.parametrize("count", [5_000, pytest.param(60_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("free", [False, True], ids=["name", "words"])
def test_no_secret_is_left_in_a_text(count, free):
    names = Pseudonyms(b"k")
    kept = [
        (where, text)
        for where, text, forms in generated.planted(Random(f"{SEED} {free}"), count)
        if generated.is_left(forms, names.text(text, free=free))
    ]
    assert len(kept) <= count / 20_000, kept  # fewer than 16 signs of base64 may read like a name


def test_no_secret_is_left_in_a_chrome_trace(tmp_path):
    planted = list(generated.planted(Random(SEED + 1), 1_500))
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": text,
            "pid": 1,
            "tid": 1,
            "ts": at,
            "dur": 1,
            "args": {"Input type": [text], "Collective name": text},
        }
        for at, (_, text, _) in enumerate(planted)
    ]
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events}))
    redact(tmp_path / "a.json", tmp_path / "b.json", key=b"k")
    copied = json.loads((tmp_path / "b.json").read_text())["traceEvents"]
    assert [event["ts"] for event in copied] == list(range(len(planted)))
    kept = [
        where
        for (where, _, forms), event in zip(planted, copied, strict=True)
        for text in (
            event["name"],
            event["args"]["Input type"][0],
            event["args"]["Collective name"],
        )
        if generated.is_left(forms, text)
    ]
    assert kept == []


@pytest.mark.parametrize("kind", ["card", "iban", "identity"])
def test_numbers_without_their_check_digit_are_sizes_and_times(kind):
    rng, names, kept = Random(kind), Pseudonyms(b"k"), 0
    for _ in range(500):
        text, _ = generated.KINDS[kind](rng)
        at = [found.start() for found in re.finditer(r"\d", text)][3]
        other = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        divided = (
            not other.isalnum() or not other.isupper()
        )  # an account without spaces is known by its shape
        assert names.text(text) != text
        kept += divided and "<number" not in names.text(other)
    assert kept > 200


@pytest.mark.parametrize("sample", NAMES)
def test_names_of_kernels_and_operators_of_the_samples_stay(sample, sample_trace):
    names = Pseudonyms(b"k")
    if sample.startswith("ncu"):
        tables = [llmprof.sample_metrics(sample).kernels]
    else:
        tables = [*sample_trace(sample).tables.values()]
    assert tables
    for frame in tables:
        assert_frame_equal(names.frame(frame), frame)
