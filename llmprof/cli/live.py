"""``llmprof record`` and ``llmprof watch``: servers that run already."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import textwrap
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import llmprof
from llmprof import text
from llmprof.cli.output import Terminal, options_of, to_json, wrap_words
from llmprof.cli.run import capture_text
from llmprof.errors import ConfigError
from llmprof.run.launch import Run
from llmprof.run.live.condition import NAMES
from llmprof.run.live.recording import fewer
from llmprof.run.live.watching import SEVERITIES, STATE
from llmprof.trace.storage import typed
from llmprof.units import SECONDS, format_bytes


def add_server_options(sub: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Give a parser the options that say which server is recorded, and where its traces are."""
    words = "address of the server, such as http://127.0.0.1:8000"
    if several:
        words += "; of several, recorded at one time into one run (prefill and decode)"
    sub.add_argument("url", metavar="URL", nargs="+" if several else None, help=words)
    sub.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        metavar="X",
        help="longest window (default: %(default)s)",
    )
    words = "most steps of the engine in the window (default: %(default)s; 0: as many as there are)"
    sub.add_argument("--steps", type=int, default=100, metavar="N", help=words)
    where = sub.add_mutually_exclusive_group()
    where.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where the server writes traces, as seen from here",
    )
    words = (
        'command that copies that folder here, such as "kubectl cp POD:/profiles {to}"; no shell'
        " runs it"
    )
    where.add_argument("--fetch", metavar="COMMAND", help=words)
    sub.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="number of traces, one for each rank (default: as it says)",
    )
    words = (
        "where its requests are told: a file of spans or records, or otlp://127.0.0.1:4318 to"
        " receive spans there"
    )
    sub.add_argument("--requests", metavar="FILE", help=words)


def add_record_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of a recording."""
    add_server_options(sub, several=True)
    sub.add_argument(
        "--results-dir",
        default="results",
        metavar="DIR",
        help="folder for it (default: %(default)s)",
    )
    words = "longest wait for the traces in seconds (default: %(default)s)"
    sub.add_argument(
        "--timeout", dest="timeout_s", type=float, default=300.0, metavar="X", help=words
    )


def add_watch_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of a watch."""
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = (
        "counters in a condition (times need a unit: ns us ms s m h; shares may be 90%):\n"
        + textwrap.fill(", ".join(NAMES), 100, initial_indent="  ", subsequent_indent="  ")
    )
    add_server_options(sub)
    words = (
        'record when this holds, such as "ttft_p99 > 500ms for 30s and waiting > 4" (default:'
        " never)"
    )
    sub.add_argument("--when", metavar="CONDITION", help=words)
    words = "most captures, the newest (default: %(default)s)"
    sub.add_argument("--keep", type=int, default=5, metavar="N", help=words)
    words = "most bytes of history and captures (default: %(default)s)"
    sub.add_argument(
        "--disk", dest="disk_bytes", type=size, default="2GB", metavar="SIZE", help=words
    )
    words = "time after a capture without another (default: %(default)s)"
    sub.add_argument(
        "--cooldown", dest="cooldown_s", type=_span, default="10m", metavar="TIME", help=words
    )
    words = "time between two readings of the counters (default: %(default)s)"
    sub.add_argument(
        "--every", dest="every_s", type=_span, default="5s", metavar="TIME", help=words
    )
    words = "time over which rates and quantiles are taken (default: %(default)s)"
    sub.add_argument(
        "--window", dest="window_s", type=_span, default="30s", metavar="TIME", help=words
    )
    sub.add_argument(
        "--for",
        dest="for_s",
        type=_span,
        metavar="TIME",
        help="end after this time (default: Ctrl-C)",
    )
    words = "earlier capture to compare with (default: the best hour of the history)"
    sub.add_argument("--baseline", type=Path, metavar="DIR", help=words)
    words = "show the watch on a page of this machine, at this port (default: a free one)"
    sub.add_argument(
        "--serve", dest="port", type=int, nargs="?", const=0, metavar="PORT", help=words
    )
    sub.add_argument(
        "--webhook", metavar="URL", help="send the findings of a capture there as JSON"
    )
    words = "least severity for the webhook (default: %(default)s)"
    sub.add_argument("--severity", choices=SEVERITIES, default="high", help=words)
    words = "folder of the watch, which the next one continues (default: results/watch_HOST-PORT)"
    sub.add_argument("-o", "--output", type=Path, metavar="DIR", help=words)


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
