"""Load of a run: prompts, lengths of prompts and answers, shared prefixes, and arrival times of
the requests.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError
from llmprof.run.launch.config.options import ExperimentConfig, read_text, setting
from llmprof.run.workers.server import arrivals as poisson
from llmprof.trace.storage import typed

KINDS: Final = ("normal", "lognormal", "exponential")
"""Distributions of lengths, in addition to a number and a range."""

_TIMES: Final = ("timestamp", "TIMESTAMP", "arrival", "arrival_time", "time")
_INPUTS: Final = ("input_length", "ContextTokens", "prompt_tokens", "input_tokens", "prompt_len")
_OUTPUTS: Final = (
    "output_length",
    "GeneratedTokens",
    "output_tokens",
    "completion_tokens",
    "output_len",
    "max_tokens",
)
_TEXTS: Final = ("prompt", "text", "instruction", "question", "content")
_MOST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of a run, before they have tokens."""

    input_tokens: list[int]
    output_tokens: list[int] | None = None
    arrivals_s: list[float] | None = None
    texts: list[str] | None = None
    notes: tuple[str, ...] = ()


def lengths(distribution: str | int, count: int, seed: int, what: str = "input") -> list[int]:
    """Draw the lengths of prompts or answers, each at least 1."""
    kind, *numbers = str(distribution).split(":")
    chance, wrong = random.Random(seed), False  # noqa: S311 (no secret)
    draw: Callable[[], float]
    try:
        values = [float(value) for value in (numbers if kind in KINDS else [kind, *numbers])]
        if not all(math.isfinite(value) and value >= 0 for value in values) or values[0] < 1:
            raise ValueError(distribution)
        if kind == "normal" and len(values) == 2:
            draw = lambda: chance.gauss(*values)  # noqa: E731
        elif kind == "lognormal" and len(values) == 2:
            # the logarithm of a lognormal variable has the variance ln(1 + (deviation / mean)^2)
            variance = math.log1p((values[1] / values[0]) ** 2)
            draw = lambda: chance.lognormvariate(  # noqa: E731
                math.log(values[0]) - variance / 2, math.sqrt(variance)
            )
        elif kind == "exponential" and len(values) == 1:
            draw = lambda: chance.expovariate(1 / values[0])  # noqa: E731
        elif kind not in KINDS and len(values) in {1, 2} and values[0] <= values[-1]:
            low, high = int(values[0]), int(values[-1])
            draw = lambda: chance.randint(low, high)  # noqa: E731
        else:
            wrong = True
    except (ValueError, IndexError):
        wrong = True
    if wrong:
        expected = (
            "N, LOW:HIGH, normal:MEAN:DEVIATION, lognormal:MEAN:DEVIATION or exponential:MEAN, in"
            " tokens"
        )
        raise ConfigError(f"load.{what} is {distribution!r}", expected=expected, key=f"load.{what}")
    return [max(1, round(draw())) for _ in range(count)]


def _arrivals(kind: str, count: int, rate: float, seed: int, burst: int) -> list[float]:
    """Arrival times of requests (s, from the first)."""
    if rate and kind == "constant":
        return [k / rate for k in range(count)]
    if rate and kind == "burst":
        return [(k // burst) * burst / rate for k in range(count)]
    return poisson(count, rate, seed)


def load(config: ExperimentConfig) -> Load | None:
    """Load that the option ``load`` of a configuration describes; None without this option."""
    if not config.load:
        return None
    file = setting(config, "load", "file")
    count = setting(config, "server", "num_prompts") if config.served else config.batch_size
    if file is not None:
        return _of_file(
            config, Path(file), count if "num_prompts" in config.server or not config.served else 0
        )
    tokens = config.input_tokens
    length = (
        f"{tokens[0]}:{tokens[1]}" if isinstance(tokens, tuple) else tokens or DEFAULT_INPUT_TOKENS
    )
    distribution = setting(config, "load", "input") or length
    out = setting(config, "load", "output")
    rate = setting(config, "server", "request_rate")
    kind = setting(config, "load", "arrival")
    return Load(
        lengths(distribution, count, config.seed),
        None if out is None else lengths(out, count, config.seed + 1, "output"),
        (
            _arrivals(kind, count, rate, config.seed, setting(config, "load", "burst"))
            if config.served
            else None
        ),
    )


def _of_file(config: ExperimentConfig, path: Path, most: int) -> Load:
    skip = bool(setting(config, "load", "skip_broken"))
    scale = {"s": 1.0, "ms": 1e-3}[setting(config, "load", "time_unit")] / setting(
        config, "load", "speed"
    )
    rows, broken = [], []
    for line, values in _lines(path):
        try:
            rows.append(_row(values))
        except ValueError as error:
            if not skip:
                raise ConfigError(
                    f"line {line} of {path.name}: {error}",
                    expected="a time and a length, or a time and a prompt",
                    hint="correct it, or leave broken lines out with load skip_broken=true",
                    line=line,
                ) from error
            broken.append(line)
        if most and len(rows) >= most:
            break
    if not rows:
        raise ConfigError(
            f"{path.name} has no requests",
            expected="JSON lines or CSV with one request in each line",
        )
    rows.sort(key=lambda row: row[0] or 0.0)
    times, tokens, prompts, outputs = zip(*rows, strict=True)
    for what, values in (("time", times), ("prompt", prompts)):
        if 0 < sum(value is None for value in values) < len(values):
            expected = f"a {what} in each line, or in none"
            raise ConfigError(f"only some lines of {path.name} have a {what}", expected=expected)
    named = ", ".join(map(str, broken[:5])) + ", …" * (len(broken) > 5)
    return Load(
        list(tokens),
        (
            [config.max_tokens if value is None else value for value in outputs]
            if any(outputs)
            else None
        ),
        None if times[0] is None else [(time - times[0]) * scale for time in times],
        None if prompts[0] is None else list(prompts),
        (f"{len(broken)} broken lines of {path.name} were left out: {named}",) if broken else (),
    )


def _lines(path: Path) -> list[tuple[int, Any]]:
    """Lines of a load file with their numbers; a line that is not a valid value is kept as text."""
    content = read_text(path, "a load as JSON lines or CSV")
    if path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(content))
        return [(reader.line_num, row) for row in reader]
    if path.suffix == ".json":
        try:
            whole = typed.bounded_value(json.loads(content), len(content))
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path.name} is not valid JSON: {error}", hint="correct it at that place"
            ) from error
        return list(enumerate(whole, 1)) if isinstance(whole, list) else [(1, whole)]
    lines: list[tuple[int, Any]] = [
        (n, line) for n, line in enumerate(content.splitlines(), 1) if line.strip()
    ]
    for k, (number, line) in enumerate(lines):
        with contextlib.suppress(ValueError, RecursionError):
            lines[k] = number, typed.bounded_value(json.loads(line), len(line))
    return lines


def _row(values: Any) -> tuple[float | None, int, str | None, int | None]:
    """Time, tokens of the prompt (0 if there is a text), text of the prompt and tokens of the
    answer of a request.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{str(values)[:60]!r} is not a JSON object")
    time = _first(values, _TIMES)
    tokens, out = (_count(_first(values, names), names[0]) for names in (_INPUTS, _OUTPUTS))
    text = _prompt_of(values)
    if text is None and not tokens:
        raise ValueError(f"it has neither a length ({', '.join(_INPUTS[:3])}) nor a prompt")
    return (
        None if time is None else _seconds(time),
        0 if text is not None else tokens or 0,
        text,
        out,
    )


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)


def _count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (1 <= number <= _MOST and number == int(number)):
        raise ValueError(f"{name} is {value!r}, which is not a number of tokens")
    return int(number)


def _prompt_of(values: Any) -> str | None:
    if not isinstance(values, Mapping):
        return None
    for name in _TEXTS:
        if isinstance(values.get(name), str) and values[name]:
            return str(values[name])
    for name in ("conversations", "messages"):
        turns = values.get(name)
        if isinstance(turns, list) and turns and isinstance(turns[0], Mapping):
            content = turns[0].get("value", turns[0].get("content"))
            return content if isinstance(content, str) and content else None
    return None


def _seconds(value: Any) -> float:
    """A time as a number in the unit of the file; a date as seconds."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        text = str(value).strip()
        head, dot, fraction = text.partition(".")  # Azure's traces have seven digits
        try:
            moment = datetime.fromisoformat(head)
        except ValueError as error:
            raise ValueError(f"{text[:40]!r} is not a time") from error
        return moment.timestamp() + (float(f"0.{fraction}") if dot and fraction.isdigit() else 0.0)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a time")
    return number


DEFAULT_INPUT_TOKENS: Final = 64
_FIRST_ID, _LAST_ID = 5, 30_000
"""Range of the tokens of synthetic prompts, without special tokens (first in a vocabulary) and
rare ones (last).
"""


def texts(config: ExperimentConfig) -> list[str] | None:
    """Texts of a configuration, repeated or cut to its batch size; None for synthetic prompts."""
    if config.prompt is not None:
        prompts = [config.prompt] if isinstance(config.prompt, str) else config.prompt
    elif config.prompt_file is not None:
        prompts = from_file(Path(config.prompt_file))
    else:
        return None
    return [prompts[i % len(prompts)] for i in range(config.batch_size or len(prompts))]


def from_file(path: Path) -> list[str]:
    """Prompts of a file: lines of text, or JSON with texts or objects that have a prompt."""
    content = read_text(path, "prompts as UTF-8 text or JSON")
    try:
        if path.suffix == ".json":
            document = json.loads(content)
            items = document if isinstance(document, list) else [document]
        elif path.suffix in {".jsonl", ".ndjson"}:
            items = [json.loads(line) for line in content.splitlines() if line.strip()]
        else:
            items = [line for line in content.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path.name} is not valid JSON: {error}", hint="correct it, or name it .txt"
        ) from error
    matching = [
        text for item in items if (text := item if isinstance(item, str) else _prompt_of(item))
    ]
    if not matching:
        found = f"{path.name} has no prompts"
        raise ConfigError(
            found, expected=f"texts, or objects with one of the keys {', '.join(_TEXTS)}"
        )
    return matching


def synthetic(
    config: ExperimentConfig, vocabulary: int | None, token_counts: list[int] | None = None
) -> dict[str, Any]:
    """Parameters of synthetic prompts; the same for the same seed."""
    if token_counts is None:
        wanted_tokens = config.input_tokens or DEFAULT_INPUT_TOKENS
        low, high = (
            wanted_tokens if isinstance(wanted_tokens, tuple) else (wanted_tokens, wanted_tokens)
        )
        chance = random.Random(config.seed)  # noqa: S311 (no secret)
        count = max(
            1, config.batch_size, setting(config, "server", "num_prompts") if config.served else 0
        )
        token_counts = [chance.randint(low, high) for _ in range(count)]
    share = setting(config, "load", "shared_prefix")
    return {
        "lengths": token_counts,
        "shared": [round(share * length) for length in token_counts],
        "groups": setting(config, "load", "prefixes"),
        "first": _FIRST_ID,
        "last": max(_FIRST_ID + 1, min(vocabulary or _LAST_ID, _LAST_ID)),
        "seed": config.seed,
    }


def as_tokens(prompts: list[str], vocabulary: int | None) -> list[list[int]]:
    """One token for each byte of the text, for models without a tokenizer."""
    room = max(1, (vocabulary or _LAST_ID) - _FIRST_ID)
    return [[_FIRST_ID + byte % room for byte in prompt.encode()] for prompt in prompts]
