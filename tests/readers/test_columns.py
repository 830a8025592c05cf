"""Columns out of JSON values: identifiers, numbers, texts and times."""

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.readers.chrome import batches
from llmprof.readers.chrome.batches import DistinctTexts
from llmprof.readers.chrome.events import MOST_NS, Event, OpArgs, in_ns, times


def ns(values, base=0):
    (frame,) = in_ns([pl.DataFrame(times("start", values))], base)
    assert frame.columns == ["start_ns"]
    assert frame.dtypes == [pl.Int64]
    return frame["start_ns"].to_list()


@given(st.lists(st.integers(-MOST_NS, MOST_NS), min_size=1), st.booleans())
def test_texts_are_exact_whatever_their_size(values, quoted):
    texts = [f"{'-' if v < 0 else ''}{abs(v) // 1000}.{abs(v) % 1000:03d}" for v in values]
    raw = [msgspec.Raw(f'"{t}"'.encode() if quoted else t.encode()) for t in texts]
    assert ns(raw) == values


def _op(number, body, last):
    return f'{{\n      "External id": {number},{body}, "Ev Idx": {last}\n    }}'


_DIMS = '"Record function id": 0, "Input type": ["float, \\"Ev Idx\\": 3"], "Input Dims": [[2, 3]]'
_LISTS = '"Record function id": 0, "Input type": ["float"], "Input Dims": [[7]]'
_BUFFERS = (
    '{\n      "External id": 9,"Record function id": 0, "Ev Idx": 8, "Input Dims": [[5], [6]]}'
)

ARGUMENTS = {
    "one text many times": [_op(i, _DIMS, str(i + 1)) for i in range(40)],
    "two texts in turn": [_op(i, (_DIMS, _LISTS)[i % 2], str(i + 1)) for i in range(40)],
    "without shapes": [
        f'{{"External id": {i},"Input Dims": [],"Ev Idx": {i + 1}}}' for i in range(100)
    ],
    "without the number of the event": [
        f'{{"External id": {i},"Input type": ["é, 5}}"],"Input Dims": [[{i % 2}]]}}'
        for i in range(40)
    ],
    "one whose number is not the last": [_op(i, _DIMS, "4") for i in range(40)] + [_BUFFERS],
}


@pytest.mark.parametrize("texts", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_repeat_are_those_decoded_one_by_one(texts):
    raws = [msgspec.Raw(text.encode()) for text in texts]
    found = batches.repeated(raws)
    args = msgspec.json.Decoder(list[OpArgs]).decode(f"[{','.join(texts)}]".encode())
    assert found is not None
    assert found.op_ids.to_list() == [a.external_id for a in args]
    of_each = [found.distinct[row] for row in found.rows]
    for name in ("dims", "types", "strides", "inputs"):
        assert [bytes(getattr(a, name)) for a in of_each] == [bytes(getattr(a, name)) for a in args]
    assert len(found.distinct) * 4 <= len(texts)
    events = [Event(None, "aten::mm", 1, 1, i, 1) for i, _ in enumerate(texts)]
    for build, of in ((batches.repeated_ops, found), (batches.ops, args)):
        known = DistinctTexts()
        rows = build(known, events, of)
        assert known.texts(
            "shapes", rows["shapes"], lambda text: text and text.decode()
        ).to_list() == [bytes(a.dims).decode() for a in args]
        assert rows["op_id"].to_list() == [a.external_id for a in args]


@pytest.mark.parametrize(
    "texts",
    [
        [_op(i, f'"Sequence number": {i}', "1") for i in range(40)],  # no two are alike
        [
            _op(i, f'{_DIMS}, "external id": 77', "1") for i in range(40)
        ],  # the identifier comes twice
        [_op(i, _DIMS, "1") for i in range(40)]
        + ['{"Input Dims": []}'],  # one without an identifier
        ["{}"] * 40,
        [f'{{"External id": {i}}}' for i in range(40)],
        [_op(2**64, _DIMS, "1")] * 40,
        [_op(3, '"Input Dims": {"a": 1', "1}")] * 40,  # the last number is within another member
        [_op(3, '"op_name": 7', "1")] * 40,  # of a wrong type
        ['{"External id": 3,"Name": "\x1f", "Ev Idx": 1}'] * 40,
    ],
)
def test_other_arguments_are_left_to_the_decoder(texts):
    assert batches.repeated([msgspec.Raw(text.encode()) for text in texts]) is None
