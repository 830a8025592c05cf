"""Settings of an engine as ``llmprof try`` judges them, beside long runs of separate engines.

``python benchmarks/settings.py --model random:Qwen2.5-1.5B --folder DIR record try long`` records
the run as it is, eager and with CUDA graphs (for the predictions), tries each change of
:data:`TRIALS` between two engines that stay loaded, starts all engines anew and measures each alone
for long. It prints predicted, measured and long gains as JSON. The engines of all trials start at
the same time, and those that several trials need start once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import llmprof
from llmprof.run.batch.parameters import apply
from llmprof.run.trials.measure import Trial, loaded_engine, new_state, predicted_gain
from llmprof.run.trials.schedule import NoPredictionError
from llmprof.run.trials.verdict import FILE, Verdict, open_trial
from llmprof.trace.storage import files, typed

OBJECTIVE = "output_tokens_per_s"
CHUNKED = {"engine_args.max_num_batched_tokens": 1024, "engine_args.enable_chunked_prefill": True}
ENGINES: dict[str, dict[str, Any]] = {
    "eager": {"eager": True},
    "graphs": {},
    "smaller-chunks": CHUNKED,
    "fewer-sequences": {"engine_args.max_num_seqs": 16},
    "kv-fp8": {"engine_args.kv_cache_dtype": "fp8"},
}
TRIALS = {
    "graphs": "eager",
    "smaller-chunks": "graphs",
    "fewer-sequences": "graphs",
    "kv-fp8": "graphs",
}
"""The engine that each change is tried against."""


def main() -> None:
    """Measure the parts that are asked for, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=["record", "try", "long", "show"])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help="names of engines (default: %(default)s)"
    )
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="engine_args of all engines, as JSON"
    )
    parser.add_argument("--requests", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--input-tokens", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument(
        "--until", type=float, default=0.02, help="half width to measure to (default: %(default)s)"
    )
    parser.add_argument("--most-pairs", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument(
        "--long-s", type=float, default=15.0, help="least time of a long run (default: %(default)s)"
    )
    args = parser.parse_args()
    base = llmprof.ExperimentConfig.from_dict(
        {
            "model": args.model,
            "batch_size": args.requests,
            "input_tokens": args.input_tokens,
            "max_tokens": args.max_tokens,
            "max_model_len": 1024,
            "eager": False,
            "repeat": 2,
            "warmup": 1,
            "monitor_hz": 0,
            "profile_mode": "inference_only",
            "timeout_s": 300.0,
            "engine_args": {
                "max_num_seqs": args.requests,
                "max_num_batched_tokens": 8192,
                **args.engine,
            },
        }
    )
    names = [name for name in args.engines.split(",") if name in ENGINES]
    configs = {name: apply(base, ENGINES[name]) for name in names}
    pairs = {name: before for name, before in TRIALS.items() if {name, before} <= set(names)}
    args.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} {what}", file=sys.stderr, flush=True)

    if "record" in args.parts:
        bases = sorted(set(pairs.values()))
        say(f"recording {', '.join(bases)}")
        recorded = {"profile_mode": "torch", "results_dir": str(args.folder)}
        for name in bases:
            one = configs[name].replace(**recorded, experiment_name=f"recorded_{name}")
            llmprof.run.launch.ExperimentRunner(one, check=False).run()
    if "try" in args.parts:
        with started(configs, args.folder / f"try-{time.time_ns()}", say) as engines:
            for name, before in pairs.items():
                say(f"trying {name}")
                folder, fields = args.folder / name, ENGINES[name] or {"eager": False}
                folder.mkdir(exist_ok=True)
                state = new_state(
                    configs[before], name, fields, objective=OBJECTIVE, until=args.until
                )
                trial = Trial(folder, state, configs[before], configs[name], None, args.most_pairs)
                trial.pairs({"A": engines[before].measure, "B": engines[name].measure})
                trial.summarise()
                trial.store()
                say(Verdict(folder, state).says)
    if "long" in args.parts:
        rates = {}
        with started(configs, args.folder / f"long-{time.time_ns()}", say) as engines:
            for name, engine in engines.items():
                say(f"long run of {name}")
                end, values = time.monotonic() + args.long_s, []
                while time.monotonic() < end:
                    for one in plain_rates(engine.measure(300.0)):
                        values.append(one)  # noqa: PERF402
                rates[name] = {"repeats": len(values), OBJECTIVE: fmean(values)}
                files.write_json(args.folder / "long.json", rates)
    print(json.dumps(found(args.folder, pairs), indent=1))


@contextlib.contextmanager
def started(configs: dict[str, Any], home: Path, say: Any) -> Any:
    """Engines that are loaded within the block, of which each has measured once."""
    with contextlib.ExitStack() as stack:
        engines = {
            name: stack.enter_context(loaded_engine(one, home / name))
            for name, one in configs.items()
        }
        for name, engine in engines.items():
            engine.ready(300.0)
            say(f"{name} is loaded")
        for engine in engines.values():
            engine.measure(300.0)
        yield engines


def plain_rates(worker: dict[str, Any]) -> list[float]:
    """Output tokens a second of each plain repeat."""
    from llmprof.run.launch.run.requests import repeats, requests_of

    return repeats(requests_of(worker)).filter(phase="plain")[OBJECTIVE].to_list()


def found(folder: Path, pairs: dict[str, str]) -> list[dict[str, Any]]:
    """Predicted, measured and long gain of each trial."""
    long, rows = typed.found(folder / "long.json", Any) or {}, []
    for name, before in pairs.items():
        if not (folder / name / FILE).is_file():
            continue
        done = open_trial(folder / name)
        recorded = sorted(folder.glob(f"recorded_{before}_*"))
        run = llmprof.run.launch.open_run(recorded[-1]) if recorded else None
        gain = (
            1 - long[before][OBJECTIVE] / long[name][OBJECTIVE]
            if {name, before} <= long.keys()
            else None
        )
        predicted: Any = "the run was not recorded"
        if run is not None:
            try:
                predicted = predicted_gain(run, name, OBJECTIVE, ENGINES[name])
            except NoPredictionError as why:
                predicted = str(why)
        row = {
            "change": name,
            "predicted": predicted,
            "verdict": done.verdict,
            **(done.effect or {}),
            "long": gain,
        }
        rows.append(row | {"equal": done.state.get("equal"), "notes": done.state["notes"]})
    return rows


if __name__ == "__main__":
    main()
