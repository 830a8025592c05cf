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
from pathlib import Path
from typing import Any, Final, TextIO

from llmprof import __version__
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

_COMMANDS: Final = {
    "analyze": ("analysis", "diff", "findings", "look", "what_if"),
    "experiment": ("experiment",),
    "make": (
        "completion",
        "convert",
        "demo",
        "explore",
        "export",
        "mcp",
        "notebook",
        "redact",
        "report",
        "samples",
    ),
    "info": ("info",),
    "live": ("record", "watch"),
    "run": ("config", "doctor", "run", "runs", "sweep"),
    "theory": ("theory",),
    "timing": ("time_operators",),
    "trial": ("trial", "tune"),
}
"""Commands by the module of their functions (``do_…``), which is imported when one runs."""
_GROUPS: Final = {
    "look": "info findings analyze report explore notebook samples demo",
    "compare": "diff try tune",
    "record": "run sweep runs config doctor record watch experiment time-operators",
    "predict": "what-if theory",
    "share": "export convert redact mcp completion",
}
"""Commands by what they are for, as the help lists them."""

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
    "trial",
    "tune",
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
    module = next(name for name, functions in _COMMANDS.items() if args.command in functions)
    command: Callable[[argparse.Namespace, Terminal], str] = getattr(
        importlib.import_module(f"llmprof.cli.{module}"), f"do_{args.command}"
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


_Options = Callable[[argparse.ArgumentParser], None]


def _of(module: str, function: str) -> _Options:
    """Options of a command whose module is imported only for it."""

    def add(sub: argparse.ArgumentParser) -> None:
        getattr(importlib.import_module(f"llmprof.cli.{module}"), function)(sub)

    return add


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Parser of all commands, with the options of one command or of all; some options import
    much of the package.
    """

    def named(*names: str) -> bool:
        return command is None or command in names

    shared = _shared()
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
    explained: dict[str, str] = {}

    def add(
        name: str,
        function: str,
        words: str,
        *parents: argparse.ArgumentParser,
        options: _Options | None = None,
    ) -> argparse.ArgumentParser:
        said = words[0].upper() + words[1:] + "."
        sub = commands.add_parser(name, description=said, parents=parents)
        explained[name] = words
        sub.set_defaults(command=function, parser=sub)
        if options and named(name):
            options(sub)
        return sub

    paths = argparse.ArgumentParser(add_help=False)
    words = "file, folder with a file for each rank, run folder, or sample:NAME"
    paths.add_argument("paths", nargs="+", metavar="PATH", help=words)
    some = argparse.ArgumentParser(add_help=False)
    some.add_argument("paths", nargs="*", metavar="PATH", help="a trace, as for info")
    reading = _reading()
    add("info", "info", "device, ranks, tables and steps of a trace", paths, reading, shared)
    sub = add(
        _LOOK, "look", "findings, and what to ask next", paths, reading, shared, options=_analyze
    )
    sub.set_defaults(schema=False)
    if named(_LOOK):
        _verbose(sub)
    add(
        "analyze",
        "analysis",
        "one analysis as a table, JSON or CSV",
        paths,
        reading,
        shared,
        options=_analyze,
    )
    sub = add(
        "report", "report", "write an HTML report with charts and tables", paths, reading, shared
    )
    words = "folder, or x.html (default: %(default)s)"
    sub.add_argument("-o", "--output", default="llmprof-report", metavar="DIR", help=words)
    _force(sub)
    sub.add_argument("--title", metavar="TEXT", help="heading of the report")
    sub.add_argument(
        "--png",
        action="store_true",
        help="write each chart as a PNG, too, which takes as long again",
    )
    sub.add_argument("--tables", action="store_true", help="write each table as a CSV, too")
    sub.add_argument(
        "--model",
        metavar="NAME",
        help="model of the trace: a name in theory --list, or a config.json",
    )
    add(
        "findings",
        "findings",
        "what takes the time, and what to try",
        some,
        reading,
        shared,
        options=_findings,
    )
    sub = add(
        "mcp",
        "mcp",
        "answer the questions of an agent about traces (Model Context Protocol)",
        shared,
    )
    sub.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="folders that may be read"
    )
    words = "write a trace for Perfetto, speedscope, Excel or data frames"
    add("export", "export", words, paths, reading, shared, options=_export)
    add(
        "convert",
        "convert",
        "make a dataset from the files of many ranks",
        paths,
        shared,
        options=_convert,
    )
    add(
        "diff",
        "diff",
        "compare two traces: what became faster or slower",
        reading,
        shared,
        options=_diff,
    )
    words = "predict the step time that a recording would have with changes"
    add("what-if", "what_if", words, reading, shared, options=_what_if)
    words = (
        "write a script that runs operators of a recording alone, and compare their times with the"
        " recording"
    )
    timing = _of("timing", "add_timing_options")
    add("time-operators", "time_operators", words, paths, reading, shared, options=timing)
    add(
        "explore",
        "explore",
        "look at a trace in a browser tab",
        paths,
        reading,
        shared,
        options=_exploring,
    )
    _launching(add, shared, named)
    words = "least time and memory of a model on a device, and how close a trace comes to it"
    add("theory", "theory", words, reading, shared, options=_of("theory", "add_theory_options"))
    sub = add("notebook", "notebook", "run a notebook on your trace", shared)
    sub.add_argument(
        "name", metavar="NAME", help="a notebook or the beginning of its name (01), or its path"
    )
    sub.add_argument(
        "-p",
        "--parameter",
        action="append",
        metavar="KEY=VALUE",
        help="parameter, such as path=PATH",
    )
    sub.add_argument(
        "-o", "--output", default=".", metavar="DIR", help="folder, or x.ipynb (default: here)"
    )
    words = "run it once for each of these run folders, and write an index page"
    sub.add_argument("--over", nargs="+", metavar="RUN", help=words)
    _force(sub)
    sub = add("redact", "redact", "copy a profile without secrets, users, hosts and paths", shared)
    sub.add_argument(
        "file",
        metavar="FILE",
        help="trace, export of nsys, CSV of ncu, output of a monitor, or a folder",
    )
    sub.add_argument(
        "-o", "--output", metavar="COPY", help="file or folder to write; it must not exist"
    )
    sub.add_argument(
        "--check",
        action="store_true",
        help="only list what would be removed, with an example of each",
    )
    sub.add_argument(
        "--key-file",
        metavar="FILE",
        help="key of the pseudonyms, for equal pseudonyms in several copies",
    )
    sub = add(
        "completion",
        "completion",
        "print a script that completes commands and options in a shell",
        shared,
    )
    sub.add_argument(
        "shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"
    )
    add("samples", "samples", "list the sample traces", shared)
    sub = add(
        "demo",
        "demo",
        "write notebook and report of a bundled TP=4 trace, and show their findings",
        shared,
    )
    sub.add_argument(
        "-o",
        "--output",
        default="demo",
        metavar="DIR",
        help="folder to write (default: %(default)s)",
    )
    _force(sub)
    sub.add_argument(
        "--notebook", default="01_gpu_timeline", metavar="NAME", help=argparse.SUPPRESS
    )
    groups = [
        f"{group}:\n" + "\n".join(f"  {name:<15} {explained[name]}" for name in names.split())
        for group, names in _GROUPS.items()
    ]
    top.epilog = (
        "\n\n".join(groups)
        + f"\n\n{_NAME} PATH alone shows findings and what to ask next. PATH is a"
        " file, a folder with a file\nfor each rank, the folder of a run, or sample:NAME."
        f" {_NAME} COMMAND --help shows its options."
    )
    return top


def _exploring(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--metrics",
        action="append",
        metavar="FILE",
        help="metrics of ncu; may be given several times",
    )
    sub.add_argument("--compare", metavar="PATH", help="another trace, to compare with")
    sub.add_argument(
        "--finding", type=int, metavar="N", help="open the explorers at the N-th finding"
    )
    sub.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="N",
        help="port on this machine (default: a free one)",
    )
    opened = argparse.BooleanOptionalAction
    sub.add_argument(
        "--browser", action=opened, default=True, help="open a browser tab (default: yes)"
    )


def _convert(sub: argparse.ArgumentParser) -> None:
    words = "folder of the dataset; the same command continues it"
    sub.add_argument("-o", "--output", required=True, metavar="FOLDER", help=words)
    sub.add_argument(
        "--format",
        metavar="NAME",
        help="format of the files; recognised by their content if not given",
    )
    sub.add_argument(
        "--workers", type=int, metavar="N", help="processes on this machine (default: one per core)"
    )
    sub.add_argument(
        "--cluster", metavar="ADDRESS", help="scheduler of a Dask cluster instead: tcp://host:8786"
    )
    words = "the ranks have unrelated clocks, which cannot be compared"
    sub.add_argument("--unrelated-clocks", action="store_true", help=words)


def _launching(
    add: Callable[..., argparse.ArgumentParser],
    shared: argparse.ArgumentParser,
    named: Callable[..., bool],
) -> None:
    checked, reported = argparse.BooleanOptionalAction, argparse.BooleanOptionalAction
    run = add("run", "run", "run a model under a profiler and read the recording", shared)
    sweep = add("sweep", "sweep", "run every combination of parameters and compare them", shared)
    sweep.add_argument(
        "--parameter-sweep", metavar="TEXT", help='such as "batch_size:1,2,4;max_tokens:100,200"'
    )
    if named("sweep"):
        from llmprof.run.batch import PRESETS

        words = f"points to run: {', '.join(PRESETS)}; or the preset classic of llmprof run"
        sweep.add_argument("--preset", metavar="NAME", help=words)
    sweep.add_argument(
        "--fresh-engine", action="store_true", help="start the engine again for each point"
    )
    sweep.add_argument(
        "--shuffle", action="store_true", help="measure the points in a random order, against drift"
    )
    for sub in (run, sweep):
        sub.add_argument(
            "--check", action=checked, default=True, help="check the machine first (default: yes)"
        )
        sub.add_argument(
            "--dry-run", action="store_true", help="print the command lines and start nothing"
        )
        sub.add_argument(
            "--resume",
            type=Path,
            metavar="FOLDER",
            help="continue the interrupted run in this folder",
        )
        sub.add_argument(
            "--report", action=reported, default=True, help="write report and charts (default: yes)"
        )
    run.add_argument(
        "--png", action="store_true", help="paint each chart as a PNG, too, which takes a while"
    )
    sub = add("runs", "runs", "list the runs in a folder with their states and errors", shared)
    sub.add_argument(
        "folder", nargs="?", default="results", metavar="DIR", help="folder (default: %(default)s)"
    )
    sub.add_argument(
        "--clean", action="store_true", help="remove runs that failed or were interrupted"
    )
    sub.add_argument(
        "--match",
        default="*",
        metavar="PATTERN",
        help="only folders whose names match, such as 'tiny_*'",
    )
    words = "only runs in this state (default: all)"
    sub.add_argument("--state", action="append", choices=("failed", "interrupted"), help=words)
    sub = add("config", "config", "print a commented configuration to start from", shared)
    sub.add_argument(
        "--init",
        nargs="?",
        const="default.yaml",
        metavar="FILE",
        help="write it (default: %(const)s)",
    )
    _force(sub)
    doctor = add("doctor", "doctor", "check whether this machine can run an experiment", shared)
    doctor.add_argument(
        "--self-test", action="store_true", help="time a known kernel with timer and profiler"
    )
    if named("run", "sweep", "doctor"):
        from llmprof.cli.run import add_config_options

        for sub in (run, sweep, doctor):
            add_config_options(sub, presets=sub is not sweep)
    words = "make a change to a run, measure both in turn, and say what it did"
    add("try", "trial", words, shared, options=_of("trial", "add_trial_options"))
    words = "search the settings of an engine and its load under an SLO"
    add("tune", "tune", words, shared, options=_of("trial", "add_tune_options"))
    words = "record a window of a server that runs already"
    add("record", "record", words, shared, options=_of("live", "add_record_options"))
    words = "watch a server, and record a window when a condition holds"
    add("watch", "watch", words, shared, options=_of("live", "add_watch_options"))
    words = "measure the bandwidth of the hardware, and how a model scales with length and devices"
    add(
        "experiment",
        "experiment",
        words,
        shared,
        options=_of("experiment", "add_experiment_options"),
    )


def _shared() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print JSON for a program")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    words = "show progress on stderr (default: on a terminal)"
    shared.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, default=None, help=words
    )
    return shared


def _force(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--force", action="store_true", help="replace files that exist; inputs are never replaced"
    )


def _reading() -> argparse.ArgumentParser:
    reading = argparse.ArgumentParser(add_help=False)
    words = "format of the files; recognised by their content if not given"
    reading.add_argument("--format", metavar="NAME", help=words)
    reading.add_argument(
        "--no-cache", action="store_true", help="parse the files, and store nothing in the cache"
    )
    words = (
        "processes that read files, or analyse the ranks of a dataset (default: one per core for"
        " large ones)"
    )
    reading.add_argument("--workers", type=int, metavar="N", help=words)
    words = "TOML file with names of your own kernels, and the work of your operators"
    reading.add_argument("--own", metavar="FILE", help=words)
    return reading


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
    words = (
        "analysis; also the last word: analyze PATH NAME (default: findings, or what a recording"
        " without them has)"
    )
    sub.add_argument("--what", choices=list(by_name), metavar="NAME", help=words)
    words = (
        "in place of an analysis: one SELECT over the tables of the trace; SHOW TABLES lists them"
    )
    sub.add_argument("--sql", metavar="QUERY", help=words)
    words = "only this rank; may be given several times"
    sub.add_argument("--rank", type=int, action="append", metavar="N", help=words)
    sub.add_argument(
        "--by",
        metavar="COLUMNS",
        help="columns to group by (overlap, kernels, layers), or the kind of row (memory, ranks)",
    )
    words = "steps: only the decode steps that represent the run"
    sub.add_argument("--steady", action="store_true", help=words)
    words = (
        "bound, operators, opportunities: model of the trace, a name in theory --list or"
        " config.json"
    )
    sub.add_argument("--model", metavar="NAME", help=words)
    words = "recording of the captures of its graphs, which says the operators of replayed kernels"
    sub.add_argument("--captures", metavar="PATH", help=words)
    words = (
        "recording of the same program that says the operators of kernels without one: without"
        " graphs, or by torch"
    )
    sub.add_argument("--eager", metavar="PATH", help=words)
    sub.add_argument(
        "--columns", metavar="COLUMNS", help="columns to show, separated by commas, or all"
    )
    sub.add_argument("--sort", metavar="COLUMN", help="sort by this column, largest first")
    sub.add_argument("--ascending", action="store_true", help="with --sort: smallest first")
    _output(sub)


def _diff(sub: argparse.ArgumentParser) -> None:
    from llmprof.cli.output import share

    sub.add_argument("a", metavar="A", help="reference: file, folder or sample:NAME")
    sub.add_argument("b", metavar="B", help="trace that is compared with the reference")
    words = "smaller changes count as none (default: 0.05)"
    sub.add_argument("--tolerance", type=float, default=0.05, metavar="X", help=words)
    sub.add_argument(
        "--chart",
        type=Path,
        metavar="FILE",
        help="draw the comparison into a .png, .svg or .html file",
    )
    sub.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help=(
            "end with exit code 1 if a step of B takes longer by more than this (3%% or 0.03) and"
            " beyond the noise"
        ),
    )
    sub.add_argument(
        "--markdown", action="store_true", help="print Markdown, for the comment of a pull request"
    )
    _output(sub)


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
    sub.add_argument(
        "path",
        metavar="PATH",
        help="file, folder with a file for each rank, run folder, or sample:NAME",
    )
    sub.add_argument("changes", nargs="*", metavar="CHANGE", help="what would be changed")
    _output(sub)


def _export(sub: argparse.ArgumentParser) -> None:
    from llmprof.report.export import FORMS

    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = "forms:\n" + "\n".join(
        f"  {name:<11} {what}{': ' + ', '.join(ends) if ends else ''}"
        for name, (what, ends) in FORMS.items()
    )
    sub.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="file to write; its suffix gives the form",
    )
    words = "form, if the suffix does not give it"
    sub.add_argument("--as", dest="form", choices=list(FORMS), metavar="FORM", help=words)
    _force(sub)
    sub.add_argument(
        "--window",
        type=_window,
        metavar="FROM:TO",
        help="only events that start in it, in ms: 12.5:14",
    )
    sub.add_argument(
        "--redact", action="store_true", help="write pseudonyms for people, machines and secrets"
    )


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


def _findings(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--schema", action="store_true", help="print the JSON schema of --json and read nothing"
    )
    _verbose(sub)


def _verbose(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "-v", "--verbose", action="store_true", help="all findings, each with its evidence"
    )


def _output(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--limit", type=int, metavar="N", help="rows to show (default: 20 in a table), 0 for all"
    )
    sub.add_argument(
        "--csv", metavar="FILE", help="write all columns to a CSV file, no name cut; - prints them"
    )
    _force(sub)
