"""Decodes events of a Chrome trace into objects: only events that some table uses, and their
arguments when needed.

There are three decoders. The first reads times as numbers, which is exact to the nanosecond for
whole microseconds and for fractions below :data:`EXACT_US`. The second keeps the text of times
(epoch microseconds with a fraction, times written as strings). The last decodes event by event and
drops fields of a wrong type.
"""

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import polars as pl

from llmprof.readers.common.reader import MOST_NS
from llmprof.readers.common.repair import BAD_JSON, fit_struct

EXACT_US: Final = 2.0**43
"""Largest time in us (101 days) whose float64 tells nanoseconds.

Below it, float64 numbers are at most 2**-10 us = 0.977 ns apart, so the one nearest to a written
time is within 0.489 ns of it. A time of whole ns is the only one so near, and rounding finds it;
one with fractions of a ns becomes one of the two ns around it. At twice the size, neighbouring ns
share a number.
"""

_MOST_US: Final = MOST_NS // 1000


def _loses_digits(us: Sequence[int | float | None]) -> bool:
    """Whether the times hold a float64 that is too large to be exact to the nanosecond."""
    if float not in map(type, us):
        return False
    try:
        column = pl.Series(us, dtype=pl.Float64)
        least, largest = column.min(), column.max()
    except (TypeError, OverflowError):  # an integer of many digits
        least = largest = None
    if (
        isinstance(least, float)
        and isinstance(largest, float)
        and least > -EXACT_US
        and largest < EXACT_US
    ):
        return False
    return any(type(v) is float and not -EXACT_US < v < EXACT_US for v in us)


def times(start: str, values: Sequence[Any]) -> dict[str, pl.Series]:
    """Times as a column, named for its unit."""
    if values and isinstance(values[0], msgspec.Raw):
        return {f"{start}_ns": _exact_column(values)}
    if float not in map(type, itertools.islice(values, _FIRST)):
        try:
            return {f"{start}_us": pl.Series(values, dtype=pl.Int64)}
        except (TypeError, OverflowError):
            pass
    try:
        us = pl.Series(values, dtype=pl.Float64)
    except (TypeError, OverflowError):  # an integer of many digits
        us = pl.Series(
            [None if v is None or abs(v) > _MOST_US else float(v) for v in values], dtype=pl.Float64
        )
    return {f"{start}_us": us}


_FIRST: Final = 64
"""Values of a column that are looked at before it is tried as whole numbers: a failed attempt
takes long.
"""


def in_ns(frames: Sequence[pl.DataFrame], base_ns: int) -> list[pl.DataFrame]:
    """The columns of times as int64 ns, starts from the base.

    A value that is not a number, or is above :data:`MOST_NS`, becomes null. Frames with the same
    columns of times are converted together.
    """
    alike: dict[tuple[tuple[str, pl.DataType], ...], list[int]] = defaultdict(list)
    for place, frame in enumerate(frames):
        alike[tuple((c, d) for c, d in frame.schema.items() if c.endswith(("_us", "_ns")))].append(
            place
        )
    out = list(frames)
    for columns, places in alike.items():
        both = [
            pl.concat([frames[place][column] for place in places], rechunk=True)
            for column, _ in columns
        ]
        ns = pl.DataFrame(both).select(_in_ns(column, dtype, base_ns) for column, dtype in columns)
        begin = 0
        for place in places:
            here = ns.slice(begin, frames[place].height)
            begin += here.height
            converted = {column: here.to_series(i) for i, (column, _) in enumerate(columns)}
            out[place] = pl.DataFrame(
                [converted.get(column.name, column) for column in frames[place]]
            )
    return out


def _in_ns(column: str, dtype: pl.DataType, base_ns: int) -> pl.Expr:
    ns = pl.col(column)
    if column.endswith("_us"):
        us = pl.when(ns.is_between(-_MOST_US, _MOST_US)).then(ns)
        if dtype == pl.Float64:
            ns = us.floor().cast(pl.Int64) * 1000 + ((us - us.floor()) * 1000 + 0.5).floor().cast(
                pl.Int64
            )
        else:
            ns = us * 1000
    return (ns if column.startswith("dur") else ns + base_ns).alias(f"{column[:-3]}_ns")


def _exact_column(values: Sequence[msgspec.Raw]) -> pl.Series:
    """Texts of times in us as int64 ns: decimal numbers as a column, other texts one by one."""
    texts = [text if text.isascii() else b"" for text in map(bytes, values)]
    us = (
        pl.col("us")
        .cast(pl.String)
        .str.strip_chars('"')
        .cast(pl.Decimal(38, _DECIMALS), strict=False)
    )
    whole = (
        us.round(3, mode="half_away_from_zero")
        .cast(pl.Decimal(38, 3))
        .to_physical()
        .cast(pl.Int64, strict=False)
    )
    fitting = pl.when(whole.is_between(-MOST_NS, MOST_NS)).then(whole)
    ns = pl.DataFrame({"us": pl.Series(texts, dtype=pl.Binary)}).select(ns=fitting).to_series()
    if others := ns.is_null().arg_true().to_list():
        return ns.scatter(others, pl.Series([_exact(texts[i]) for i in others], dtype=pl.Int64))
    return ns


_DECIMALS: Final = 12
"""Decimals of a us that are read."""


def _exact(text: bytes) -> int | None:
    """Time in ns from the text of a time in us; None if the text is not a number."""
    try:
        ns = Decimal(str(msgspec.json.decode(text)) if text[:1] == b'"' else text.decode()) * 1000
        if not ns.is_finite() or abs(ns) > MOST_NS:
            return None
        return int(ns.to_integral_value(ROUND_HALF_UP))
    except (InvalidOperation, msgspec.DecodeError, UnicodeDecodeError):
        return None


class OtherPhase(NamedTuple):
    """Stands in place of the category of an event that is not a complete one: its phase
    (``ph``).
    """

    phase: str


Id = int | str | None
_NOTHING: Final = msgspec.Raw(b"{}")


class OtherEvent(msgspec.Struct, gc=False):
    """An instant, counter or metadata event with its time as a number (us); its category is of
    no use.
    """

    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: int | float | None = None
    args: msgspec.Raw = _NOTHING


class Event(msgspec.Struct, gc=False):
    """A complete event, which has a begin and a duration, with its times as numbers (us)."""

    cat: str | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: int | float | None = None
    dur: int | float | None = 0
    args: msgspec.Raw = _NOTHING


class OtherExactEvent(msgspec.Struct, gc=False):
    """An instant, counter or metadata event with its time as the text of the file."""

    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = _NOTHING


class ExactEvent(msgspec.Struct, gc=False):
    """A complete event with its times as the text of the file."""

    cat: str | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = _NOTHING


class Flow(OtherExactEvent, gc=False):
    """A begin or an end of a flow."""

    id: Id = None
    category: str | None = msgspec.field(default=None, name="cat")


class Ignored(msgspec.Struct, gc=False):
    """Event that no table uses; its fields are not decoded."""

    cat: ClassVar[OtherPhase] = OtherPhase("")
    ts: ClassVar[None] = None


class _Phase(msgspec.Struct, gc=False):
    ph: Any = None


def _of_phases(base: type[msgspec.Struct], phases: str) -> dict[str, Any]:
    """A class for each phase; in place of a category, those of other events than complete ones
    have the phase.
    """
    return {
        ph: msgspec.defstruct(
            f"{base.__name__}_{ph}",
            [],
            bases=(base,),
            namespace=None if "cat" in base.__struct_fields__ else {"cat": OtherPhase(ph)},
            tag_field="ph",
            tag=ph,
            gc=False,
        )
        for ph in phases
    }


COMPLETE: Final = "X"
"""Phase of complete events: with a begin and a duration."""


def _decoder_of(*classes: Any) -> msgspec.json.Decoder[list[Any]]:
    return msgspec.json.Decoder(list[functools.reduce(operator.or_, classes)])  # type: ignore[misc]


_EVENTS: Final = _of_phases(Event, COMPLETE) | _of_phases(OtherEvent, "iICM")
_EXACT_EVENTS: Final = _of_phases(ExactEvent, COMPLETE) | _of_phases(OtherExactEvent, "iICM")
_IGNORED: Final = _of_phases(Ignored, "stfbneBESTFpPNODVvRc(),=")
_FLOWS: Final = _EXACT_EVENTS | _IGNORED | _of_phases(Ignored, COMPLETE) | _of_phases(Flow, "stf")

_FAST_DECODER: Final = _decoder_of(*_EVENTS.values(), *_IGNORED.values())
_EXACT_DECODER: Final = _decoder_of(*_EXACT_EVENTS.values(), *_IGNORED.values())
_FLOW_DECODER: Final = _decoder_of(*_FLOWS.values())
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_PHASE: Final = msgspec.json.Decoder(_Phase)


def in_one_form(events: list[Any]) -> list[Any]:
    """Events with their times either all as numbers or all as text; a batch joined from pieces
    may hold both.
    """
    classes = set(map(type, events))
    if classes.isdisjoint(_EVENTS.values()) or classes.isdisjoint(_EXACT_EVENTS.values()):
        return events
    return [
        _exact_form(event) if isinstance(event, Event | OtherEvent) else event for event in events
    ]


def _exact_form(event: Event | OtherEvent) -> ExactEvent | OtherExactEvent:
    phase = COMPLETE if isinstance(event, Event) else event.cat.phase  # type: ignore[attr-defined]
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    texts = {
        name: msgspec.Raw(msgspec.json.encode(values[name]))
        for name in ("ts", "dur")
        if name in values
    }
    exact: ExactEvent | OtherExactEvent = _EXACT_EVENTS[phase](**values | texts)
    return exact


class EventDecoder:
    """Decoder that starts fast and falls back where a file needs it; of complete events, or of
    ``flows`` in their place.
    """

    def __init__(self, *, flows: bool = False) -> None:
        self.exact = flows
        self._classes = _FLOWS if flows else _EXACT_EVENTS | _IGNORED
        self._exact_decoder = _FLOW_DECODER if flows else _EXACT_DECODER
        self.forms: set[str] = set()
        self.wrong_types = 0

    def __call__(self, text: bytes) -> list[Any]:
        """Events of a JSON list; raises a decode error if the text is not JSON."""
        if not self.exact:
            try:
                events = _FAST_DECODER.decode(text)
            except msgspec.ValidationError:
                pass
            else:
                if not _loses_digits([e.ts for e in events]):
                    self.forms.add("number")
                    return events
        self.forms.add("text")
        try:
            events = self._exact_decoder.decode(text)
        except msgspec.ValidationError:
            return self._one_by_one(text)
        self.exact = True
        return events

    def _one_by_one(self, text: bytes) -> list[Any]:
        events, wrong = [], 0
        for element in _ELEMENTS.decode(text):
            try:
                phase = _PHASE.decode(element).ph
            except BAD_JSON:
                wrong += 1  # no object
                continue
            kind = self._classes.get(phase, Ignored) if isinstance(phase, str) else Ignored
            event, unfit = fit_struct(kind, element)
            events.append(event)
            wrong += unfit
        self.wrong_types += wrong
        return events


JsonNumber = int | float | None
NOTHING: Final = msgspec.Raw(b"")
"""Raw JSON of a missing field."""


def _arg(name: str, default: Any = None) -> Any:
    return msgspec.field(default=default, name=name)


class ChromeArgs(msgspec.Struct, gc=False):
    """Arguments that events of every kind may have."""

    external_id: Id = _arg("External id")
    external_id_2021: Id = _arg("external id")

    @property
    def op_id(self) -> Id:
        """Identifier of the operator that was running."""
        return self.external_id_2021 if self.external_id is None else self.external_id


class CallArgs(ChromeArgs, gc=False):
    """Calls of a device runtime.

    Kineto, exporters of nsys and XLA have different names for the correlation.
    """

    correlation: Id = None
    correlation_nsys: Id = _arg("correlationId")
    correlation_xla: Id = _arg("correlation_id")

    @property
    def call(self) -> Id:
        """Identifier of the call that launched it."""
        of_others = self.correlation_xla if self.correlation_nsys is None else self.correlation_nsys
        return of_others if self.correlation is None else self.correlation


class LaunchArgs(CallArgs, gc=False):
    """Calls of a device runtime.

    On AMD devices they name the kernel that they launch and its sizes.
    """

    kernel: str | None = None
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING


class CopyArgs(CallArgs, gc=False):
    """Copies and fills on a device."""

    device: Id = None
    stream: Id = None
    size: JsonNumber = _arg("bytes")
    graph: Id = _arg("graph id")
    graph_node: Id = _arg("graph node id")


class QueueArgs(CallArgs, gc=False):
    """Commands of an MTIA device's queues: copies, waits, signals and the programs that it runs."""

    device: Id = None
    stream: Id = None
    graph: Id = None
    graph_node: Id = None
    size: JsonNumber = None
    direction: str | None = None


class KernelArgs(CallArgs, gc=False):
    """Kernels, with the description of the collective if they are one."""

    device: Id = None
    stream: Id = None
    registers: JsonNumber = _arg("registers per thread")
    shared: JsonNumber = _arg("shared memory")
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    occupancy: float | None = _arg("est. achieved occupancy %")
    graph: Id = _arg("graph id")
    graph_node: Id = _arg("graph node id")
    module_path: msgspec.Raw = _arg("module path", NOTHING)
    module_path_2: msgspec.Raw = _arg("module_path", NOTHING)
    module: msgspec.Raw = _arg("module", NOTHING)
    marked: msgspec.Raw = _arg("str", NOTHING)
    annotation: msgspec.Raw = _arg("annotation", NOTHING)
    layer: msgspec.Raw = _arg("layer", NOTHING)
    marked_name: msgspec.Raw = _arg("name", NOTHING)
    collective: str | None = _arg("Collective name")
    in_elements: JsonNumber = _arg("In msg nelems")
    out_elements: JsonNumber = _arg("Out msg nelems")
    group_size: JsonNumber = _arg("Group size")
    dtype: str | None = None
    group: str | None = _arg("Process Group Name")
    group_ranks: str | None = _arg("Process Group Ranks")
    source_rank: JsonNumber = _arg("Src Rank")
    target_rank: JsonNumber = _arg("Dst Rank")


class OpArgs(ChromeArgs, gc=False):
    """Operators of torch and ONNX Runtime, with their shapes as JSON."""

    dims: msgspec.Raw = _arg("Input Dims", NOTHING)
    dims_2021: msgspec.Raw = _arg("Input dims", NOTHING)
    types: msgspec.Raw = _arg("Input type", NOTHING)
    types_and_dims: msgspec.Raw = _arg("input_type_shape", NOTHING)
    strides: msgspec.Raw = _arg("Input Strides", NOTHING)
    inputs: msgspec.Raw = _arg("Concrete Inputs", NOTHING)
    op_name: str | None = None


class DeviceMarkerArgs(CallArgs, gc=False):
    """Markers on a device, with the streams and events that a synchronisation waits for."""

    device: Id = None
    stream: Id = None
    sync_kind: str | None = _arg("cuda_sync_kind")
    wait_on_stream: Id = None
    wait_on_record: Id = _arg("wait_on_cuda_event_record_corr_id")


class MemoryArgs(msgspec.Struct, gc=False):
    """Allocations and releases."""

    device_type: JsonNumber = _arg("Device Type")
    device: Id = _arg("Device Id")
    address: Id = _arg("Addr")
    size: JsonNumber = _arg("Bytes")
    allocated: JsonNumber = _arg("Total Allocated")
    reserved: JsonNumber = _arg("Total Reserved")


class NameArgs(msgspec.Struct, gc=False):
    """Name of a process."""

    name: Id = None
