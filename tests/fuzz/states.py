"""What llmprof reads back: whole state files as seeds, their mutations, and the public doors
that open them.
"""

import contextlib
import json
import os
import shutil

import llmprof
from llmprof import theory
from llmprof.errors import LlmprofError
from llmprof.explore.timeline.saved import Notes
from llmprof.readers.redaction import redact
from llmprof.report import run as report
from llmprof.report.folder import earlier_files
from llmprof.run import trials
from llmprof.run.batch import open_sweep, write_report
from llmprof.run.experiments.bandwidth import read_bandwidth
from llmprof.run.experiments.history import append, read_history
from llmprof.run.experiments.scaling import read_communication, read_points
from llmprof.run.launch import ConfigManager, ExperimentConfig, open_run
from llmprof.run.launch.config.options import read_text
from llmprof.run.launch.monitors import table
from llmprof.run.launch.run import folder as run_folder
from llmprof.run.launch.run.load import load
from llmprof.run.launch.run.process import Events
from llmprof.run.launch.run.results import energy
from llmprof.run.live import changed, history
from llmprof.run.live.changes import counters_of, samples_of
from llmprof.run.live.counters import SAMPLE
from llmprof.run.live.past import FOLDER, WatchHistory, stored
from llmprof.run.live.watching import Watch
from llmprof.run.live.widget import page_of
from llmprof.run.notebook.tutorials import parameters_of
from tests.fuzz import mutate

CONFIG = {
    "model": "random:tiny",
    "engine": "vllm",
    "profile_mode": "torch",
    "max_tokens": 4,
    "seed": 0,
}
MEANS = {"wall_ns": 2e9, "ttft_ns": 1e8, "tpot_ns": 2e7, "output_tokens_per_s": 200.0}


def _json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))


def _reading(number):
    return dict.fromkeys(SAMPLE) | {
        "time_ns": 5 * 10**9 * number,
        "seconds": 5.0,
        "waiting": float(number),
    }


def make(folder, run):
    """Write the seeds: a folder for each kind of state, with the files of one as they are
    written.
    """
    of_run = folder / "state run/run"
    shutil.copytree(run, of_run)
    _json(of_run / "cpu_clock.json", {"epoch_minus_monotonic_ns": 10**18, "hz": 99})
    (of_run / "cpu_samples.txt").write_text(
        "python3 12/3 [000] 100.001: 1000000 cpu-clock:\n\t 7f main (/app)\n\n"
    )
    _json(
        of_run / ".passes.json",
        {"commands": [{"pass": "engine", "argv": ["a"]}], "environment": {}, "notes": ["n"]},
    )
    devices = {
        "others": 1,
        "others_utilization": 3,
        "devices": [{"device": 0, "ecc_uncorrected": 0}],
    }
    cost = {"bytes": 9, "stop_s": 0.5, "overhead": 0.1}
    start_ns = json.loads((run / "worker.json").read_text())["stages"][0]["start_ns"]
    window = {"start_epoch_ns": start_ns, "end_epoch_ns": start_ns + 10**12}
    counters = {
        when: {"ttft_mean": 0.5, "tpot_mean": 0.02, "running": 3.0}
        for when in ("before", "within", "after")
    }
    said = {
        "config": {"max_num_seqs": 8},
        "told_by": ["/server_info"],
        "window": window,
        "cost": cost,
        "notes": ["n"],
    }
    both = {"before": devices, "after": devices}
    _json(of_run / "recording.json", said | {"counters": counters, "devices": both})
    _json(
        of_run / "changed.json",
        {"says": "Nothing.", "cause": "none", "counters": {"ttft_mean": 0.5}},
    )

    event = {
        "time": "2026-01-01T00:00:00",
        "what": "captured",
        "folder": "one",
        "changed": "Nothing.",
    }
    whole = {
        "when": "waiting > 1",
        "scrapes": 4,
        "lost": 0,
        "holds": True,
        "captures": 1,
        "kept": ["one"],
        "says": "x",
    }
    watch = folder / "state watch/watch"
    _json(watch / "watch.json", whole | {"events": [event]})
    finding = {"rule": "r", "severity": "high", "recorded_share": 0.25, "title": "a finding"}
    _json(watch / "captures/one/findings.json", [finding])
    kept = WatchHistory(watch / FOLDER)
    for number in range(30):
        kept.add(_reading(number))
    kept.store()
    shutil.copytree(watch / FOLDER, folder / "state history/watch" / FOLDER)

    time = {"phase": "decode", "part": "compute", "ns": 9, "share": 0.9, "steps": 1, "ranks": 1}
    result = {
        "measures": {"measured": "plain", "repeats": 2, "agree": True, "wall_ns": 2e9},
        "where": [time],
    }
    probe = {"rate": 1.5, "answered": 1.4, "holds": True, "seed": 0, "run": "p0", "tpot_p95": 2e7}
    points = [
        {
            "point": place,
            "values": {"max_tokens": most, "engine_args.max_num_seqs": most},
            "state": "finished",
            "run": f"p{place}",
            "error": None,
            "started": None,
            "seconds": 3.5,
            "predicted": 0.1,
            "trial": place,
            "metrics": {"output_tokens_per_s": 10.0 * most, "tpot_p95": 2e7},
            "result": result,
            "probes": [probe],
        }
        for place, most in enumerate((4, 8, 16))
    ]
    points[2] |= {"state": "failed", "error": "out of memory", "metrics": None, "result": None}
    parameters = {"max_tokens": [4, 8, 16], "engine_args.max_num_seqs": [4, 8, 16]}
    state = {
        "version": 1,
        "config": CONFIG,
        "parameters": parameters,
        "points": points,
        "order": [0, 2, 1],
    }
    state |= {"starts": [{"points": [0, 1], "starts": 1}], "fresh_engine": False}
    _json(folder / "state sweep/sweep/sweep.json", state)
    tune = {
        "objective": "output_tokens_per_s",
        "slo": "tpot_p95<=30ms",
        "start": points[0]["values"],
        "spent_s": 9.0,
        "excluded": [{"values": points[1]["values"], "reason": "memory"}],
        "notes": ["a note"],
        "stopped": "budget",
        "bound": "",
        "confirmation": "confirmation-001",
        "importance": {"max_tokens": 0.9},
        "engine_version": "1",
        "ranking": [{"remedy": "graphs", "values": {"max_tokens": 8}, "gain": 0.1}],
        "profile_mode": "torch",
        "version": 1,
        "workload": None,
    }
    _json(folder / "state study/study/sweep.json", state | {"tune": tune})
    side = {"at_ns": 10**18, "means": MEANS}
    trial = {
        "version": 1,
        "config": CONFIG,
        "change": "graphs",
        "fields": {"eager": False},
        "objective": "tpot_ns",
        "until": 0.02,
        "slo": "tpot_p95<=30ms",
        "pairs": [{"A": side, "B": side}] * 4,
        "notes": ["n"],
        "predicted": {"gain": 0.3, "low": 0.2, "high": 0.4},
        "engines": "both",
        "error": None,
        "versions": {"A": "1", "B": "2"},
        "memory_bytes": {"A": 9, "B": 8},
        "drift": {"t": 1.0, "per_hour": 0.1},
        "equal": {"between": 0.9, "within": 0.95},
    }
    _json(folder / "state trial/trial/trial.json", trial)
    trial["profiled"] = {"A": "a", "B": "b"}
    _json(folder / "state study/study/confirmation-001/trial.json", trial)

    files = folder / "state files/files"
    _json(
        files / "config.json",
        CONFIG | {"engine_args": {"max_num_seqs": 8}, "environment": {"A": "b"}},
    )
    (files / "config.yaml").write_text(
        "model: random:tiny\nmax_tokens: 4\nengine_args: {max_num_seqs: 8}\n"
    )
    (files / "device.yaml").write_text(
        "{name: mine, tflops: {bf16: 400}, memory_gb_per_s: 1800, source: a sheet}\n"
    )
    _json(files / "model/config.json", theory.model_config("Qwen/Qwen3-8B"))
    (files / "calibration.json").write_text(theory.calibrated("H200").to_json())
    step = {
        "model": "Qwen/Qwen3-8B",
        "batch": 1,
        "prompt": 9,
        "decode_step_s": 0.1,
        "prefill_last_s": 0.2,
        "tp": 1,
    }
    _json(files / "steps.json", {"rows": [step, step]})
    point = {
        "tp": 1,
        "pp": 1,
        "prompt": 9,
        "batch": 1,
        "out": 2,
        "prefill_s": 0.1,
        "decode_step_s": 0.01,
    }
    rates = [{"rank": 0, "kind": "copy", "bytes": 9, "gb_per_s": 1.5}]
    link = {
        "src": 0,
        "dst": 1,
        "bytes": 9,
        "both": False,
        "peer_access": True,
        "seconds": 0.1,
        "gb_per_s": 1.0,
    }
    sums = [
        {
            "algorithm": "ring",
            "bytes": 9,
            "world": 2,
            "seconds": 0.1,
            "algorithm_gbps": 1.0,
            "bus_gbps": 1.0,
        }
    ]
    rate = {"format": "llmprof-bandwidth", "version": 1, "spec": {}, "memory": rates, "host": rates}
    rate |= {
        "matmul": [{"dtype": "bf16", "n": 9, "tflop_per_s": 1.0}],
        "p2p": [link],
        "p2p_ranks": [link],
    }
    _json(
        files / "bandwidth.json",
        rate
        | {
            "all_reduce": sums,
            "devices": [{"name": "NVIDIA H200"}],
            "notes": [],
            "platform": "cuda",
        },
    )
    share = {"tp": 1, "pp": 1, "phase": "decode", "communication": 0.1, "steps": 3}
    _json(
        files / "points.json",
        {"format": "llmprof-points", "rows": [point], "communication": [share]},
    )
    _json(files / "report/summary.json", {"llmprof": "1", "files": ["a.png", "b.csv"]})
    cell = {"cell_type": "code", "source": ["x = 1\n"], "metadata": {"tags": ["parameters"]}}
    _json(
        files / "notebook.ipynb",
        {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5},
    )
    (files / "load.jsonl").write_text(
        '{"prompt_tokens": 3, "output_tokens": 4}\n{"prompt_tokens": 5, "output_tokens": 2}\n'
    )
    _json(files / "load.json", [{"prompt_tokens": 3, "output_tokens": 4}])
    notes = Notes("t", files / "marks.json")
    notes.save([])
    with contextlib.suppress(LlmprofError):
        append(
            files / "history.parquet",
            {"prefill_s": [0.1, 0.2]},
            better={"prefill_s": "lower"},
            label="a",
        )


def _run(path):
    run = open_run(path)
    names = ("state", "summary", "worker", "requests", "engine_steps", "metrics")
    doors = {name: lambda _, name=name: getattr(open_run(path), name) for name in names}
    return doors | {
        "card": lambda _: open_run(path)._repr_html_(),
        "repr": repr,
        "runs": lambda path: [one.state for one in run_folder.runs(path.parent)],
        "changed files": lambda path: run_folder.changed_files(run_folder.RunFolder(path)),
        "facts": lambda _: report.launch_facts(run),
        "tiles": lambda _: report.dashboard_figures(run),
        "energy": lambda path: energy(table.read(path / "monitors.parquet"), run.worker),
        "monitors": lambda path: table.samples_metadata(path / "monitors.parquet"),
        "counters of": lambda _: counters_of(run),
        "samples of": lambda _: samples_of(run),
        "events": lambda path: Events(path / "events.jsonl", lambda *_: None).read(),
    }


def _sweep(path):
    names = ("comparison", "where", "runs", "failed", "parameters")
    doors = {name: lambda path, name=name: getattr(open_sweep(path), name) for name in names}
    return doors


def _study(path):
    study = trials.open_study(path)
    names = (
        "config",
        "objective",
        "slo",
        "points",
        "best",
        "nearest",
        "confirmation",
        "keep",
        "kept",
        "command",
        "says",
        "pareto",
        "axes",
        "rates",
        "importance",
        "slices",
        "write",
        "__repr__",
        "_facts",
    )
    return {name: _asked(study, name) for name in names} | {
        "comparison": lambda path: open_sweep(path).comparison
    }


def _trial(path):
    trial = trials.open_trial(path)
    names = (
        "pairs",
        "effects",
        "effect",
        "verdict",
        "held",
        "slo_held",
        "breaks_slo",
        "says",
        "keep",
        "why",
        "write",
    )
    doors = {name: _asked(trial, name) for name in (*names, "__repr__", "_facts")}
    return doors | {"calibration": lambda path: trials.calibration(path.parent)}


def _asked(of, name):
    def ask(_):
        found = getattr(of, name)
        return found() if callable(found) else found

    return ask


def _watch(path):
    def again(path):
        watch = Watch(path, open_run)
        watch.history.add(_reading(99))
        watch.store()
        page_of(path)
        if history(path).height < 3:
            raise AssertionError("the history was not stored")

    return {"history": history, "page": page_of, "the next watch": again}


def _files(_):
    return {
        "json": lambda path: ConfigManager.load_config(path / "config.json"),
        "yaml": lambda path: ConfigManager.load_config(path / "config.yaml"),
        "device": lambda path: theory.read_device(path / "device.yaml"),
        "model": lambda path: theory.shape(path / "model/config.json"),
        "calibration": lambda path: theory.read_calibration(path / "calibration.json"),
        "steps": lambda path: theory.read_steps(path / "steps.json"),
        "points": lambda path: read_points(path / "points.json"),
        "communication": lambda path: read_communication(path / "points.json"),
        "bandwidth": lambda path: read_bandwidth(path / "bandwidth.json"),
        "report": lambda path: earlier_files(path / "report"),
        "notebook": lambda path: parameters_of(path / "notebook.ipynb"),
        "marks": lambda path: Notes("t", path / "marks.json").load(),
        "measurements": lambda path: read_history(path / "history.parquet"),
        "text": lambda path: read_text(path / "load.jsonl", "a load"),
        **{
            name: lambda path, name=name: load(
                ExperimentConfig.from_dict(
                    CONFIG | {"served": True, "load": {"file": str(path / name)}}
                )
            )
            for name in ("load.json", "load.jsonl")
        },
    }


DOORS = {
    "state run": _run,
    "state watch": _watch,
    "state history": _watch,
    "state sweep": _sweep,
    "state study": _study,
    "state trial": _trial,
    "state files": _files,
}
PAGES = {
    "state sweep": {"page": lambda path: write_report(open_sweep(path))},
    "state study": {"page": lambda path: trials.open_study(path).report()},
    "state trial": {"page": lambda path: trials.open_trial(path).report()},
    "state run": {
        "sections": lambda path: report.run_sections(open_run(path)),
        "trace": lambda path: open_run(path).trace,
        "read": lambda path: llmprof.read(path, cache=False),
        "counters": lambda path: report.monitor_samples(open_run(path)),
        "what changed": lambda path: changed(open_run(path), open_run(path)),
        "redact": lambda path: redact(path, path.with_name("redacted")),
    },
}
"""Doors of a state that take longer."""


def opened(name, path, *, deep):
    """Open every door of a state: its name, and the error of llmprof with which it stayed shut."""
    try:
        doors = DOORS[name](path)
    except LlmprofError as error:
        yield "open", error
        doors = {}
    doors |= PAGES.get(name, {}) if deep else {}
    for door, ask in doors.items():
        try:
            ask(path)
        except LlmprofError as error:
            yield door, error
        else:
            yield door, None


_ODD = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"7",
    b"\x00\xff\xfe\x80" * 9,
    b"[" * 10**5,
    b'{"a":' * 10**5,
    b"9" * 10**5,
    b'{"a": ' + b"9" * 10**5 + b"}",
    b"a: " + b"9" * 10**5,
    b"- " * 10**4,
    b"a: !!int ''",
    b"a: &a [*a]",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b"PAR1",
    b"SQLite format 3\x00",
    b"{} {}",
)


def of_state(folder, rng):
    """Change one or two files of a state by what they are, or put something else into their
    place.
    """
    for _ in range(rng.choice((1, 1, 1, 2))):
        inside = [
            path for path in folder.rglob("*") if path.is_file() and "traces" not in path.parts
        ]
        if not inside:
            return
        path = rng.choice(sorted(inside))
        kind = rng.random()
        if kind < 0.15:
            path.write_bytes(rng.choice(_ODD))
        elif kind < 0.2:
            path.unlink()
            if rng.random() < 0.5:
                os.mkfifo(path)
            elif rng.random() < 0.5:
                path.mkdir()
        elif kind < 0.3:
            mutate.of_bytes(path, rng)
        else:
            mutate.of_anything(path, rng)


CHECKED = ("state history",)
"""States with a checksum: what is read is as it was written."""


def silent(name, path, seed):
    """What is neither as it was written, nor refused, nor set aside; it is looked at before a
    door changes it.
    """
    if name not in CHECKED or not (file := WatchHistory(path / FOLDER).file).is_file():
        return ""
    try:
        found = stored(file)
    except LlmprofError:
        return ""
    whole = stored(WatchHistory(seed / FOLDER).file)
    return (
        "" if all(found[level].equals(whole[level]) for level in whole) else "the history changed"
    )
