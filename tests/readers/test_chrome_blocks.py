"""The size of the blocks never changes the result, whatever is in the events and around them."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmprof.readers.common.event_stream import EventStream
from tests.readers.traces import read_one, same, text_of, write

TEXTS = st.text(st.sampled_from('{}[],:"\\ \n\tab\u00e9\U0001f600'), max_size=12) | st.sampled_from(
    [
        "}, {",
        '}, {"cat"',
        '"}, {"ph": "X"',
        "]}",
        '}],"z":{',
        '"traceEvents": [',
        "\\",
        '\\"',
        "NaN",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TIMES = (
    st.integers(0, 2 * 10**15)
    | st.integers(0, 10**9).map(lambda n: n / 1000)
    | st.integers(10**18, 2 * 10**18).map(lambda n: f"{n // 1000}.{n % 1000:03d}")
    | st.none()
)
ARGS = st.dictionaries(
    TEXTS | st.sampled_from(["stream", "device", "correlation", "grid", "list"]), VALUES, max_size=3
)


@st.composite
def events(draw):
    """A complete, flow, instant, counter or metadata event, its keys in any order, or something
    else.
    """
    event = {
        "ph": draw(st.sampled_from("XXXXXXsfiCM?")),
        "cat": draw(
            st.sampled_from(
                [
                    "kernel",
                    "cpu_op",
                    "cuda_runtime",
                    "gpu_memcpy",
                    "user_annotation",
                    "ac2g",
                    None,
                    "x{",
                ]
            )
        ),
        "name": draw(TEXTS | st.just("[memory]") | st.just("process_name")),
        "pid": draw(st.integers(0, 9) | TEXTS),
        "tid": draw(st.integers(0, 9)),
        "ts": draw(TIMES),
        "dur": draw(st.integers(0, 1000) | st.integers(0, 10**6).map(lambda n: n / 1000)),
        "args": draw(ARGS | st.lists(ARGS, max_size=2)),
    }
    order = draw(st.permutations(list(event)))
    event = {key: event[key] for key in order if event[key] is not None}
    return draw(
        st.just(event)
        | st.just(event)
        | st.just(event)
        | st.dictionaries(TEXTS, VALUES, max_size=2)
    )


DOCUMENTS = st.builds(
    lambda listed, before, after, indent, bare: json.dumps(
        listed if bare else {**before, "traceEvents": listed, **after},
        indent=indent,
        ensure_ascii=len(listed) % 2 == 0,
    ).encode(),
    st.lists(events(), min_size=1, max_size=12),
    st.dictionaries(
        st.sampled_from(["a", "deviceProperties", "distributedInfo", "}, {"]), VALUES, max_size=2
    ),
    st.dictionaries(
        st.sampled_from(["z", "baseTimeNanoseconds", "traceName", "]"]), VALUES, max_size=2
    ),
    st.sampled_from([None, None, 0, 2]),
    st.booleans(),
)
BLOCK_BYTES = st.integers(1, 64) | st.integers(64, 4096)

IN_FOLDER = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(text=DOCUMENTS, block_bytes=BLOCK_BYTES)
@IN_FOLDER
def test_blocks_of_any_size_give_the_same_tables(tmp_path, text, block_bytes):
    path = write(tmp_path / "trace", text)
    whole, parts = read_one(path, block_bytes=1 << 24), read_one(path, block_bytes=block_bytes)
    assert same(parts.tables, whole.tables)
    assert parts.coverage == whole.coverage
    assert parts.head == whole.head


def test_an_event_larger_than_many_blocks_takes_linear_time(tmp_path, monkeypatch):
    looked_at = 0
    original = EventStream.take_events

    def take(self, text, decode):
        nonlocal looked_at
        looked_at += len(text)
        return original(self, text, decode)

    monkeypatch.setattr(EventStream, "take_events", take)
    small = {"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "tid": 0, "ts": 1, "dur": 1}
    big = small | {"name": "big", "args": {"list": [{"ph": "X", "x": "}, {"}] * 20_000}}
    text = text_of([small, big, small])
    part = read_one(write(tmp_path / "trace.json", text), block_bytes=1000)
    assert part.tables["kernels"]["name"].to_list() == ["a", "big", "a"]
    assert looked_at < 6 * len(text)
