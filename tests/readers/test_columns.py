"""Columns out of JSON values: identifiers, numbers, texts and times."""

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.readers.chrome import columns
from llmprof.readers.chrome.columns import Texts, ids
from llmprof.readers.chrome.events import (
    EXACT_US,
    MOST_NS,
    Event,
    EventDecoder,
    OpArgs,
    in_ns,
    in_one_form,
    loses_digits,
    times,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7), (" 7 ", 7), ("stream 7", 7), ("Stream 7", 7), ("thread 25738", 25738), ("CUDA API 9946", 9946),
        ("NVTX 9946", 9946), ("Device 0", 0), ("GPU2", 2), ("pid:12", 12), ("", None), ("  ", None), (None, None),
        (0, 0), (-1, -1), (2**63 - 1, 2**63 - 1),
    ],
)  # fmt: skip
def test_identifiers(text, number):
    assert ids([text]).to_list() == [number]
    assert ids([text, "other"]).dtype == pl.Int64


def test_hashed_identifiers_are_the_same_in_every_file():
    assert ids(["Traces", 2**64]).to_list() == ids(["Traces", 2**64]).to_list() == [
        ids(["Traces"]).item(), ids([2**64]).item(),
    ]  # fmt: skip
    assert ids(["Traces"]).item() < -1


# --- times


def ns(values, base=0):
    (frame,) = in_ns([pl.DataFrame(times("start", values))], base)
    assert frame.columns == ["start_ns"]
    assert frame.dtypes == [pl.Int64]
    return frame["start_ns"].to_list()


LIMIT = MOST_NS // 1000 - 1


@given(st.lists(st.integers(-LIMIT, LIMIT) | st.none(), min_size=1))
def test_whole_microseconds_are_exact(values):
    assert ns(values) == [None if v is None else v * 1000 for v in values]
    assert not loses_digits(values)


MOST_EXACT = int(EXACT_US) * 1000 - 1


def test_beyond_the_limit_numbers_do_not_tell_nanoseconds():
    assert loses_digits([EXACT_US])
    assert written(2 * MOST_EXACT - 2) == written(2 * MOST_EXACT - 1)


def written(value: int) -> float:
    """What a decoder makes of a time in us with three decimals."""
    return float(f"{'-' if value < 0 else ''}{abs(value) // 1000}.{abs(value) % 1000:03d}")


@given(st.lists(st.integers(-MOST_NS, MOST_NS), min_size=1), st.booleans())
def test_texts_are_exact_whatever_their_size(values, quoted):
    texts = [f"{'-' if v < 0 else ''}{abs(v) // 1000}.{abs(v) % 1000:03d}" for v in values]
    raw = [msgspec.Raw(f'"{t}"'.encode() if quoted else t.encode()) for t in texts]
    assert ns(raw) == values


@pytest.mark.parametrize(
    ("values", "lost"),
    [
        ([1712195495521948.319], True),
        ([1, None, 2e13], True),
        ([1, None, 8e12], False),
        ([1e12, 5.5], False),
        ([2**60, None], False),
        ([], False),
    ],
)
def test_digits_that_a_number_cannot_hold(values, lost):
    assert loses_digits(values) == lost


def _op(number: int, body: str, last: str) -> str:
    return f'{{\n      "External id": {number},{body}, "Ev Idx": {last}\n    }}'


_DIMS = '"Record function id": 0, "Input type": ["float, \\"Ev Idx\\": 3"], "Input Dims": [[2, 3]]'
_LISTS = '"Record function id": 0, "Input type": ["float"], "Input Dims": [[7]]'
_BUFFERS = '{\n      "External id": 9,"Record function id": 0, "Ev Idx": 8, "Input Dims": [[5], [6]]}'

ARGUMENTS = {
    "one text many times": [_op(i, _DIMS, str(i + 1)) for i in range(40)],
    "two texts in turn": [_op(i, (_DIMS, _LISTS)[i % 2], str(i + 1)) for i in range(40)],
    "without shapes": [f'{{"External id": {i},"Input Dims": [],"Ev Idx": {i + 1}}}' for i in range(100)],
    "without the number of the event": [
        f'{{"External id": {i},"Input type": ["é, 5}}"],"Input Dims": [[{i % 2}]]}}' for i in range(40)
    ],
    "one whose number is not the last": [_op(i, _DIMS, "4") for i in range(40)] + [_BUFFERS],
}


@pytest.mark.parametrize("texts", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_repeat_are_those_decoded_one_by_one(texts):
    raws = [msgspec.Raw(text.encode()) for text in texts]
    found = columns.repeated(raws)
    args = msgspec.json.Decoder(list[OpArgs]).decode(f"[{','.join(texts)}]".encode())
    assert found is not None
    assert found.op_ids.to_list() == [a.external_id for a in args]
    of_each = [found.distinct[row] for row in found.rows]
    for name in ("dims", "types", "strides", "inputs"):
        assert [bytes(getattr(a, name)) for a in of_each] == [bytes(getattr(a, name)) for a in args]
    assert len(found.distinct) * 4 <= len(texts)
    events = [Event(None, "aten::mm", 1, 1, i, 1) for i, _ in enumerate(texts)]
    for build, of in ((columns.repeated_ops, found), (columns.ops, args)):
        known = Texts()
        rows = build(known, events, of)
        assert known.texts("shapes", rows["shapes"], lambda text: text and text.decode()).to_list() == [
            bytes(a.dims).decode() for a in args
        ]
        assert rows["op_id"].to_list() == [a.external_id for a in args]


@pytest.mark.parametrize(
    "texts",
    [
        [_op(i, f'"Sequence number": {i}', "1") for i in range(40)],  # no two are alike
        [_op(i, f'{_DIMS}, "external id": 77', "1") for i in range(40)],  # the identifier comes twice
        [_op(i, _DIMS, "1") for i in range(40)] + ['{"Input Dims": []}'],  # one without an identifier
        ["{}"] * 40,
        [f'{{"External id": {i}}}' for i in range(40)],
        [_op(2**64, _DIMS, "1")] * 40,
        [_op(3, '"Input Dims": {"a": 1', "1}")] * 40,  # the last number is within another member
        [_op(3, '"op_name": 7', "1")] * 40,  # of a wrong type
        ['{"External id": 3,"Name": "\x1f", "Ev Idx": 1}'] * 40,
    ],
)
def test_other_arguments_are_left_to_the_decoder(texts):
    assert columns.repeated([msgspec.Raw(text.encode()) for text in texts]) is None


def test_events_of_pieces_get_their_times_in_one_form():
    decoder = EventDecoder()
    before = decoder(
        b'[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1.5, "dur": 2}, {"ph": "i", "ts": 4}, {"ph": "s"}]'
    )
    assert decoder.forms == {"number"}
    assert in_one_form(before) == before
    after = decoder(b'[{"ph": "X", "ts": 1700000000000000.123, "dur": 0.5}, {"ph": "C", "ts": 1700000000000001}]')
    assert decoder.forms == {"number", "text"}
    events = in_one_form(before + after)
    ts = times("start", [e.ts for e in events if e.ts is not None])
    assert ts["start_ns"].to_list() == [1500, 4000, 1_700_000_000_000_000_123, 1_700_000_000_000_001_000]
    assert times("dur", [events[0].dur, events[3].dur])["dur_ns"].to_list() == [2000, 500]
    assert (events[0].cat, events[0].name) == ("kernel", "a")
    assert [e.cat.phase for e in (events[1], events[2], events[4])] == ["i", "s", "C"]
