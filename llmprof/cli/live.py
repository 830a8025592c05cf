"""``llmprof record`` and ``llmprof watch``: servers that run already."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import textwrap
from argparse import Namespace
from typing import Any, Final

import llmprof
from llmprof import text
from llmprof.cli.options import add_options
from llmprof.cli.output import Terminal, options_of, to_json, wrap_words
from llmprof.cli.run import capture_text
from llmprof.errors import ConfigError
from llmprof.run.launch import Run
from llmprof.run.live.condition import NAMES
from llmprof.run.live.recording import fewer
from llmprof.run.live.watching import SEVERITIES, STATE
from llmprof.trace.storage import typed
from llmprof.units import SECONDS, format_bytes


def add_watch_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of a watch."""
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = (
        "counters in a condition (times need a unit: ns us ms s m h; shares may be 90%):\n"
        + textwrap.fill(", ".join(NAMES), 100, initial_indent="  ", subsequent_indent="  ")
    )
    add_options(sub, "watch", size=size, span=_span)["severity"].choices = SEVERITIES


_SIZES: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size(words: str) -> int:
    """``2GB`` as a number of bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", words.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{words!r} is not a size; write 500MB or 2GB")
    unit = found[2].upper()
    factor = 1024 ** " KMGT".index(unit or " ") if found[3] else _SIZES[f"{unit}B"]
    return round(float(found[1]) * factor)


def _span(words: str) -> float:
    """``10m`` as a number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)", words.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{words!r} is not a time; write 30s, 10m or 2h")
    return float(found[1]) * SECONDS[found[2]]


def do_watch(args: Namespace, terminal: Terminal) -> str:
    """Watch a server until the time is over or Ctrl-C ends it."""
    # the end of a service is an end like Ctrl-C: the history is stored, and a profiler is switched
    # off
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    told = terminal.tell if not args.json else lambda words: None
    folder = args.output
    try:
        options = options_of(args, llmprof.watch) | {
            "fetch": words_of(args.fetch),
            "steps": args.steps or None,
        }
        options["say"] = lambda words: told(wrap_words(words, terminal.width, "", ""))
        folder = llmprof.watch(args.url, args.when, **options)
    except KeyboardInterrupt:
        return "" if args.json else "The watch has ended."
    said = typed.found(folder / STATE, typed.WatchJson) or {}
    if args.json:
        return to_json({"folder": folder} | said)
    kept = text.counted(len(said.get("kept") or ()), "capture")
    return f"{text.counted(said.get('scrapes') or 0, 'reading')} and {kept} in {folder}"


def words_of(command: str | None) -> list[str] | None:
    """A command as a list of words; quotes keep blanks, and nothing else has a meaning."""
    try:
        return None if command is None else shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            f"--fetch {command!r} has an open quote", expected="a command and its words"
        ) from error


def do_record(args: Namespace, terminal: Terminal) -> str:
    """Record a window and print what it shows."""
    options = options_of(args, llmprof.record) | {
        "fetch": words_of(args.fetch),
        "steps": args.steps or None,
    }
    options["progress"] = terminal.progress
    if not args.json:
        options["say"] = lambda words: terminal.tell(wrap_words(words, terminal.width, "", ""))
    done = llmprof.record(args.url if len(args.url) > 1 else args.url[0], **options)
    recording = typed.found(done.folder.recording, typed.RecordingJson) or {}
    if args.json:
        return to_json({"folder": done.folder.path, "state": done.state, "recording": recording})
    return "\n\n".join(filter(None, (capture_text(done, terminal), _places(done, recording))))


def _places(done: Run, recording: dict[str, Any]) -> str:
    cost = recording.get("cost") or {"bytes": 0, "stop_s": 0, "overhead": None}
    said = [f"{format_bytes(cost['bytes'])} of traces, written in {cost['stop_s']:.1f} s"]
    if cost["overhead"] is not None:
        said.append(f"{fewer(cost['overhead'])} tokens a second than just before")
    rows = [("Recording", str(done.folder.path)), ("Cost", "; ".join(said))]
    rows += [("Note", str(note)) for note in done.summary.get("notes") or ()]
    rows.append(("Next", f"llmprof analyze {shlex.quote(str(done.folder.path))}"))
    return text.pairs(rows, indent="")
