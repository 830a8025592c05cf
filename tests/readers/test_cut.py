"""Separators of events, exact scans and repairs, on their own."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.readers.common.repair import (
    ANY_SEPARATOR,
    Scan,
    clean,
    is_wrong_cut,
    list_end,
    salvage,
    scan,
    separator,
)

JSON = st.recursive(
    st.none() | st.integers() | st.text('{}[],:"\\ a', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('{}[],"\\a', max_size=3), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(st.text('{}[],"\\a', max_size=3), JSON, max_size=3), max_size=5)


@pytest.mark.parametrize(
    ("text", "matches", "not_matched"),
    [
        (b'\n  {\n    "ph": "X"', b'}, {"ph"', b'}, {"name"'),
        (b'{"a\\"b": 1}', b'},\n{ "a\\"b"', b'}, {"a"'),
        (b'{} , {}, {"name": 1}', b'},{"name"', b"},{}"),
        (b"5, 6", b"}, {}", b"}{"),
        (b"", b"}, {", b"] {"),
    ],
)
def test_separator_is_known_by_the_first_key(text, matches, not_matched):
    assert separator(text).search(matches)
    assert not separator(text).search(not_matched)


@given(OBJECTS, st.sampled_from([None, 0, 2]), st.sampled_from([b"", b"]", b'], "x": [{"y": "]"}]}']))
def test_scan_finds_the_end_of_the_last_event_and_of_the_list(objects, indent, rest):
    content = json.dumps(objects, indent=indent).encode()[1:-1].rstrip()
    found = scan(content + rest)
    assert found == Scan(len(content) if objects else None, len(content) if rest else None)


# --- repair


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (b'{"a": NaN, "b":-Infinity,"c" : inf}', b'{"a": null, "b":null,"c" : null}'),
        (b'{"a": "x\\": NaN, "}', b'{"a": "x\\": NaN, "}'),
        (b'{"a": "b\x00\n\x1fc"}', b'{"a": "b   c"}'),
        (b'{"a": "\xff\xc3"}', '{"a": "\ufffd\ufffd"}'.encode()),
        (
            rb'"\ud83d\ude00 \ud83d \ude00 \\ud83d \\\ud83d \u00e9"',
            rb'"\ud83d\ude00 \ufffd \ufffd \\ud83d \\\ufffd \u00e9"',
        ),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"C:\Users\new \\ \" \u12 \/"', rb'"C:\\Users\new \\ \" \\u12 \/"'),
        (b'{"infinite": 1, "x": "nan"}', b'{"infinite": 1, "x": "nan"}'),
    ],
)
def test_clean(text, cleaned):
    assert clean(text) == cleaned


def decode(text):
    return msgspec.json.decode(text, type=list[dict])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [(b'[{"a": 1]', True), (b'[{"a": "x]', True), (b'[{"a": [{"b": 1}]', True), (b'[{"a" 1}, {"a": 2}]', False)],
)
def test_a_wrong_cut_is_told_from_damage(text, wrong):
    with pytest.raises(msgspec.DecodeError) as caught:
        decode(text)
    assert list_end(caught.value) is None
    assert is_wrong_cut(caught.value, len(text)) == wrong


def test_salvage_keeps_all_but_the_damaged():
    events = [b'{"a": %d, "l": [{"b": 1}, {"c": "}, {"}]}' % i for i in range(20)]
    events[7] = b'{"a": "say "hi"", "l": []}'
    events[8] = b'{"z": "other first key"}'
    found = salvage(b", ".join(events), separator(events[0]), decode)
    assert [e.get("a") for e in found.events] == [*range(7), None, *range(9, 20)]
    assert found.lost == [len(events[7])]
    assert found.rest is None
    assert found.tail == b""


def test_salvage_notices_the_end_of_the_list_and_what_goes_on():
    found = salvage(b'{"a": x}, {"a": 1}], "b": [{"c": 1}, {"d": 2}]}', ANY_SEPARATOR, decode)
    assert found.events == [{"a": 1}]
    assert found.rest == b', "b": [{"c": 1}, {"d": 2}]}'
    found = salvage(b'{"a": x}, {"a": 1}, {"a": [1, 2', ANY_SEPARATOR, decode)
    assert found.events == [{"a": 1}]
    assert found.lost == [8]
    assert found.tail == b'{"a": [1, 2'
