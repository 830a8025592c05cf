"""Separators of events, exact scans and repairs, on their own."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.readers.common.repair import (
    ANY_SEPARATOR,
    Cut,
    Scan,
    clean,
    clean_elements,
    closing,
    is_wrong_cut,
    last_cut,
    list_end,
    pieces,
    salvage,
    scan,
    separator,
    whole_members,
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


def test_last_cut():
    pattern = separator(b'{"a": 1}')
    assert last_cut(b'{"a": 1}, {"a": 2}, {"b": 3}', pattern) == Cut(8, 10)
    assert last_cut(b'{"a": 1}, {"a": 2}' + b" " * 200_000, pattern) == Cut(8, 10)
    assert last_cut(b'{"a": 1}', pattern) is None
    assert last_cut(b"", pattern) is None


@given(OBJECTS, st.sampled_from([None, 0, 2]), st.sampled_from([b"", b"]", b'], "x": [{"y": "]"}]}']))
def test_scan_finds_the_end_of_the_last_event_and_of_the_list(objects, indent, rest):
    content = json.dumps(objects, indent=indent).encode()[1:-1].rstrip()
    found = scan(content + rest)
    assert found == Scan(len(content) if objects else None, len(content) if rest else None)


@given(OBJECTS.filter(bool), st.data())
def test_scan_of_a_cut_list_finds_the_last_whole_event(objects, data):
    content = json.dumps(objects).encode()[1:-1]
    size = data.draw(st.integers(0, len(content)))
    ends, end = [], 0
    for found in objects:
        end += len(json.dumps(found))
        ends.append(end)
        end += 2
    assert scan(content[:size]) == Scan(max((e for e in ends if e <= size), default=None), None)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=5), st.data())
def test_whole_members_of_a_cut_object(members, data):
    text = json.dumps(members).encode()
    kept = json.loads(whole_members(text[: data.draw(st.integers(1, len(text)))]))
    assert list(kept.items()) == list(members.items())[: len(kept)]


def test_pieces():
    text = b'{"a": 1}, {"a": 2},{"a": 3}'
    assert [text[b:e] for b, e in pieces(text, ANY_SEPARATOR)] == [b'{"a": 1}', b'{"a": 2}', b'{"a": 3}']
    assert pieces(b"", ANY_SEPARATOR) == [(0, 0)]


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


def test_clean_elements():
    assert clean_elements(b"[NaN, NaN,NaN, 1, -inf ]") == b"[null, null,null, 1, null ]"


@given(JSON)
def test_clean_leaves_valid_json_as_it_is(value):
    text = json.dumps(value).encode()
    assert json.loads(clean(text)) == value


def decode(text):
    return msgspec.json.decode(text, type=list[dict])


@pytest.mark.parametrize(("text", "end"), [(b'[{"a": 1}], "b": 2}', 10), (b'[{"a": 1}]  }', 12), (b"[] x", 3)])
def test_where_the_list_ended(text, end):
    with pytest.raises(msgspec.DecodeError) as caught:
        decode(text)
    assert list_end(caught.value) == end


@pytest.mark.parametrize(
    ("text", "wrong"),
    [(b'[{"a": 1]', True), (b'[{"a": "x]', True), (b'[{"a": [{"b": 1}]', True), (b'[{"a" 1}, {"a": 2}]', False)],
)
def test_a_wrong_cut_is_told_from_damage(text, wrong):
    with pytest.raises(msgspec.DecodeError) as caught:
        decode(text)
    assert list_end(caught.value) is None
    assert is_wrong_cut(caught.value, len(text)) == wrong


def test_closing_is_the_first_place_after_which_the_rest_fits():
    text = b'{"a": "b"c"}, {"l": [{"x": 1}], "y": 2}], "z": [{"q": 1}]}'

    def is_rest(rest):
        try:
            return isinstance(json.loads(b"{" + rest.lstrip().removeprefix(b",")), dict)
        except ValueError:
            return False

    assert closing(text, is_rest) == text.index(b'], "z"')
    assert closing(b'{"a": 1}', is_rest) is None


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
