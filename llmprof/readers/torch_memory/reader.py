"""Readers of PyTorch's memory: snapshots of its allocator (pickle or JSON), and memory timelines of
its profiler.

``torch.cuda.memory._record_memory_history()`` keeps the last events; ``_dump_snapshot`` writes them
together with the state at that moment. The allocated memory at an earlier time is that of the
state, minus all later events. So the total of the memory that was allocated before the history
began is known. Its blocks are known, too, if they still exist or were released within the history.

Sizes in the history are those that were requested; a block is up to 512 bytes larger, a large block
up to 2 MiB. The state has both sizes, and their difference is a counter.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import (
    MOST_NS,
    Frames,
    Probe,
    Reader,
    Request,
    bytes_of,
    json_of,
    trace_of,
)
from llmprof.text import left_out
from llmprof.trace import Trace

_U32: Final = struct.Struct("<I")
_PUT: Final = frozenset({0x71, 0x72})  # BINPUT, LONG_BINPUT
_TEXT: Final = frozenset({0x8C, 0x58, 0x8D})  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
_NUMBER: Final = frozenset({0x4B, 0x4D, 0x4A, 0x47})  # BININT1, BININT2, BININT, BINFLOAT
_FORMS: Final = {
    "<B": (0x71, 0x8C, 0x4B, 0x8A, 0x80),
    "<H": (0x4D,),
    "<i": (0x4A,),
    "<I": (0x72, 0x58),
    "<Q": (0x8D, 0x95),
    ">d": (0x47,),
}
_ARGUMENTS: Final = [
    next((struct.Struct(form).unpack_from for form, ops in _FORMS.items() if op in ops), None)
    for op in range(256)
]
_SIZES: Final = {op: struct.calcsize(form) for form, ops in _FORMS.items() for op in ops}
_CONSTANTS: Final = {
    0x4E: None,
    0x88: True,
    0x89: False,
    0x29: (),
}  # NONE, NEWTRUE, NEWFALSE, EMPTY_TUPLE

_REFUSED: Final = {
    "c": "a class by its name",
    "\x93": "a class by its name",
    "R": "a call",
    "b": "the state of an object",
    "i": "an object of a class",
    "o": "an object of a class",
    "\x81": "a new object",
    "\x92": "a new object",
    "P": "an object outside the file",
    "Q": "an object outside the file",
    "\x82": "an object by its code",
    "\x83": "an object by its code",
    "\x84": "an object by its code",
    "\x97": "a buffer outside the file",
}


def data_of(pickled: bytes) -> Any:
    """Read the dictionaries, lists, tuples, texts and numbers of a pickle."""
    try:
        return _run(pickled)
    except (IndexError, struct.error, KeyError, TypeError, UnicodeDecodeError) as error:
        found = f"the pickle is cut off or damaged ({type(error).__name__}: {error})"
        expected = "the file that torch.cuda.memory._dump_snapshot wrote"
        raise ReadError(
            found, expected=expected, hint="write it again, or copy it again"
        ) from error


def _run(pickled: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    offset, end = 0, len(pickled)

    def since_mark() -> list[Any]:
        begin = marks.pop()
        items = stack[begin:]
        del stack[begin:]
        return items

    while True:
        op = pickled[offset]
        offset += 1
        if op == 0x68:  # BINGET: this and the next one are three quarters of all operations
            stack.append(memo[pickled[offset]])
            offset += 1
            continue
        if op == 0x6A:  # LONG_BINGET
            stack.append(memo[_U32.unpack_from(pickled, offset)[0]])
            offset += 4
            continue
        if op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
            continue
        argument: Any = None
        if (unpack := _ARGUMENTS[op]) is not None:
            argument = unpack(pickled, offset)[0]
            offset += _SIZES[op]
        if op in _NUMBER:
            stack.append(argument)
        elif op in _TEXT or op == 0x8A:  # LONG1
            if offset + argument > end:
                raise IndexError("a text or a number reaches beyond the end")
            data = pickled[offset : offset + argument]
            stack.append(
                str(data, "utf-8", "surrogatepass")
                if op in _TEXT
                else int.from_bytes(data, "little", signed=True)
            )
            offset += argument
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif op == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif op in (0x75, 0x73):  # SETITEMS, SETITEM
            items = since_mark() if op == 0x75 else [stack.pop(-2), stack.pop()]
            if type(stack[-1]) is not dict:
                raise TypeError("items are put into an object that is not a dictionary")
            stack[-1].update(zip(items[::2], items[1::2], strict=False))
        elif op in (0x65, 0x61):  # APPENDS, APPEND
            items = since_mark() if op == 0x65 else [stack.pop()]
            if type(stack[-1]) is not list:
                raise TypeError("items are added to an object that is not a list")
            stack[-1].extend(items)
        elif op == 0x74:  # TUPLE
            stack.append(tuple(since_mark()))
        elif 0x85 <= op <= 0x87:  # TUPLE1 to TUPLE3
            size = op - 0x84
            stack[-size:] = [tuple(stack[-size:])]
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in _PUT:
            memo[argument] = stack[-1]
        elif op == 0x2E:  # STOP
            return stack[-1]
        elif op not in (0x80, 0x95):  # PROTO, FRAME
            raise _refusal(op)


def _refusal(op: int) -> ReadError:
    expected = (
        "dictionaries, lists, texts and numbers, as torch.cuda.memory._dump_snapshot writes them"
    )
    if (what := _REFUSED.get(chr(op))) is None:
        found = (
            f"the pickle is damaged, or has an operation that plain data do not need ({op:#04x})"
        )
        return ReadError(found, expected=expected)
    return ReadError(
        f"the pickle has {what}: unpickling it could run any code, so it is refused",
        expected=expected,
        hint=(
            "a file that a stranger gave you may be an attack: do not open it with pickle.load"
            " either"
        ),
    )


_ACTIONS: Final = {"alloc": 1, "free_requested": -1, "free": -1}
"""Events that change the allocated memory, with their sign.

Released memory counts as free at once, as in ``torch.cuda.memory_allocated``.
"""

_SEGMENTS: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_LIVE: Final = ("active_allocated", "active_pending_free", "active_awaiting_free")
_SCHEMA: Final = {
    "time_ns": pl.Int64,
    "bytes": pl.Int64,
    "address": pl.Int64,
    "torch_reserved": pl.Int64,
    "torch_action": pl.String,
    "torch_stream": pl.Int64,
    "torch_stack": pl.String,
    "torch_pool": pl.String,
}


def _tables_of(document: Mapping[str, Any]) -> tuple[Frames, list[str], int]:
    """Frames of a snapshot."""
    segments = [
        s for s in document["segments"] if isinstance(s, dict) and _natural(s.get("total_size"))
    ]
    traces = document.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    devices = {int(s.get("device") or 0) for s in segments if _natural(s.get("device") or 0)}
    devices |= {place for place, trace in enumerate(traces) if isinstance(trace, list) and trace}
    if not devices:
        found = "the snapshot has no segment and no event"
        hint = (
            "call torch.cuda.memory._record_memory_history() before the work, and write the"
            " snapshot after it"
        )
        raise ReadError(found, expected="a snapshot of a process that used the device", hint=hint)
    notes: list[str] = []
    if not any(isinstance(trace, list) and trace for trace in traces):
        notes.append(
            "the snapshot has no history: only the memory at the time of the snapshot is known; "
            "call torch.cuda.memory._record_memory_history() first"
        )
    texts = _Stacks()
    frames, counters, events = [], [], 0
    for device in sorted(devices):
        trace = traces[device] if device < len(traces) and isinstance(traces[device], list) else []
        mine = [s for s in segments if int(s.get("device") or 0) == device]
        frame, count, timed = _memory(trace, mine, texts)
        events += count
        if lost := len(trace) - count:
            notes.append(left_out(lost, "event", f"of device {device} in an unknown form"))
        if not timed and count:
            notes.append(
                f"the events of device {device} have no times: they are placed one nanosecond apart"
            )
        here = pl.lit(device, dtype=pl.Int32).alias("device")
        frames.append(frame.with_columns(here, on_device=pl.lit(True)))
        counters.append(_counters(mine, frame["time_ns"].to_list()[-1]).with_columns(here))
    return {"memory": pl.concat(frames), "counters": pl.concat(counters)}, notes, events


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_NS


def _blocks(
    segments: list[dict[str, Any]],
) -> Iterator[tuple[int | None, dict[str, Any], dict[str, Any]]]:
    """Address, block and segment of every block."""
    for segment in segments:
        address = segment.get("address")
        place = address if isinstance(address, int) else None
        for block in segment.get("blocks") or []:
            if not isinstance(block, dict) or not _natural(block.get("size")):
                continue
            own = block.get("address")
            yield (own if isinstance(own, int) else place), block, segment
            place = None if place is None else place + block["size"]


def _asked(block: Mapping[str, Any]) -> int:
    """Requested bytes, which the history counts."""
    requested = block.get("requested_size")
    return int(requested) if _natural(requested) and requested else int(block["size"])


class _Stacks:
    """Texts of call stacks; the text of each list of frames is made once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, str | None]] = {}

    def text(self, frames: object) -> str | None:
        """Frames, one per line, the outermost first; None without frames."""
        if not isinstance(frames, list) or not frames:
            return None
        entry = self._known.get(id(frames))
        if entry is None:
            lines = [
                f"{frame.get('filename') or '??'}({frame.get('line')}): {frame.get('name') or '??'}"
                for frame in reversed(frames)
                if isinstance(frame, dict)
            ]
            entry = self._known[id(frames)] = (frames, "\n".join(lines).replace("\0", "") or None)
        return entry[1]


def _memory(
    trace: list[Any], segments: list[dict[str, Any]], texts: _Stacks
) -> tuple[pl.DataFrame, int, bool]:
    """Rows of one device, the number of its events, and whether they have times."""
    events = [e for e in trace if isinstance(e, dict) and isinstance(e.get("action"), str)]
    timed = bool(events) and all(_natural(e.get("time_us")) for e in events)
    rows: list[tuple[Any, ...]] = []
    open_blocks: dict[int, int] = {}
    before: list[tuple[int | None, int, str | None, Any]] = []
    for number, event in enumerate(events):
        action, size, address = event["action"], event.get("size"), event.get("addr")
        size = size if isinstance(size, int) and _natural(size) else 0
        address = address if isinstance(address, int) and 0 <= address < 2**63 else None
        sign = _ACTIONS.get(action, 0)
        if action == "free_completed":
            continue
        if sign > 0 and address is not None:
            open_blocks[address] = size
        elif sign < 0 and address is not None and open_blocks.pop(address, None) is None:
            before.append((address, size, None, event.get("stream")))
        time_ns = event["time_us"] * 1000 if timed else number
        held, reserved = (
            sign * size if sign else None,
            _SEGMENTS[action] * size if action in _SEGMENTS else None,
        )
        about = (
            _integer(event.get("stream")),
            texts.text(event.get("frames")),
            _pool(event.get("pool_id")),
        )
        rows.append((time_ns, held, address, reserved, action, *about))
    start = rows[0][0] if rows else 0
    for address, block, segment in _blocks(segments):
        if block.get("state") == _LIVE[0] and (address is None or address not in open_blocks):
            before.append(
                (address, _asked(block), texts.text(block.get("frames")), segment.get("stream"))
            )
    blocks_before = [
        (start, size, address, None, "held", _integer(stream), stack, None)
        for address, size, stack, stream in before
    ]
    reserved = sum(int(s["total_size"]) for s in segments) - sum(row[3] or 0 for row in rows)
    first = (start, None, None, max(0, reserved), "held", None, None, None)
    frame = pl.DataFrame([first, *blocks_before, *rows], schema=_SCHEMA, orient="row")
    frame = frame.with_columns(
        allocated_bytes=pl.col("bytes").fill_null(0).cum_sum(),
        reserved_bytes=pl.col("torch_reserved").fill_null(0).cum_sum(),
    )
    return frame.drop("torch_reserved"), len(events), timed


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def _pool(value: object) -> str | None:
    """Number of a private pool, such as that of a CUDA graph; None for the default pool."""
    pair = tuple(value) if isinstance(value, list | tuple) else ()
    return None if not pair or not any(pair) else ".".join(str(part) for part in pair[:2])


def _counters(segments: list[dict[str, Any]], time_ns: int) -> pl.DataFrame:
    """Counters of the state when the snapshot was taken."""
    live = free = split = largest = rounding = waiting = 0
    for segment in segments:
        states = [(b.get("state"), int(b["size"]), _asked(b)) for _, b, _ in _blocks([segment])]
        inactive = [size for state, size, _ in states if state not in _LIVE]
        free += sum(inactive)
        largest = max([largest, *inactive])
        if len(inactive) < len(states):
            split += sum(inactive)
        live += sum(size for state, size, _ in states if state == _LIVE[0])
        waiting += sum(size for state, size, _ in states if state in _LIVE[1:])
        rounding += sum(size - requested for state, size, requested in states if state == _LIVE[0])
    values = {
        "segments": len(segments),
        "reserved": sum(int(s["total_size"]) for s in segments),
        "allocated blocks": live,
        "waiting to be free": waiting,
        "free in segments": free,
        "free in segments that are in use": split,
        "largest free block": largest,
        "rounding of blocks": rounding,
    }
    rows = [
        (time_ns, f"memory: {what}", float(n), "1" if what == "segments" else "B")
        for what, n in values.items()
    ]
    schema = {"time_ns": pl.Int64, "name": pl.String, "value": pl.Float64, "unit": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT_JSON: Final = re.compile(rb'\{\s*"(?:segments|device_traces)"\s*:\s*\[')
_TIMELINE: Final = re.compile(rb"\[\s*\[\s*\d{12,}\s*,[\s\d,-]*(?:\]\s*,\s*\[|$)")
_RAW: Final = re.compile(rb"\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]")

_CATEGORIES: Final = (
    "parameter",
    "optimizer state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd detail",
    "unknown",
)
"""Categories of ``torch.profiler._memory_profiler`` in the order of its exports."""

_BEFORE, _CREATE, _VERSION, _DESTROY = 1, 2, 3, 4


def _is_snapshot(probe: Probe) -> bool:
    start = probe.start
    if _PICKLE.match(start):
        return b"segments" in start or b"device_traces" in start
    return _SNAPSHOT_JSON.match(start.lstrip()) is not None


def _read_snapshot(path: Path, request: Request) -> Trace:
    data, damage = bytes_of(path)
    document = (
        data_of(data) if _PICKLE.match(data) else json_of(path, "a snapshot of the allocator")[0]
    )
    if not isinstance(document, dict) or not isinstance(document.get("segments"), list):
        found = f"{path.name} is not a snapshot"
        raise ReadError(found, expected="a dictionary with the lists segments and device_traces")
    tables, notes, events = _tables_of(document)
    return trace_of(path, "torch-snapshot", tables, events=events, notes=notes, damage=damage)


def _read_timeline(path: Path, request: Request) -> Trace:
    document, damage = json_of(path, "a memory timeline of PyTorch's profiler")
    if not isinstance(document, list) or not all(isinstance(row, list) for row in document):
        raise ReadError(f"{path.name} is not a memory timeline", expected="lists of numbers")
    if len(document) == 2 and (not document[1] or isinstance(document[1][0], list)):
        tables, lost = _sums(*document)
    else:
        tables, lost = _events(document)
    notes = [left_out(lost, "row", "in an unknown form")] if lost else []
    notes.append("a memory timeline has categories, but no operators, addresses or devices")
    return trace_of(path, "torch-memory-timeline", tables, notes=notes, damage=damage)


def _sums(times: list[Any], sizes: list[Any]) -> tuple[dict[str, pl.DataFrame], int]:
    """Read ``[times in us, sizes by category]``; the first size is always 0."""
    whole = [
        (time * 1000, *row[1:9])
        for time, row in zip(times, sizes, strict=False)
        if _whole(time)
        and time * 1000 < MOST_NS
        and isinstance(row, list)
        and len(row) == 9
        and all(map(_whole, row))
    ]
    schema = {"time_ns": pl.Int64, **dict.fromkeys(_CATEGORIES, pl.Int64)}
    frame = pl.DataFrame(whole, schema=schema, orient="row")
    memory = frame.select(
        "time_ns",
        allocated_bytes=pl.sum_horizontal(_CATEGORIES),
        on_device=pl.lit(True),
        torch_action=pl.lit("sample"),
    )
    used = [name for name in _CATEGORIES if frame[name].max()]
    counters = frame.unpivot(
        used, index="time_ns", variable_name="name", value_name="value"
    ).select(
        "time_ns",
        name=pl.format("memory: {}", "name"),
        value=pl.col("value").cast(pl.Float64),
        unit=pl.lit("B"),
    )
    return {"memory": memory, "counters": counters}, max(len(times), len(sizes)) - len(whole)


def _events(rows: list[Any]) -> tuple[dict[str, pl.DataFrame], int]:
    """Read ``[time in ns, action, bytes, category]``; the time -1 means before the recording."""
    whole = [row for row in rows if len(row) == 4 and all(map(_whole, row)) and row[0] < MOST_NS]
    schema = {"time_ns": pl.Int64, "action": pl.Int64, "bytes": pl.Int64, "category": pl.Int64}
    frame = pl.DataFrame(whole, schema=schema, orient="row").filter(
        pl.col("action").is_between(1, 4) & pl.col("category").is_between(0, 7)
    )
    first = frame.filter(pl.col("time_ns") > 0)["time_ns"].min()
    frame = frame.with_columns(
        time_ns=pl.when(pl.col("time_ns") < 0).then(first or 0).otherwise("time_ns")
    )
    frame = frame.sort("time_ns", maintain_order=True)
    names = dict(enumerate(_CATEGORIES))
    action = pl.col("action").replace_strict(
        {_BEFORE: "held", _CREATE: "alloc", _VERSION: "new version", _DESTROY: "free_requested"},
        return_dtype=pl.String,
    )
    memory = frame.select(
        "time_ns",
        "bytes",
        allocated_bytes=pl.col("bytes").cum_sum(),
        on_device=pl.lit(True),
        torch_action=action,
        torch_category=pl.col("category").replace_strict(names, return_dtype=pl.String),
    )
    parts = [
        frame.filter(category=number).select(
            "time_ns",
            name=pl.lit(f"memory: {name}"),
            value=pl.col("bytes").cum_sum().cast(pl.Float64),
            unit=pl.lit("B"),
        )
        for number, name in names.items()
    ]
    return {"memory": memory, "counters": pl.concat(parts)}, len(rows) - frame.height


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_NS


READERS: Final = (
    Reader(
        name="torch-snapshot",
        version=1,
        what="a snapshot of PyTorch's allocator (torch.cuda.memory._dump_snapshot)",
        sniff=_is_snapshot,
        read=_read_snapshot,
        alone=True,
    ),
    Reader(
        name="torch-memory-timeline",
        version=1,
        what="a memory timeline of PyTorch's profiler (export_memory_timeline)",
        sniff=lambda probe: (
            (_RAW.match(probe.start.lstrip()) or _TIMELINE.match(probe.start.lstrip())) is not None
        ),
        read=_read_timeline,
        alone=True,
    ),
)
