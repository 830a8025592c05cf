"""Damaged traces: what is whole is kept, and what was lost is said."""

import gzip
import json
import random
import zlib

import pytest

import llmprof
from llmprof.errors import ReadError, TraceWarning
from tests.readers.traces import kernel, op, read_one, text_of, write

BLOCKS = [64, 300, 1 << 20]


@pytest.fixture
def read(tmp_path):
    """Reads text as one file."""

    def read(text, **options):
        return read_one(write(tmp_path / "trace.json", text), **options)

    return read


def names(part):
    return part.tables["kernels"]["name"].to_list() if "kernels" in part.tables else []


def kernels(count):
    """Kernels with all that makes cutting hard: brackets and separators in texts and lists of
    objects in arguments.
    """
    tricky = [
        {"note": "}, {"},
        {"list": [{"a": 1}, {"b": [2, {"c": "]}"}]}]},
        {"quote": 'say \\"hi\\"', "x": "\\"},
        {"n": None},
        {},
    ]
    return [kernel(f"k{i}", i, 1, **tricky[i % len(tricky)]) for i in range(count)]


DOCUMENTS = {
    "object": text_of(kernels(6), schemaVersion=1) + b"\n",
    "keys at the end": json.dumps(
        {
            "a": [{"b": 1}, {"c": "x"}],
            "traceEvents": kernels(5),
            "traceName": "x",
            "list": [{"y": 2}, {"z": 3}],
        }
    ).encode(),
    "pretty": json.dumps({"a": 1, "traceEvents": kernels(5), "z": 1}, indent=2).encode(),
    "bare list": json.dumps(kernels(6)).encode(),
    "a line an event": b"[ {}\n"
    + b"".join(b"," + json.dumps(k).encode() + b"\n" for k in kernels(5))
    + b"]\n",
}


def whole_events(text):
    """Names of the events that end before the text does, worked out with a plain decoder."""
    found, decoder = [], json.JSONDecoder()
    start = text.index(b"[", text.index(b'"traceEvents"')) if text[:1] == b"{" else 0
    rest = text[start + 1 :].decode().lstrip()
    while rest.startswith("{"):
        try:
            event, end = decoder.raw_decode(rest)
        except ValueError:
            break
        found += [event["name"]] if event else []
        rest = rest[end:].lstrip().removeprefix(",").lstrip()
    return found


def opening_of(text):
    """Place of the first event."""
    return 1 if text[:1] == b"[" else text.index(b"[", text.index(b'"traceEvents"')) + 1


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_what_was_cut_off_is_said(read, kind):
    text = DOCUMENTS[kind]
    for size in range(opening_of(text), len(text.rstrip()), 11):
        if not whole_events(text[:size]) and b"{}" not in text[:size]:
            with pytest.raises(ReadError, match="holds no whole event: the"):
                read(text[:size])
            continue
        part = read(text[:size])
        assert names(part) == whole_events(text[:size])
        assert part.coverage["truncated"] in part.losses()[0]
        assert f"{part.coverage['lost_bytes']:,} of {size:,} bytes" in part.losses()[0]


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_cut_before_the_events_is_an_error_that_says_so(tmp_path, kind):
    text = DOCUMENTS[kind]
    for size in range(opening_of(text)):
        with pytest.raises(ReadError) as caught:
            llmprof.read(write(tmp_path / "trace.json", text[:size]), cache=False)
        assert "trace.json" in str(caught.value)


def test_bytes_lost_are_counted_to_the_byte(read):
    text = text_of(kernels(10))
    for cut in (5, 40, 100):
        part = read(text[:-cut])
        whole = b'{"traceEvents": [' + b", ".join(
            json.dumps(k).encode() for k in kernels(len(names(part)))
        )
        assert text.startswith(whole)
        assert part.coverage["lost_bytes"] == len(text[len(whole) : -cut].strip(b", "))


def test_a_base_time_that_is_cut_does_not_become_another(read):
    text = json.dumps(
        {"traceEvents": [kernel("a", 5)], "baseTimeNanoseconds": 1790857026000000000}
    ).encode()
    for size in range(text.index(b"base"), len(text)):
        part = read(text[:size])
        assert part.tables["kernels"]["start_ns"].item() == 5000
        assert part.coverage["truncated"] == "the keys that follow the events are cut off"
    text = json.dumps(
        {
            "traceEvents": [kernel("a", 5)],
            "baseTimeNanoseconds": 1700000000000000000,
            "z": {"a": [1, "x"]},
        }
    )
    part = read(text[:-3].encode())
    assert part.tables["kernels"]["start_ns"].item() == 1700000000000005000


def test_truncated_gzip_keeps_what_came_before(tmp_path):
    text = text_of(kernels(400))
    packed = gzip.compress(text)
    for share in (0.2, 0.5, 0.9, 0.999):
        path = write(tmp_path / "trace.json.gz", packed[: int(len(packed) * share)])
        there = zlib.decompressobj(wbits=31).decompress(path.read_bytes())
        part = read_one(path, block_bytes=1000)
        assert names(part) == whole_events(there)
        assert part.coverage["truncated"] == "the gzip stream ends early"
        with pytest.warns(
            TraceWarning, match="the gzip stream ends early; .* bytes .about .* were lost"
        ):
            llmprof.read(path, cache=False)


@pytest.mark.parametrize("size", [2, 5, 10, 17])
def test_gzip_cut_in_its_head_is_an_error(tmp_path, size):
    path = write(tmp_path / "trace.json.gz", gzip.compress(text_of(kernels(9)))[:size])
    with pytest.raises(
        ReadError, match=r"trace\.json\.gz has no content \(the gzip stream ends early\)"
    ):
        llmprof.read(path, cache=False)


@pytest.mark.parametrize("block_bytes", BLOCKS)
def test_gzip_damaged_in_the_middle_keeps_what_is_whole(tmp_path, block_bytes):
    text = text_of([kernel(f"kernel {random.Random(i).random()}", i) for i in range(2000)])
    packed = bytearray(gzip.compress(text))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    part = read_one(write(tmp_path / "trace.json.gz", bytes(packed)), block_bytes=block_bytes)
    engine, there = zlib.decompressobj(wbits=31), b""
    try:
        for byte in packed:
            there += engine.decompress(bytes([byte]))
    except zlib.error:
        pass
    wanted = whole_events(there)
    assert 500 < len(wanted) < 2000
    assert set(wanted) <= set(names(part))
    assert part.coverage["truncated"].startswith("the gzip stream is damaged")
    assert any("could not be read" in loss or "lost" in loss for loss in part.losses())


def test_gzip_with_a_wrong_checksum_or_something_behind_it_is_said(tmp_path):
    packed = bytearray(gzip.compress(text_of(kernels(50))))
    packed[-6] ^= 0xFF
    part = read_one(write(tmp_path / "trace.json.gz", bytes(packed)))
    assert len(names(part)) == 50
    assert part.coverage["truncated"].startswith("the gzip stream is damaged")
    path = write(tmp_path / "trace.json.gz", gzip.compress(text_of(kernels(5))) + b"something else")
    part = read_one(path)
    assert len(names(part)) == 5
    assert "other data follow" in part.coverage["truncated"]


@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"])
def test_nan_and_infinities(read, value, block_bytes):
    args = f'{{"memory bandwidth (GB/s)": {value}, "list": [1, {value}, {value}], "name": "NaN, inf", "stream": 7}}'
    bad = f'{{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "tid": 7, "ts": 4, "dur": 0, "args": {args}}}'
    text = ", ".join([*map(json.dumps, kernels(20)), bad, *map(json.dumps, kernels(20))])
    part = read(f'{{"traceEvents": [{text}]}}'.encode(), block_bytes=block_bytes)
    assert len(names(part)) == 40
    assert part.tables["copies"].select("name", "stream").rows() == [("Memcpy HtoD", 7)]
    assert part.coverage["lost_bytes"] == 0
    assert part.coverage["repaired"]
    assert "NaN, control characters or invalid UTF-8 were replaced" in " ".join(part.losses())


@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\x00b", "a b"),
        (b"a\nb\tc", "a b c"),
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
        (b"a\xc3", "a\ufffd"),
        (rb"a\ud83d", "a\ufffd"),
        (rb"\ude00b", "\ufffdb"),
        (rb"a\ud83d\ude00", "a\U0001f600"),
        (rb"\\ud83d", "\\ud83d"),
        (b"\xed\xa0\xbd", "\ufffd\ufffd\ufffd"),
        (rb"C:\Users\x.py(3): f", "C:\\Users\\x.py(3): f"),
    ],
)
def test_control_characters_invalid_utf8_and_half_surrogates(read, raw, text, block_bytes):
    bad = (
        b'{"ph": "X", "cat": "kernel", "name": "'
        + raw
        + b'", "pid": 0, "tid": 7, "ts": 4, "dur": 0}'
    )
    others = [json.dumps(k).encode() for k in kernels(30)]
    part = read(
        b'{"a": 1, "traceEvents": [' + b", ".join([*others, bad, *others]) + b'], "z": 1}',
        block_bytes=block_bytes,
    )
    assert names(part)[30] == text
    assert len(names(part)) == 61
    assert part.coverage["lost_bytes"] == 0


def test_damage_in_the_keys_around_the_events_leaves_the_events(read):
    events = b'"traceEvents": [' + json.dumps(kernel("a")).encode() + b"]"
    part = read(
        b'{"deviceProperties": [{"name": "bad "quotes" here"}], '
        + events
        + b', "a": "bad "quotes"", "b": 1}'
    )
    assert names(part) == ["a"]
    assert part.coverage["truncated"] == "the keys that follow the events are damaged"
    assert part.coverage["lost_bytes"] > 0
    part = read(
        b'{"name": "x\x01y\xff", "cuda_driver_version": 12, '
        + events
        + b', "distributedInfo": {"rank": NaN}}'
    )
    assert part.head["versions"] == {"cuda_driver_version": 12}


@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize("at", [0, 1, 20, 38, 39])
@pytest.mark.parametrize(
    "end", [b"]", b'], "traceName": "x"}', b'], "list": [{"a": 1}, {"b": [2]}], "z": {"y": [{}]}}']
)
def test_unescaped_quotes_cost_one_event(read, block_bytes, at, end):
    events = [json.dumps(k).encode() for k in kernels(40)]
    events[at] = b'{"ph": "X", "cat": "cpu_op", "name": "say "hi" to all", "ts": 1, "dur": 1}'
    start = b"[" if end == b"]" else b'{"a": 1, "traceEvents": ['
    part = read(start + b", ".join(events) + end, block_bytes=block_bytes)
    assert names(part) == [f"k{i}" for i in range(40) if i != at]
    assert part.coverage["lost_bytes"] == len(events[at])
    assert part.coverage["lost_pieces"] == 1
    assert not part.coverage["truncated"]
    assert any("not valid JSON" in loss for loss in part.losses())


@pytest.mark.parametrize("block_bytes", BLOCKS)
def test_events_that_are_no_objects(read, block_bytes):
    mixed = [
        kernel("a"),
        5,
        "text",
        None,
        [kernel("no")],
        True,
        {},
        kernel("b"),
        {"ph": 5},
        {"ph": None},
        {"ph": "??"},
    ]
    part = read(json.dumps({"traceEvents": mixed}).encode(), block_bytes=block_bytes)
    assert names(part) == ["a", "b"]
    assert part.coverage["wrong_types"] == 5
    assert part.coverage["lost_bytes"] == 0


def test_duplicate_keys_last_one_counts(read):
    event = b'{"ph": "X", "cat": "kernel", "name": "a", "name": "b", "ts": 1, "ts": 2, "dur": 1, "pid": 0, "tid": 0, '
    part = read(
        b'{"a": 1, "a": 2, "traceEvents": [' + event + b'"args": {"stream": 1, "stream": 2}}]}'
    )
    assert part.tables["kernels"].select("name", "start_ns", "stream").row(0) == ("b", 2000, 2)
    bad = b'{"ph": "X", "cat": "cpu_op", "name": "f(\\"x\\": NaN, {}: inf)", "ts": 1, "dur": NaN, "pid": 1, "tid": 1}'
    part = read(b'{"traceEvents": [' + bad + b"]}")
    assert part.coverage["impossible"] == 1
    part = read(b'{"traceEvents": [' + bad.replace(b'NaN, "pid', b'2, "pid') + b"]}")
    assert part.tables["ops"]["name"].item() == 'f("x": NaN, {}: inf)'


def test_huge_integers_anywhere(read):
    huge = 10**400
    event = kernel(
        "a",
        5,
        1,
        correlation=huge,
        stream=huge,
        bytes=huge,
        **{"In msg nelems": huge, "Group size": huge},
    )
    part = read(
        text_of(
            [
                event | {"pid": huge, "tid": huge, "id": huge},
                kernel("b", huge, huge),
                kernel("c", -huge),
            ]
        )
    )
    assert names(part) == ["a"]
    assert part.coverage["skipped"] == {"event without a time or name": 2}


def test_deep_nesting_costs_one_event(read):
    deep = b'{"ph": "X", "name": "deep", "args": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    part = read(
        b"["
        + b",".join([json.dumps(kernel("a")).encode(), deep, json.dumps(kernel("b")).encode()])
        + b"]"
    )
    assert names(part) == ["a", "b"]
    assert part.coverage["lost_pieces"] == 1
    with pytest.raises(ReadError, match="holds no whole event"):
        read(b'{"traceEvents": [{"ph": "X" "name": 5 5}]}')


def test_trailing_commas_and_rubbish_between_events(read):
    events = json.dumps(kernel("a")).encode() + b", " + json.dumps(kernel("b")).encode()
    assert names(read(b"[" + events + b",\n]")) == ["a", "b"]
    part = read(b'{"traceEvents": [' + events + b', ], "distributedInfo": {"rank": 3}}')
    assert names(part) == ["a", "b"]
    assert part.head["rank"] == 3
    a, b, c = (json.dumps(kernel(name)).encode() for name in "abc")
    text = b"[" + a + b", @@@ , " + b + b", 5, null, [1], " + c + b"]"
    assert "c" in names(read(text))


@pytest.mark.parametrize(
    "fields",
    [{"name": 5}, {"cat": 7}, {"pid": 1.5}, {"tid": []}, {"pid": {}}, {"ph": "X", "id": {}}],
)
def test_fields_of_a_wrong_type(read, fields):
    part = read(text_of([op("before"), kernel("a") | fields, kernel("b")]))
    assert "b" in names(part)
    assert part.tables["ops"]["name"].item() == "before"
    assert part.coverage["events"] == 3
