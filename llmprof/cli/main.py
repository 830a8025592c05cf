"""The command line: options, progress, warnings and errors. The only module that prints."""

import argparse
import importlib
import os
import re
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from llmprof import __version__
from llmprof.cli.options import COMMANDS, add_options
from llmprof.errors import (
    IncompleteError,
    LlmprofError,
    OutputError,
    PluginWarning,
    TraceWarning,
    nearest,
)

SLOWER, FAILED, INCOMPLETE, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 130, 141
_NAME = "llmprof"
_LOOK: Final = "look"
"""Command of ``llmprof PATH``, which the help does not list."""

_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""Threads that numpy starts for products of matrices, of which llmprof has none."""

_WELCOME: Final = """\
llmprof says why an LLM inference run takes the time it takes.
  llmprof PATH                           what takes the time in a recording, and what to try
  llmprof sample:torch_tp4_eager_nccl    the same of a bundled recording
  llmprof run --help                     record a run of vLLM
  llmprof --help                         all commands"""

_COLOURS: Final = {"high": 31, "medium": 33, "low": 36}
"""Colour of a severity on a terminal, by its ANSI number."""

_INPUTS: Final = (
    "paths",
    "path",
    "a",
    "b",
    "file",
    "trace",
    "metrics",
    "compare",
    "results",
    "config",
    "cases",
    "model",
    "over",
    "key_file",
    "own",
    "prompt_file",
)
"""Options that may name an input, onto which no output is written."""
_OUTPUTS: Final = ("csv", "chart", "charts", "init", "output", "results_dir")
"""Options that may name a file or folder to write."""
_KEEPING: Final = ("try", "tune")
"""Commands whose option ``folder`` names what they write."""
_TELLING = (
    "convert",
    "demo",
    "experiment",
    "record",
    "run",
    "sweep",
    "time-operators",
    *_KEEPING,
)
"""Commands that take minutes, and show their progress even if stderr is not a terminal."""


class ProgressLine:
    """Progress on stderr: one line that is overwritten on a terminal, otherwise one line after
    another.
    """

    EVERY_S = 0.1
    EVERY_LINE_S = 10.0

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream, self._live = stream, live
        self._shown, self._last, self._at = "", "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the current task and its progress."""
        now, what = time.monotonic(), _plain(what)
        if self._live:
            if what == self._last and now - self._at < self.EVERY_S:
                return
            share = f" {100 * done // total:3d} %" if total > 0 else ""
            width = shutil.get_terminal_size().columns - 1
            line = f"{what}{share}"[:width]
            self._stream.write(f"\r{line}{' ' * (len(self._shown) - len(line))}")
            self._shown = line
        elif what != self._last:
            self._stream.write(f"{_NAME}: {what}\n")
        elif now - self._at >= self.EVERY_LINE_S:
            self._stream.write(f"{_NAME}: {what}, {done:,} of {total:,}\n")
        else:
            return
        self._last, self._at = what, now
        self._stream.flush()

    def clear(self) -> None:
        """Erase the line."""
        if self._shown:
            self._stream.write(f"\r{' ' * len(self._shown)}\r")
            self._stream.flush()
            self._shown = self._last = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    if not words:
        _print(_WELCOME)
        return 0
    try:
        args = _parsed(list(words))
    except KeyboardInterrupt:
        print(f"{_NAME}: interrupted", file=sys.stderr)
        return INTERRUPTED
    live = sys.stderr.isatty()
    progress = ProgressLine(sys.stderr, live=live)
    shown = args.progress if args.progress is not None else live or args.command in _TELLING
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", TraceWarning)
            _show_warnings(progress, debug=args.debug)
            out = _run(args, progress, shown=shown)
        progress.clear()
        if out or args.command != "mcp":  # the output of mcp belongs to the protocol
            _print(out)
    except BrokenPipeError:
        _close_stdout()
        return PIPE_CLOSED
    except LlmprofError as error:
        progress.clear()
        if args.debug:
            raise
        print(f"{_NAME}: error: {_in_options(_plain(error), args)}", file=sys.stderr)
        return INCOMPLETE if isinstance(error, IncompleteError) else FAILED
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interrupt(error):
            raise
        progress.clear()
        print(f"{_NAME}: interrupted", file=sys.stderr)
        return INTERRUPTED
    from llmprof.cli.output import Failing

    return SLOWER if isinstance(out, Failing) else 0


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is what a library made of an interrupt while it was imported."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _complete() -> None:
    """Answer the shell, which asks for what may follow, and end."""
    import argcomplete

    words = os.environ["COMP_LINE"].split()[1:]
    first = next((word for word in words if not word.startswith("-")), "")
    argcomplete.autocomplete(parser(first), exclude=[_LOOK])


def _open_streams() -> None:
    """Open what was closed before the start (``>&-``) to nothing, so that no file gets its
    number and its output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, "w" if number else "r"))


def _run(args: argparse.Namespace, progress: ProgressLine, *, shown: bool) -> str:
    if _THREADS not in os.environ:
        os.environ[_THREADS] = "1"
        importlib.import_module("numpy")
        del os.environ[_THREADS]  # engines, which are started from here, multiply matrices
    from llmprof.cli.output import Terminal

    if own := vars(args).get("own"):
        from llmprof.plugins import OWN

        os.environ[OWN] = str(Path(own).resolve())  # workers read it, too
    command: Callable[[argparse.Namespace, Terminal], str] = getattr(
        importlib.import_module(f"llmprof.cli.{args.module}"),
        f"do_{args.command.replace('-', '_')}",
    )
    _check_outputs(args)

    def say(words: str) -> None:
        progress.clear()
        _print(words)

    return command(args, Terminal(_width(), progress if shown else None, say))


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse an output that is an input or exists, before the command does work that would be in
    vain.
    """
    from llmprof.cli.output import input_paths
    from llmprof.trace.storage import files

    given = vars(args)
    for name in _INPUTS:
        value = given.get(name)
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, str | os.PathLike):
                for place in input_paths([os.fspath(one)]):
                    files.note_input(place)
    for name in (*_OUTPUTS, *(["folder"] if args.command in _KEEPING else [])):
        value = given.get(name)
        if not isinstance(value, str | os.PathLike) or os.fspath(value) == "-":
            continue
        files.check_place(value)
        if "force" in given and name not in ("results_dir", "charts"):
            folder = name == "output" and (
                args.command == "demo"
                or (args.command == "notebook" and not os.fspath(value).endswith(".ipynb"))
                or (
                    args.command == "report"
                    and not os.fspath(value).lower().endswith((".html", ".htm"))
                )
            )
            files.check_output(value, overwrite=args.force, own=folder)


def _print(words: str) -> None:
    """Print without buffering, on a terminal no control characters; a full disk raises an error
    that says so.
    """
    try:
        if sys.stdout.isatty():
            from llmprof.text import plain

            words = "\n".join(map(plain, words.split("\n")))
            if "NO_COLOR" not in os.environ:
                words = re.sub(
                    rf"\[({'|'.join(_COLOURS)})\]$", _coloured, words, flags=re.MULTILINE
                )
        print(words, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _close_stdout()
        found = f"the output cannot be written: {error.strerror or error}"
        raise OutputError(found, hint="free disk space, or redirect it elsewhere") from error


def _coloured(severity: re.Match[str]) -> str:
    return f"\x1b[{_COLOURS[severity[1]]}m{severity[0]}\x1b[0m"


def _close_stdout() -> None:
    """Discard buffered output, so that the interpreter does not try to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _width() -> int | None:
    """Width of the terminal, or COLUMNS; None if the output is a file or a pipe, where no column
    is left out.
    """
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return max(40, shutil.get_terminal_size().columns)
    return None


def _show_warnings(progress: ProgressLine, *, debug: bool) -> None:
    """Print warnings of llmprof as one line each, with ``debug`` also what was raised; those of
    libraries are shown with ``debug`` alone, and keep Python's form.
    """
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        progress.clear()
        if issubclass(category, (TraceWarning, PluginWarning)):
            if debug and isinstance(message, Warning) and message.__cause__ is not None:
                traceback.print_exception(message.__cause__)
            print(f"{_NAME}: warning: {_plain(message)}", file=sys.stderr)
        elif debug:
            usual(message, category, *where, **more)

    warnings.showwarning = show


def _plain(message: object) -> str:
    from llmprof.text import plain

    return plain(" ".join(str(message).split()))


class _Parser(argparse.ArgumentParser):
    """Parser whose errors name what is nearest to a word that it does not know."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = [str(choice) for choice in action.choices or ()]
        if known and str(value) not in known:
            known = [choice for choice in known if choice != _LOOK]
            words = nearest(str(value), known) or f"expected one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"{value!r} is not known; {words}")


def _parsed(words: list[str]) -> argparse.Namespace:
    """Options of a command; ``llmprof PATH`` shows findings and what to ask next."""
    first = next((word for word in words if not word.startswith("-")), "")
    top = parser(first)
    path = Path(first)
    of_a_path = (
        first.startswith("sample:") or os.sep in first or path.suffix or (first and path.exists())
    )
    if first not in commands_of(top) and of_a_path:
        top, words = parser(_LOOK), [_LOOK, *words]
    args, unknown = top.parse_known_args(words)
    if unknown:
        of_command: argparse.ArgumentParser = args.parser
        flag = unknown[0].partition("=")[0]
        if not flag.startswith("-"):
            of_command.error(f"{flag!r} is one word too many")
        flags = [flag for action in of_command._actions for flag in action.option_strings]
        if flag in flags:
            of_command.error(f"{flag} belongs behind the command: {of_command.prog} {flag} …")
        of_command.error(
            f"there is no option {flag}; {nearest(flag, flags) or 'the usage above has all'}"
        )
    return args


def commands_of(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Parser of each command by its name."""
    (commands,) = (
        action for action in top._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {name: sub for name, sub in commands.choices.items() if name != _LOOK}


def _in_options(words: str, args: argparse.Namespace) -> str:
    """Words of an error with the options of the command in place of arguments of Python."""
    flags = {
        action.dest: action.option_strings[-1]
        for action in args.parser._actions
        if action.option_strings
    }
    return re.sub(
        r"\b([a-z_]+)=(?=[\s.,:;)]|$)", lambda match: flags.get(match[1], match[0]), words
    )


_Options = Callable[[argparse.ArgumentParser], object]


def _of(module: str, function: str) -> _Options:
    """Options of a command whose module is imported only for it."""

    def add(sub: argparse.ArgumentParser) -> None:
        getattr(importlib.import_module(f"llmprof.cli.{module}"), function)(sub)

    return add


def _window(text: str) -> tuple[int, int]:
    """A window in ms as ``FROM:TO``, in ns."""
    first, colon, last = text.partition(":")
    try:
        window = (round(float(first) * 1e6), round(float(last) * 1e6))
    except (ValueError, OverflowError):
        window = (1, 0)
    if not colon or window[1] <= window[0]:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a window; write FROM:TO in ms, such as 12.5:14"
        )
    return window


def _analyze(sub: argparse.ArgumentParser) -> None:
    from llmprof.analyze.catalog import SUBJECTS, views
    from llmprof.analyze.ncu.hardware import VIEWS
    from llmprof.cli.output import TABLES

    every = views()
    by_name = {name: view.help for name, view in every.items()}
    by_name |= {name: view.help for name, view in VIEWS.items()}
    by_function = {view.name: name for name, view in every.items()}
    groups = {
        subject: [by_function[name] for name in names.split() if name in by_function]
        for subject, names in SUBJECTS.items()
    }
    for subject, room in (("As nsys stats does", "nsys."), ("Of an NPU", "npu.")):
        groups[subject] = [name for name, view in every.items() if view.room == room]
    groups["Of Nsight Compute"] = list(VIEWS)
    groups["Of plug-ins"] = [name for name, view in every.items() if view.package]
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = "\n\n".join(
        [TABLES]
        + [
            f"{group}:\n" + "\n".join(f"  {name:<17} {by_name[name]}" for name in names)
            for group, names in groups.items()
            if names
        ]
    )
    add_options(sub, "analyze")["what"].choices = list(by_name)


def _look(sub: argparse.ArgumentParser) -> None:
    _analyze(sub)
    add_options(sub, "verbose")
    sub.set_defaults(schema=False)


def _diff(sub: argparse.ArgumentParser) -> None:
    from llmprof.cli.output import share

    add_options(sub, "diff", share=share)


def _what_if(sub: argparse.ArgumentParser) -> None:
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = """changes, applied in their order:
  no-host-delay[:PHASE]              layers of decode steps do not wait for the host, as under CUDA graphs
  scale:WHAT:FACTOR                  a stage, category, kernel name or "host" takes so many times as long
  remove:WHAT  fuse:WHAT             without it; kernels that follow each other become one
  without-call:NAME                  without a call of the host, its waiting, and the time by which it holds the device
  run-ahead                          the host prepares the next step while the device works on this one
  balance                            no rank is late
  transfer:bandwidth=GB/s:latency=us another link
  to-bound[:SHARE[:WHAT]]            a stage, kind of operator or operator at 0.8 of its bound, from recorded shapes
  at-bound:MODEL[:DEVICE][:stage=S]  at the theoretical bound
  overlap-with:COLLECTIVE:WHAT       beside each other instead of one after the other
  tensor-parallel:N[:all_reduce_us=T]"""  # noqa: E501
    add_options(sub, "what-if")


def _export(sub: argparse.ArgumentParser) -> None:
    from llmprof.report.export import FORMS

    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = "forms:\n" + "\n".join(
        f"  {name:<11} {what}{': ' + ', '.join(ends) if ends else ''}"
        for name, (what, ends) in FORMS.items()
    )
    add_options(sub, "export", window=_window)["form"].choices = list(FORMS)


_OPTIONS: Final[dict[str, _Options]] = {
    "analyze": _analyze,
    _LOOK: _look,
    "diff": _diff,
    "what-if": _what_if,
    "export": _export,
    "run": _of("run", "add_run_options"),
    "sweep": _of("run", "add_sweep_options"),
    "doctor": _of("run", "add_doctor_options"),
    "try": _of("trial", "add_trial_options"),
    "tune": _of("trial", "add_tune_options"),
    "watch": _of("live", "add_watch_options"),
    "experiment": _of("experiment", "add_experiment_options"),
}
"""Commands of whose options the package says types or choices."""


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Parser of all commands, with the options of one command or of all; some options import
    much of the package.
    """
    top: argparse.ArgumentParser = _Parser(
        prog=_NAME,
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Where the time of an LLM inference run goes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"{_NAME} {__version__}")
    commands = top.add_subparsers(
        prog=_NAME, metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    top.epilog = ""
    for group, members in COMMANDS.items():
        for name, given in members.items():
            said = given["words"][0].upper() + given["words"][1:] + "."
            sub = commands.add_parser(name, description=said)
            sub.set_defaults(command=name, module=given["module"], parser=sub)
            if command in (None, name):
                for shared in given["parents"]:
                    add_options(sub, shared)
                _OPTIONS.get(name, partial(add_options, name=name))(sub)
        if group:
            lines = [f"  {name:<15} {given['words']}" for name, given in members.items()]
            top.epilog += "\n".join([f"{group}:", *lines, "", ""])
    top.epilog += (
        f"{_NAME} PATH alone shows findings and what to ask next. PATH is a"
        " file, a folder with a file\nfor each rank, the folder of a run, or sample:NAME."
        f" {_NAME} COMMAND --help shows its options."
    )
    return top
