"""``llmprof sweep``: one run for each combination of parameters."""

from __future__ import annotations

import functools
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from llmprof import text
from llmprof.commands._launch_options import changes, config_of
from llmprof.commands._output import Terminal, rows_of, to_json
from llmprof.commands._run import commands_of
from llmprof.errors import ConfigError

if TYPE_CHECKING:
    from llmprof.batch import Sweep

_COLUMNS = (
    "state", "output_tokens_per_s", "ttft_ns", "tpot_ns", "e2e_ns", "share_overhead", "share_compute",
    "share_exposed_communication", "share_idle",
)  # fmt: skip


def sweep(args: Namespace, terminal: Terminal) -> str:
    """Run every point of a sweep and compare them."""
    from llmprof import batch
    from llmprof.launch import ExperimentRunner

    options: dict[str, Any] = {
        "progress": terminal.progress,
        "runner": functools.partial(ExperimentRunner, check=args.check),
    }
    if args.resume is not None:
        if changes(args) or args.config is not None or args.parameter_sweep or args.preset:
            raise ConfigError("--resume was given with options of a sweep", expected="the folder alone")
        done = batch.BatchRunner.resume(args.resume, **options)
    else:
        parameters = _parameters(args)
        config = config_of(args)
        if args.dry_run:
            plans = [commands_of(point, json=False) for point in batch.configs(config, parameters)]
            return "\n\n".join(plans)
        done = batch.BatchRunner(config, **options).run_parameter_sweep(parameters)
    files = _files(done, terminal) if args.report else {}
    if args.json:
        said: dict[str, Any] = {"folder": done.folder, "comparison": rows_of(done.comparison), "failed": done.failed}
        return to_json(said | {"files": list(files.values())})
    columns = [*done.parameters, *_COLUMNS]
    lines = [text.table(done.comparison.rename({"overhead": "share_overhead"}), width=terminal.width, columns=columns)]
    lines += [f"failed: {text.plain(label)}: {text.plain(error)}" for label, error in done.failed.items()]
    named = [("Sweep", str(done.folder)), *((name, str(path)) for name, path in files.items())]
    return "\n".join([*lines, "", text.pairs(named, indent="")])


def _parameters(args: Namespace) -> dict[str, list[Any]]:
    from llmprof import batch

    if not args.preset and not args.parameter_sweep:
        raise ConfigError("there is nothing to sweep", expected="--parameter-sweep NAME:VALUE,… or --preset NAME")
    found = batch.preset(args.preset, devices=batch.devices()) if args.preset else {}
    return found | (batch.parse(args.parameter_sweep) if args.parameter_sweep else {})


def _files(done: Sweep, terminal: Terminal) -> dict[str, Any]:
    from llmprof.batch import write_report

    if terminal.progress is not None:
        terminal.progress("drawing the sweep", 0, 0)
    written = write_report(done)
    return {"Report": written.index, "Table": written.folder / "comparison.csv"}
