"""Files that llmprof reads back, and plain data of users: one loader, which checks all of them by
their types.

A value that passes has the declared types, finite numbers, which fit 64 bits where a type says so,
and no deep nesting; unknown keys stay. Anything else is a :class:`~llmprof.errors.ReadError` with
the file, the field and what to do.
"""

import itertools
import json
import warnings
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypedDict

import msgspec
import polars as pl
from msgspec import Meta

from llmprof.errors import LlmprofError, ReadError, TraceWarning, needs
from llmprof.trace.storage.files import regular

AGAIN: Final = "restore the file from a copy, or remove it and make it again"
_DEEPEST: Final = 64
_MOST_INT: Final = 2**1000
"""Larger than any number of use, and still a number with a point."""
_BY_ALIASES: Final = 100
"""Most values for each character of a text: aliases of YAML can stand for any number of them."""


def read(path: Path, kind: Any, *, error: type[LlmprofError] = ReadError, hint: str = AGAIN) -> Any:
    """Content of a JSON file, with the types of ``kind``."""
    try:
        content = regular(path).read_bytes()
    except (OSError, ValueError) as why:
        words = getattr(why, "strerror", None) or why
        raise error(f"{path} cannot be read: {words}", hint=hint, path=str(path)) from why
    return decoded(content, kind, str(path), error=error, hint=hint)


def found(path: Path, kind: Any) -> Any:
    """As :func:`read`; None if there is no such file."""
    try:
        return read(path, kind)
    except ReadError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def read_if_whole(path: Path, kind: Any) -> Any:
    """As :func:`read`; None if the file is missing or damaged, for what a process may have left
    half written.
    """
    try:
        return found(path, kind)
    except ReadError:
        return None


def read_or_set_aside(path: Path, kind: Any) -> Any:
    """As :func:`read`; None if the file is missing.

    A damaged one is set aside, so that a new one can begin.
    """
    try:
        return found(path, kind)
    except ReadError as error:
        set_aside(path, error)
        return None


def set_aside(path: Path, error: ReadError) -> None:
    """Give a damaged file another name, and say so."""
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
    try:
        aside = path.rename(next(name for name in names if not name.exists()))
    except OSError as why:
        raise error from why
    warnings.warn(
        f"{error.found}; it is now {aside.name}, and a new one begins", TraceWarning, stacklevel=3
    )


def decoded(
    content: bytes | str,
    kind: Any,
    name: str,
    *,
    error: type[LlmprofError] = ReadError,
    hint: str = AGAIN,
) -> Any:
    """Value of a JSON text, with the types of ``kind``."""
    try:
        value = bounded_value(json.loads(content), len(content))
        # half a surrogate pair could not be written again, but for bytes of names of files
        if "\\ud" in str(content).lower():
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
        return validated(value, kind, name, error=error, hint=hint)
    except (ValueError, RecursionError) as why:
        raise error(f"{name} is damaged: {why}", hint=hint, path=name) from why


def validated(
    value: Any, kind: Any, name: str, *, error: type[LlmprofError] = ReadError, hint: str = AGAIN
) -> Any:
    """The value itself, if it has the types of ``kind``."""
    try:
        msgspec.convert(value, kind)
    except ValueError as why:  # also half a surrogate pair
        raise error(f"{name} is damaged: {why}", hint=hint, path=name) from why
    return value


def from_yaml(text: str, name: str, *, error: type[LlmprofError] = ReadError) -> Any:
    """Value of a YAML text: plain data without tags of Python, and no key twice."""
    with needs("pyyaml", "YAML needs", "launch"):
        import yaml

    class Loader(yaml.SafeLoader):
        """Safe loader that refuses duplicate keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            refuse_twice(
                [self.construct_object(key, deep=True) for key, _ in node.value], name, error
            )
            return super().construct_mapping(node, deep)

    hint = "correct it at that place"
    try:
        return bounded_value(yaml.load(text, Loader=Loader), len(text))  # noqa: S506 - a safe one
    except yaml.constructor.ConstructorError as why:
        raise error(
            f"{name} has a value that is not plain data: {_place(why)}",
            expected="text, numbers, true and false, null, lists and mappings",
            hint="remove tags such as !!python/object; no code of the file was run",
        ) from why
    except yaml.YAMLError as why:
        raise error(f"{name} is not valid YAML: {_place(why)}", hint=hint) from why
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as why:  # what constructors raise
        raise error(
            f"{name} is not valid YAML: {type(why).__name__}: {str(why)[:200]}", hint=hint
        ) from why


def read_yaml(path: Path, *, error: type[LlmprofError] = ReadError) -> Any:
    """Content of a YAML file."""
    try:
        return from_yaml(regular(path).read_text("utf-8"), path.name, error=error)
    except (OSError, ValueError) as why:
        raise error(
            f"{path} cannot be read: {why}", expected="YAML as UTF-8", path=str(path)
        ) from why


def refuse_twice(keys: list[Any], name: str, error: type[LlmprofError]) -> None:
    """Raise for a key that a mapping has twice."""
    seen: set[Any] = set()
    for key in keys:
        if isinstance(key, Hashable) and key in seen:
            raise error(f"{name} has the key {key!r} twice", hint="keep one of them")
        seen.add(key if isinstance(key, Hashable) else str(key))


def _place(error: Any) -> str:
    """What a parser of YAML says, with the line."""
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or type(error).__name__}{where}"


def bounded_value(value: Any, length: int) -> Any:
    """The value, or ValueError if it is nested too deeply, multiplied by aliases, or has too
    large numbers.
    """
    level, count = [value], 0
    for _ in range(_DEEPEST):
        if any(type(item) is int and not -_MOST_INT < item < _MOST_INT for item in level):
            raise ValueError("a number has more than 300 digits")
        inner = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, dict | list)
        ]
        count += sum(map(len, inner))
        if count > _BY_ALIASES * (length + 1):
            raise ValueError("aliases make it larger than it looks")
        if not inner:
            return value
        level = [item for items in inner for item in items]
    raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Ns = Annotated[int, Meta(ge=0, le=2**62)]
FiniteNumber = Annotated[float, Meta(ge=-1e30, le=1e30)]
"""A number whose squares and sums are finite."""
Seconds = Annotated[float, Meta(ge=-4e9, le=4e9)]
"""A time whose nanoseconds fit 64 bits."""
Name = Annotated[str, Meta(pattern=r"\A(?!\.{0,2}\Z)[^/\0]{1,255}\Z")]
"""Name of a file or folder in a known folder; no path."""
Line = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
OptionValue = None | bool | Int | FiniteNumber | str | list[Any] | dict[str, Any]
"""Value of an option."""

_OF_COLUMNS: Final[dict[Any, Any]] = {
    pl.String: str,
    pl.Int64: Int,
    pl.Float64: FiniteNumber,
    pl.Boolean: bool,
    pl.List(pl.Int64): list[Int],
}


def row(schema: Mapping[str, Any]) -> Any:
    """Type of a row that goes into a frame with this schema; what is not known may be null or
    missing.
    """
    return TypedDict(
        "Row", {name: _OF_COLUMNS[kind] | None for name, kind in schema.items()}, total=False
    )  # type: ignore[operator]


class ErrorJson(TypedDict, total=False):
    """Error of a run or of an engine."""

    type: str | None
    message: str | None
    found: str | None
    advice: str | None


class StageJson(TypedDict, total=False):
    """Stage of an engine's script."""

    name: Required[str]
    start_ns: Required[Ns]
    dur_ns: Required[Ns]
    repeat: Int | None


class RequestJson(TypedDict, total=False):
    """Request of a run."""

    phase: Required[str]
    repeat: Int | None
    request: Int | None
    id: str | None
    start_ns: Int | None
    prompt_tokens: Count | None
    output_tokens: Count | None
    finish_reason: str | None
    arrived_s: Seconds | None
    prefilled_s: Seconds | None
    ttft_s: Seconds | None
    tpot_s: Seconds | None
    itl_s: list[Seconds] | None
    queue_s: Seconds | None
    prefill_s: Seconds | None
    decode_s: Seconds | None
    e2e_s: Seconds | None


class EngineStepJson(TypedDict, total=False):
    """Step of the engine's scheduler."""

    phase: Required[str]
    start_ns: Required[Int]
    end_ns: Required[Int]
    tokens: Required[dict[str, Count]]
    computed: Required[dict[str, Count]]
    preempted: list[str] | None
    engine: Count | None


class LoadJson(TypedDict, total=False):
    """Rates of a phase under load."""

    phase: Required[str]
    answered_per_s: Required[FiniteNumber | None]


class CacheJson(TypedDict, total=False):
    """Size of the KV cache."""

    tokens: Count | None
    blocks: Count | None
    block_size: Count | None
    bytes: Count | None
    peak_usage: FiniteNumber | None


class HitsJson(TypedDict, total=False):
    """Tokens that were looked up in the prefix cache, and found."""

    queries: Required[Annotated[int, Meta(ge=1, le=2**53)]]
    hits: Required[Count | None]


class EngineStartJson(TypedDict):
    """Place of a run among those that one start of an engine measured."""

    point: Count
    points: Count | None


class WorkerJson(TypedDict, total=False):
    """``worker.json``: what the engine's script measured."""

    engine: str | None
    engine_version: str | None
    torch_version: str | None
    python_version: str | None
    platform: str | None
    connector: str | None
    device_names: list[str] | None
    random_weights: bool | None
    stages: list[StageJson] | None
    requests: Required[list[RequestJson]]
    engine_start: EngineStartJson | None
    engine_steps: list[EngineStepJson] | None
    load: list[LoadJson] | None
    prefix_cache: dict[str, HitsJson] | None
    kv_cache: CacheJson | None
    peak_memory_bytes: dict[str, Count] | None
    notes: list[str] | None
    outputs: list[list[Any]] | None
    error: ErrorJson | None


class ProgressJson(TypedDict, total=False):
    """Line of ``events.jsonl``."""

    event: Required[str]
    message: str | None
    done: Int
    total: Int


class RunJson(TypedDict, total=False):
    """``state.json`` of a run."""

    state: Required[
        Literal["running", "finished", "finished without import", "failed", "interrupted"]
    ]
    stage: str | None
    pid: Int | None
    started: str | None
    ended: str | None
    error: ErrorJson | None
    stages: list[StageJson]


class CaptureJson(TypedDict, total=False):
    """What the check of a capture found."""

    imported: bool
    advice: str | None
    warnings: list[str] | None


class JoulesJson(TypedDict, total=False):
    """Energy of a phase."""

    phase: Required[str]
    joules_per_output_token: Required[FiniteNumber | None]
    watts: Required[FiniteNumber | None]
    ci95_low: FiniteNumber | None
    ci95_high: FiniteNumber | None


class EnergyJson(TypedDict, total=False):
    """Energy of a run."""

    phases: list[JoulesJson] | None


class MetricJson(TypedDict, total=False):
    """Row of the summary of the requests."""

    phase: Required[str]
    metric: Required[str]
    unit: Required[str]
    mean: Required[FiniteNumber | None]
    p99: Required[FiniteNumber | None]


class OverheadJson(TypedDict, total=False):
    """Row of what the profiler costs."""

    metric: Required[str]
    overhead: FiniteNumber | None
    clear: bool | None


class SummaryJson(TypedDict, total=False):
    """``summary.json`` of a run."""

    engine: str | None
    engine_version: str | None
    started: str | None
    capture: CaptureJson | None
    metrics: list[MetricJson] | None
    overhead: list[OverheadJson] | None
    energy: EnergyJson | None
    kv_cache: CacheJson | None
    peak_memory_bytes: dict[str, Count] | None
    top_kernels: list[dict[str, Any]] | None
    notes: list[str] | None
    warnings: list[str] | None


class ReportJson(TypedDict):
    """``summary.json`` of a report."""

    llmprof: str
    files: Any


class FileJson(TypedDict):
    """File of a run, as its manifest lists it."""

    name: Line
    bytes: Count
    sha256: str


class ManifestJson(TypedDict):
    """``manifest.json`` of a run."""

    files: list[FileJson]
    versions: NotRequired[dict[str, str | None]]


class ClockJson(TypedDict, total=False):
    """``cpu_clock.json`` of a run."""

    epoch_minus_monotonic_ns: Int | None


class MachineJson(TypedDict, total=False):
    """``gpu_info.json`` of a run."""

    cores: Annotated[int, Meta(ge=1, le=10**6)] | None


class MadeJson(TypedDict, total=False):
    """What the finished passes of a run left for the next one."""

    commands: list[dict[str, Any]] | None
    environment: dict[str, str] | None
    notes: list[str] | None


class StartJson(TypedDict):
    """The start of an engine that measured several runs."""

    home: Line
    point: Count
    points: Count
    before: list[Name]
    argv: list[str]
    environment: dict[str, str]
    notes: list[str]


class WindowJson(TypedDict):
    """Window of a recording (ns since the epoch)."""

    start_epoch_ns: Int
    end_epoch_ns: Int


class CostJson(TypedDict, total=False):
    """What a capture of a server cost."""

    seconds: FiniteNumber
    bytes: Required[Count]
    stop_s: Required[Seconds]
    overhead: Required[FiniteNumber | None]


class DeviceJson(TypedDict, total=False):
    """State of a device beside a capture."""

    ecc_uncorrected: Required[Count | None]


class DevicesJson(TypedDict, total=False):
    """State of the devices beside a capture."""

    others: FiniteNumber | None
    others_utilization: FiniteNumber | None
    devices: Required[list[DeviceJson]]


class RecordingJson(TypedDict, total=False):
    """``recording.json``: a window of a server."""

    config: dict[str, Any] | None
    told_by: list[str] | None
    window: WindowJson | None
    cost: CostJson | None
    counters: dict[str, dict[str, FiniteNumber | None]] | None
    devices: dict[str, DevicesJson | None] | None
    notes: list[str] | None


class ChangedJson(TypedDict, total=False):
    """``changed.json`` of a capture."""

    says: str
    counters: dict[str, FiniteNumber | None] | None


class EventJson(TypedDict, total=False):
    """Event of a watch."""

    time: Required[str]
    what: Required[str]
    folder: Name | None
    changed: str | None
    found: str | None


class WatchJson(TypedDict, total=False):
    """``watch.json``."""

    when: str | None
    scrapes: Count | None
    lost: Count | None
    unread: Count | None
    holds: bool | None
    captures: Count | None
    kept: list[Name] | None
    says: str | None
    events: list[EventJson] | None


class FindingJson(TypedDict, total=False):
    """Finding of a capture."""

    rule: Required[str]
    severity: Required[str]
    recorded_share: FiniteNumber | None
    title: str | None


class RecorderJson(TypedDict, total=False):
    """Who records a server."""

    pid: Int | None
    started: str | None
    folder: str | None
    state: str | None


class ConfigJson(TypedDict, total=False):
    """Configuration within a state; its keys are checked where it is used."""

    model: Required[str]


class PartJson(TypedDict):
    """Part of the time of a point's steps."""

    phase: str | None
    part: str
    ns: Ns
    share: FiniteNumber | None
    steps: Int | None
    ranks: Int | None


class ResultJson(TypedDict, total=False):
    """Result of a point."""

    measures: dict[str, bool | Int | FiniteNumber | str | None] | None
    where: list[PartJson] | None
    note: str | None


class CalibrationJson(TypedDict, total=False):
    """Calibration of the theory to a device."""

    device: Required[str]
    values: Required[dict[str, FiniteNumber]]
    source: str
    errors: list[dict[str, OptionValue]]
    covers: dict[str, list[OptionValue]]


class StepJson(TypedDict, total=False):
    """Measured step of a model."""

    model: Required[str]
    batch: Required[Count]
    prompt: Required[Count]
    decode_step_s: Required[FiniteNumber | None]
    prefill_last_s: Required[FiniteNumber | None]
    prefill_first_s: FiniteNumber | None
    prefill_span_s: FiniteNumber | None
    tp: Count | None
    out: Count | None
    dtype: str | None
    quant: str | None


class StepsJson(TypedDict):
    """Measured steps."""

    rows: list[StepJson]


class PointsJson(TypedDict, total=False):
    """``points.json`` of an experiment."""

    format: Required[str]
    rows: Required[list[dict[str, OptionValue]]]
    communication: list[dict[str, OptionValue]] | None
    model: str | None
    left_out: str | None
    gpu: str | None


class NotesJson(TypedDict, total=False):
    """Metadata of the monitors' samples."""

    hz: FiniteNumber | None
    late: Count | None
    notes: list[str] | None


class CellJson(TypedDict, total=False):
    """Cell of a notebook."""

    source: Required[str | list[str]]
    metadata: dict[str, Any]


class NotebookJson(TypedDict):
    """Notebook of Jupyter."""

    cells: list[CellJson]


class PointJson(TypedDict, total=False):
    """Point of a sweep or of a search."""

    point: Required[Count]
    values: Required[dict[str, OptionValue]]
    state: Required[Literal["pending", "running", "finished", "failed", "interrupted"]]
    run: Required[Name | None]
    error: Required[str | None]
    started: str | None
    seconds: FiniteNumber | None
    start: Count | None
    predicted: FiniteNumber | None
    trial: Count | None
    metrics: dict[str, FiniteNumber | None] | None
    result: ResultJson | None
    probes: list[dict[str, bool | Int | FiniteNumber | str | None]] | None


class StartsJson(TypedDict):
    """Starts of an engine for some points."""

    points: list[Count]
    starts: Count


class ExcludedJson(TypedDict):
    """Point that a bound excludes."""

    values: dict[str, OptionValue]
    reason: str


class RankedJson(TypedDict):
    """Point that findings advise."""

    values: dict[str, OptionValue]
    gain: FiniteNumber | None


class TuneJson(TypedDict, total=False):
    """What a search knows."""

    objective: Required[str]
    slo: Required[str]
    start: Required[dict[str, OptionValue]]
    spent_s: Required[FiniteNumber]
    excluded: Required[list[ExcludedJson]]
    notes: Required[list[str]]
    ranking: list[RankedJson] | None
    stopped: str | None
    bound: str | None
    confirmation: Name | None
    importance: dict[str, FiniteNumber] | None
    engine_version: str | None
    profile_mode: str | None
    workload: str | None


class SweepJson(TypedDict, total=False):
    """``sweep.json`` of a sweep or a search."""

    version: Required[Literal[1]]
    config: Required[ConfigJson]
    parameters: Required[dict[str, list[OptionValue]]]
    points: Required[list[PointJson]]
    order: list[Count] | None
    starts: list[StartsJson] | None
    fresh_engine: bool | None
    tune: TuneJson


class SideJson(TypedDict):
    """A side of a pair of measurements."""

    at_ns: Int
    means: dict[str, FiniteNumber | None]


class PairJson(TypedDict, total=False):
    """Pair of measurements."""

    A: SideJson
    B: SideJson


class GainJson(TypedDict):
    """Predicted gain, as a share."""

    gain: FiniteNumber
    low: FiniteNumber
    high: FiniteNumber


class DriftJson(TypedDict):
    """How the machine became slower or faster."""

    t: FiniteNumber | None
    per_hour: FiniteNumber | None


class EqualJson(TypedDict, total=False):
    """Share of tokens that are equal."""

    between: FiniteNumber | None
    within: FiniteNumber | None


class SidesJson(TypedDict, total=False):
    """Names of the recordings of both sides."""

    A: Name
    B: Name


class OfConfigJson(ConfigJson, total=False):
    """Configuration of a trial."""

    seed: Required[Int]


class TrialJson(TypedDict, total=False):
    """``trial.json``."""

    version: Required[Literal[1]]
    config: Required[OfConfigJson]
    change: Required[str]
    fields: Required[dict[str, OptionValue]]
    objective: Required[str]
    until: Required[FiniteNumber]
    pairs: Required[list[PairJson]]
    notes: Required[list[str]]
    slo: str | None
    predicted: GainJson | None
    unpredicted: str | None
    engines: str | None
    error: str | None
    versions: dict[str, str | None] | None
    memory_bytes: dict[str, Count | None] | None
    drift: DriftJson | None
    equal: EqualJson | None
    profiled: SidesJson | None
