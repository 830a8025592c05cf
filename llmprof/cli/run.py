"""``llmprof run``, ``runs`` and ``doctor``: one profiled run, the list of runs, and checks of
the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import shlex
import typing
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from llmprof import analyze, text
from llmprof.analyze.transfer import TTFT_PARTS
from llmprof.cli.analyze import first_findings_text
from llmprof.cli.options import add_options
from llmprof.cli.output import Failing, Terminal, key_value, share, to_json, try_making, wrap_words
from llmprof.errors import ConfigError, LlmprofError, NotCapturedError, guarded
from llmprof.run import batch, launch
from llmprof.run.batch.parameters import label, points
from llmprof.run.launch import ConfigManager, ExperimentConfig, Run
from llmprof.run.launch.config import disclosure, models
from llmprof.run.launch.config.options import PRESETS, SIZES, sized, template
from llmprof.run.launch.doctor.doctor import doctor as ask
from llmprof.run.launch.engines import engines, interpreter
from llmprof.run.launch.run.command import environment
from llmprof.run.launch.run.folder import UNIMPORTED
from llmprof.run.launch.run.requests import summarize
from llmprof.trace.storage import files
from llmprof.units import format_bytes, format_ns


def add_run_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of a run."""
    add_options(sub, "run")
    add_config_options(sub)


def add_sweep_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of a sweep."""
    points_of = f"points to run: {', '.join(batch.PRESETS)}"
    add_options(sub, "sweep")["preset"].help = f"{points_of}; or the preset classic of llmprof run"
    add_config_options(sub, presets=False)


def add_doctor_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of the checks of a machine."""
    add_options(sub, "doctor")
    add_config_options(sub)


def add_config_options(parser: argparse.ArgumentParser, *, presets: bool = True) -> None:
    """Give a parser the options of a configuration, which are its fields; options that are not
    given stay None.
    """
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML or JSON file; options override it"
    )
    if presets:
        all_of = [
            f"{name}: {', '.join(f'{k} {v}' for k, v in values.items())}"
            for name, values in PRESETS.items()
        ]
        words = f"other defaults, below the file and the options ({'; '.join(all_of)})"
        what.add_argument("--preset", choices=tuple(PRESETS), metavar="NAME", help=words)
    hints = typing.get_type_hints(ExperimentConfig)
    for field in dataclasses.fields(ExperimentConfig):
        usual, words = field.default, field.metadata["help"]
        if usual not in {None, ""} and usual is not dataclasses.MISSING:
            words += f" (default: {'yes' if usual is True else 'no' if usual is False else usual})"
        read_by = _read_by(field.name, hints[field.name])
        flags = (_flag(field.name), *_OTHER_NAMES.get(field.name, ()))
        what.add_argument(*flags, dest=field.name, help=words.replace("%", "%%"), **read_by)
    sizes = parser.add_argument_group("timing of operators (mode ops)")
    of_sizes = [
        f"{name}: {size['steps']} timed steps of {size['max_tokens']} tokens"
        for name, size in SIZES.items()
    ]
    sizes.add_argument("--size", choices=tuple(SIZES), metavar="NAME", help="; ".join(of_sizes))
    for flag, words in _SIZED.items():
        sizes.add_argument(f"--{flag.replace('_', '-')}", type=int, metavar="N", help=words)


def _read_by(name: str, hint: Any) -> dict[str, Any]:
    """How the parser reads an option, from the type of its field."""
    kinds = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is dict or name == "prompt":
        return {"action": "append", "metavar": "TEXT" if name == "prompt" else "KEY=VALUE"}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if name == "engine" or typing.get_origin(hint) is Literal:
        choices = sorted({entry.name for entry in engines()}) if name == "engine" else kinds
        return {"choices": choices, "metavar": f"{{{','.join(choices)}}}"}
    if name in {"until", "input_tokens"}:
        return (
            {"type": share, "metavar": "SHARE"} if name == "until" else {"metavar": "N or LOW:HIGH"}
        )
    number = next((kind for kind in (int, float) if kind in kinds), None)
    return (
        {"type": number, "metavar": "N" if number is int else "X"}
        if number
        else {"metavar": "NAME"}
    )


_OF_TOOLS = ("nsys_options", "ncu_options", "ops_options")
_MAPPINGS = {"engine_args", "server", "load", *_OF_TOOLS, "environment"}
_SIZED = {
    "profile_steps": "timed steps, spread over the generation",
    "num_tokens": "output tokens of a request",
    "warmup_steps": "warm-up runs",
    "max_seq_len": "largest number of tokens of a prompt and its answer together",
}
_OTHER_NAMES = {
    "model": ("--model-path",),
    "prompt": ("--base-prompt",),
    "tensor_parallel_size": ("--tp",),
    "pipeline_parallel_size": ("--pp",),
}
_FLAGS = {"environment": "--env"} | {name: f"--{name[:-1]}" for name in ("engine_args", *_OF_TOOLS)}


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.removesuffix('_s')}").replace("_", "-")


def changes(args: Namespace) -> dict[str, Any]:
    """Collect the options that were given, under their names in the configuration."""
    names = [field.name for field in dataclasses.fields(ExperimentConfig)]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    parts = {name: value for name in _SIZED if (value := getattr(args, name)) is not None}
    if args.preset in PRESETS:
        given["preset"] = args.preset
    if args.prompt is not None and len(args.prompt) == 1:
        given["prompt"] = args.prompt[0]
    if args.input_tokens is not None:
        given["input_tokens"] = token_lengths(args.input_tokens)
    for name in _MAPPINGS & given.keys():
        given[name] = dict(
            key_value(item, _flag(name), as_text=name == "environment") for item in given[name]
        )
    if args.size or parts:
        of_size = sized(args.size or "quick", **parts)
        given = (
            of_size | given | {"ops_options": of_size["ops_options"] | given.get("ops_options", {})}
        )
    return given


def config_from(args: Namespace) -> ExperimentConfig:
    """Build the configuration from the file, then from the options; mappings are merged key by
    key.
    """
    given = changes(args)
    if args.config is None:
        return ExperimentConfig.from_dict(given)
    config = ConfigManager.load_config(args.config, preset=given.pop("preset", None))
    for name in _MAPPINGS & given.keys():
        given[name] = dict(getattr(config, name)) | given[name]
    if given.keys() & {"prompt", "prompt_file", "input_tokens"}:
        given = dict.fromkeys(("prompt", "prompt_file", "input_tokens")) | given
    return config.replace(**given)


def token_lengths(given: str) -> int | tuple[int, int]:
    """Convert ``64`` to 64 and ``32:128`` to (32, 128)."""
    parts = given.split(":")
    if len(parts) > 2 or not all(part.isdigit() for part in parts):
        raise ConfigError(f"--input-tokens {given!r} is not a length", expected="N, or LOW:HIGH")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


_NAMES = {
    "prefilled_ns": "time to answer of prefill",
    "ttft_ns": "time to first token",
    "tpot_ns": "time per output token",
    "itl_ns": "inter-token latency",
    "e2e_ns": "end to end",
    "wall_ns": "whole batch",
    "output_tokens_per_s": "output tokens/s",
}


def do_run(args: Namespace, terminal: Terminal) -> str:
    """Run one experiment and print its results; they are shown while the engine stops."""
    written: list[tuple[str, Path]] = []

    def show(done: Run) -> None:
        if not args.json:  # what was found comes before the time that pages and pictures take
            told = try_making(
                "the table of the requests",
                lambda: _requests(done),
                f"llmprof run --resume {done.folder.path}",
            )
            for words in (told, capture_text(done, terminal), _instances(done, terminal)):
                terminal.tell(f"{words}\n" if words else "")
        if args.report:
            for made in _files(done, terminal, pictures=args.png):
                written.extend(made or ())

    if args.resume is not None:
        if changes(args) or args.config is not None:
            raise ConfigError(
                "--resume was given with options of a run", expected="the folder alone"
            )
        done = launch.resume(args.resume, progress=terminal.progress, check=args.check, show=show)
    else:
        config = config_from(args)
        if args.dry_run:
            return to_json(_commands(config)) if args.json else commands_text(config)
        options: dict[str, Any] = {"progress": terminal.progress, "check": args.check}
        done = launch.ExperimentRunner(config, show=show, **options).run()
    if args.json:
        facts = {"folder": done.folder.path, "state": done.state, "summary": done.summary}
        return to_json(facts | {"files": [path for _, path in written]})
    return _places(done, written)


def _commands(config: ExperimentConfig) -> dict[str, Any]:
    """Command lines of a run and its configuration; nothing is started or written."""
    if config.model.startswith(models.PREFIX):
        models.catalog_config(config.model)  # so that a wrong name is refused here, too
    commands = [{"pass": name, "argv": argv} for name, argv in launch.plan(config)]
    variables = disclosure.disclosed_environment(environment(config))
    return {
        "commands": commands,
        "environment": variables,
        "config": disclosure.config(config).to_dict(),
    }


def commands_text(config: ExperimentConfig) -> str:
    """What a run would do, as commands of a shell."""
    said = _commands(config)
    exported = " ".join(
        f"{name}={shlex.quote(value)}" for name, value in said["environment"].items()
    )
    lines = [f"# {one['pass']}\n{shlex.join(one['argv'])}" for one in said["commands"]]
    return "\n".join([f"# environment\n{exported}", *lines])


def _files(
    done: Run, terminal: Terminal, *, pictures: bool
) -> Iterator[list[tuple[str, Path]] | None]:
    """Report, charts and tables of the run, each on its own: the run is finished, whatever they
    come to.
    """
    from llmprof.report import Visualizer

    folder, again = done.folder.path, f"llmprof run --resume {shlex.quote(str(done.folder.path))}"
    visualizer = Visualizer(done, progress=terminal.progress)
    if done.config.profile_mode == "ops":
        from llmprof.report.operators import write_operators

        yield try_making(
            "the table of operators",
            lambda: [("Operators", write_operators(folder, progress=terminal.progress)[-1])],
            again,
        )
    page = partial(visualizer.generate_report_html, pictures=pictures, tables=False)
    yield try_making("the report", lambda: [("Report", page())], again)
    if pictures:
        drawn = try_making("the pictures", visualizer.create_all_visualizations, again) or []
        yield [("Dashboard", path) for path in drawn if path.name.endswith("_dashboard.png")]


def _requests(done: Run) -> str:
    rows = []
    for row in summarize(done.requests).iter_rows(named=True):
        if row["metric"] in _NAMES:
            as_text = format_ns if row["unit"] == "ns" else "{:,.4g}".format
            low, high = row["ci95_low"], row["ci95_high"]
            spread = "" if low is None else f"± {as_text((high - low) / 2)}"
            tail = as_text(row["p99"]) if row["n"] > 1 else ""
            rows.append(
                (
                    row["phase"],
                    _NAMES[row["metric"]],
                    as_text(row["mean"]),
                    spread,
                    as_text(row["p50"]),
                    tail,
                )
            )
    if not rows:
        return ""
    columns = ("phase", "metric", "mean", "95 % interval", "median", "p99")
    return text.format_table(
        pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
    )


def capture_text(done: Run, terminal: Terminal) -> str:
    """Summarise the findings of the run's trace, if there is one."""
    try:
        with guarded("reading the timeline"):
            trace = done.trace
    except NotCapturedError as error:
        return (
            ""
            if done.config.profile_mode in {"inference_only", "ncu"}
            else f"No timeline: {text.plain(error)}"
        )
    except LlmprofError as error:
        return wrap_words(f"No timeline: {error}", terminal.width, "", "")
    try:
        with guarded("joining the requests to steps"):
            joined = None if done.engine_steps.is_empty() else analyze.requests(done)
    except LlmprofError:  # the clocks disagree, or no request has times: the report says which
        joined = None
    try:
        with guarded("the findings"):
            found = analyze.findings(trace, requests=joined)
            paths = [done.folder.path]
            return first_findings_text(found, terminal.width, paths) if found.height else ""
    except LlmprofError as error:
        return wrap_words(f"No findings: {error}", terminal.width, "", "")


def _instances(done: Run, terminal: Terminal) -> str:
    """Work of the instances of a run, and the mean parts of the time to the first token."""
    if done.config.disaggregate is None or done.config.profile_mode != "torch":
        return ""
    told = ""
    try:
        with guarded("telling the instances apart"):
            found = analyze.transfer(done.trace, by="instance").drop("connector", "steps")
            told = text.format_table(found, width=terminal.width)
            each = analyze.transfer(done.trace, by="request", requests=done.requests)
    except LlmprofError as error:
        words = f"No parts of the first token: {error}"
        return f"{told}\n{wrap_words(words, terminal.width, '', '')}".lstrip()
    means = each.select(TTFT_PARTS).mean().row(0, named=True)
    known = {name.removesuffix("_ns"): ns for name, ns in means.items() if ns is not None}
    said = ", ".join(f"{name} {format_ns(ns)}" for name, ns in known.items())
    count = text.counted(each.height, "request")
    return f"{told}\nFirst token, mean of {count}: {said}."


def _cost(row: dict[str, Any]) -> str:
    """Sentence on the cost of the profiler."""
    if row.get("clear") is None:
        return (
            "its cost is not known: the noise cannot be seen from one repeat without it (--repeat 3"
            " helps)"
        )
    within = "" if row["clear"] else ", which is not beyond the noise of the repeats"
    return f"{100 * row['overhead']:+.1f} % time for a batch{within}"


def _places(done: Run, written: list[tuple[str, Path]]) -> str:
    summary = done.summary
    rows = [("Run", f"{done.folder.path} ({done.state})")]
    cost = [row for row in summary.get("overhead") or () if row.get("metric") == "wall_ns"]
    if cost and cost[0].get("overhead") is not None:
        rows.append(("Profiler", _cost(cost[0])))
    if peaks := summary.get("peak_memory_bytes"):
        most = max(peaks.values())
        rows.append(("Memory", f"{format_bytes(most)} at most on a device"))
    if times := done.times:
        took = {name: format_ns(ns) for name, ns in times.items()}
        words = (
            f"{format_ns(sum(times.values()))}: the engine starts in {took['start']}, runs"
            f" {took['passes']} and is waited for {took['stop']}; llmprof {took['own']}"
        )
        rows.append(("Time", words))
    rows += [(name, str(path)) for name, path in written]
    rows += [("Note", note) for note in summary.get("notes") or ()]
    if done.state == UNIMPORTED:
        rows.append(("Next", f"llmprof run --resume {shlex.quote(str(done.folder.path))}"))
    elif done.config.profile_mode in {"torch", "nsys", "nsys_ncu", "ops"}:
        rows.append(("Next", f"llmprof analyze {shlex.quote(str(done.folder.path))}"))
    return text.pairs(rows, indent="")


def do_config(args: Namespace, terminal: Terminal) -> str:
    """Print or write a commented configuration with every option and its default."""
    text_of = template(dataclasses.fields(ExperimentConfig))
    if args.init is None:
        return text_of
    path = Path(args.init)
    files.write_output(path, text_of, overwrite=args.force)
    return (
        to_json({"file": path})
        if args.json
        else f"wrote {path}; llmprof run --config {shlex.quote(str(path))}"
    )


def do_runs(args: Namespace, terminal: Terminal) -> str:
    """List the runs in a folder with their states; ``--clean`` removes those that failed."""
    if args.clean:
        states = tuple(args.state) if args.state else ("failed", "interrupted")
        removed = launch.clean(args.folder, states=states, match=args.match)
        if args.json:
            return to_json({"removed": removed})
        return "\n".join(
            [f"removed {text.plain(path)}" for path in removed] or ["there was nothing to remove"]
        )
    folders = [
        folder
        for folder in launch.runs(args.folder)
        if fnmatch.fnmatchcase(folder.path.name, args.match)
    ]
    state_of = {folder.path: folder.state for folder in folders}
    rows = []
    for path, state in state_of.items():
        if not args.state or state["state"] in args.state:
            known = {"run": path.name} | {
                key: state.get(key) for key in ("state", "stage", "started")
            }
            known["error"] = (state.get("error") or {}).get("message")
            rows.append({key: str(value or "") for key, value in known.items()})
    if args.json:
        return to_json(rows)
    if not rows:
        raise LlmprofError(
            f"there are no runs in {args.folder}", expected="a folder of run folders"
        )
    frame, spare = pl.DataFrame(rows, infer_schema_length=None), [["stage"], ["started"]]
    return text.format_table(frame, width=terminal.width, spare=spare, whole=["run"])


def do_doctor(args: Namespace, terminal: Terminal) -> str:
    """Check whether this machine can run an experiment."""
    given = changes(args)
    if args.self_test:
        return _self_test(args)
    config = config_from(args) if given.get("model") or args.config is not None else None
    if config is None and given:
        config = config_from(Namespace(**{**vars(args), "model": "random:tiny"}))
    checks = ask(config)
    if args.json:
        return to_json(checks.to_dicts())
    lines = [
        wrap_words(_check_in_words(row), terminal.width, f"{row['status']:<8} ", " " * 9)
        for row in checks.iter_rows(named=True)
    ]
    return "\n".join(lines)


def _check_in_words(row: dict[str, Any]) -> str:
    """What was found, and where it is not right what was expected and what to do."""
    words = f"{row['check']}: {row['found']}"
    if row["status"] == "ok":
        return words
    expected = f" (expected: {row['expected']})" if row["expected"] else ""
    advice = text.sentence(row["advice"]) if row["advice"] else ""
    return f"{words}{expected}{'. ' if advice else ''}{advice}"


def _self_test(args: Namespace) -> str:
    """Compare the timer of operators with PyTorch's profiler on a known kernel."""
    from llmprof.run.experiments.bandwidth import self_test

    test = self_test(args.python or interpreter(["torch"]))
    if args.json:
        return to_json(test)
    kind = (
        "CUDA events" if test["platform"] == "cuda" else "the clock of the host (there is no GPU)"
    )
    if test["difference"] is None:
        return (
            f"PyTorch's profiler recorded no kernel, so nothing can be compared; {kind}:"
            f" {test['timed_us']:.1f} us"
        )
    verdict = f"they {'agree' if test['agrees'] else 'do NOT agree'} ({test['difference']:+.1%}"
    words = (
        f"A product of {test['n']} × {test['n']} matrices takes {test['timed_us']:.1f} us by {kind}"
        " and "
    )
    words += (
        f"{test['profiler_us']:.1f} us by PyTorch's profiler: {verdict}, medians of {test['calls']}"
        " calls)"
    )
    return words


_COLUMNS = (
    "state",
    "output_tokens_per_s",
    "ttft_ns",
    "tpot_ns",
    "e2e_ns",
    "overhead",
    "share_compute",
    "share_exposed_communication",
    "share_idle",
)


def do_sweep(args: Namespace, terminal: Terminal) -> str:
    """Run every point of a sweep and compare them; a failure if no point finished."""
    options: dict[str, Any] = {
        name: getattr(args, name) for name in ("check", "fresh_engine", "shuffle")
    }
    options["progress"] = terminal.progress
    if args.resume is not None:
        if changes(args) or args.config is not None or args.parameter_sweep or args.preset:
            raise ConfigError(
                "--resume was given with options of a sweep", expected="the folder alone"
            )
        done = batch.BatchRunner.resume(args.resume, **options)
    else:
        parameters = _parameters(args)
        config = config_from(args)
        if args.dry_run:
            planned = list(zip(points(parameters), batch.configs(config, parameters), strict=True))
            if args.json:
                return to_json(
                    {"points": [{"values": values} | _commands(point) for values, point in planned]}
                )
            return "\n\n".join(
                f"# point {k} of {len(planned)}: {label(values)}\n{commands_text(point)}"
                for k, (values, point) in enumerate(planned, 1)
            )
        done = batch.BatchRunner(config, **options).run_parameter_sweep(parameters)
    outputs: dict[str, Path] = {}
    if args.report:
        if terminal.progress is not None:
            terminal.progress("drawing the sweep", 0, 0)
        again = f"llmprof sweep --resume {shlex.quote(str(done.folder))}"
        if written := try_making("the report", lambda: batch.write_report(done), again):
            outputs = {"Report": written.index, "Table": written.folder / "comparison.csv"}
    if args.json:
        results = {
            "comparison": done.comparison.to_dicts(),
            "failed": done.failed,
            "files": list(outputs.values()),
        }
        out = to_json({"folder": done.folder, **results})
        return out if done.runs else Failing(out)
    columns = [*done.parameters, *_COLUMNS]
    lines = [
        text.format_table(_with_intervals(done.comparison), width=terminal.width, columns=columns)
    ]
    lines += [
        f"failed: {text.plain(point_label)}: {text.plain(error)}"
        for point_label, error in done.failed.items()
    ]
    named = [("Sweep", str(done.folder)), *((name, str(path)) for name, path in outputs.items())]
    out = "\n".join([*lines, "", text.pairs(named, indent="")])
    return out if done.runs else Failing(out)


def _with_intervals(comparison: pl.DataFrame) -> pl.DataFrame:
    """Format the means of a comparison with half of their 95 % interval; words say if a cost is
    within the noise.
    """
    from llmprof.report.sweep import overhead_in_words, with_interval

    rows = comparison.to_dicts()
    means = ("output_tokens_per_s", "ttft_ns", "tpot_ns", "e2e_ns")
    texts = [
        pl.Series(name, [with_interval(row, name) for row in rows], dtype=pl.String)
        for name in means
    ]
    cost = pl.Series("overhead", [overhead_in_words(row) for row in rows], dtype=pl.String)
    return comparison.with_columns(*texts, cost)


def _parameters(args: Namespace) -> dict[str, list[Any]]:
    preset = None if args.preset in PRESETS else args.preset
    if not preset and not args.parameter_sweep:
        found = "there is nothing to sweep"
        raise ConfigError(
            found, expected=f"--parameter-sweep NAME:VALUE,… or --preset {', '.join(batch.PRESETS)}"
        )
    parameters = batch.preset(preset, devices=batch.device_count()) if preset else {}
    return parameters | (batch.parse(args.parameter_sweep) if args.parameter_sweep else {})
