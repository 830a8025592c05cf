"""Whether a search finds what a grid of the same settings finds, with at most half of its
measurements.

``python benchmarks/tuning.py --model random:Qwen2.5-7B --folder DIR tune grid`` searches the
settings of a loaded server, measures the grid of the same settings on the same machine, and prints
both as JSON. Each part can be called alone, and continues what is in its folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import llmprof
from llmprof.run.batch.parameters import apply
from llmprof.run.launch.run.requests import requests_of
from llmprof.run.trials import open_study
from llmprof.run.trials.measure import loaded_engines
from llmprof.run.trials.objectives import holds, limits, parse_figure
from llmprof.trace.storage import files, typed

OBJECTIVE = "output_tokens_per_s"
SERVED = {
    "served": True,
    "eager": True,
    "max_model_len": 1024,
    "monitor_hz": 0,
    "warmup": 1,
    "repeat": 1,
    "seed": 1,
    "profile_mode": "inference_only",
    "load": {"input": "64:256", "output": "48:96"},
}


def main() -> None:
    """Measure the parts that are asked for, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=["tune", "grid"])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder of both, new or to continue"
    )
    parser.add_argument("--budget", default="9m", help="of the search (default: %(default)s)")
    parser.add_argument("--slo", default="", help="limits (default: none)")
    parser.add_argument("--requests", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument(
        "--search", type=json.loads, required=True, help="values by setting, as JSON"
    )
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="engine_args of the start, as JSON"
    )
    parser.add_argument(
        "--together", type=int, default=3, help="engines that start at the same time"
    )
    args = parser.parse_args()
    server = {
        "num_prompts": args.requests,
        "max_concurrency": args.concurrency,
        "health_timeout_s": 600.0,
    }
    config = llmprof.ExperimentConfig.from_dict(
        {**SERVED, "model": args.model, "server": server, "engine_args": args.engine}
    )
    points = 1
    for values in args.search.values():
        points *= len(values)
    began = time.monotonic()

    def tell(what: str, done: int, total: int) -> None:
        print(f"{time.monotonic() - began:6.1f} {done}/{total} {what}", file=sys.stderr, flush=True)

    if "tune" in args.parts:
        study = llmprof.tune(
            config,
            objective=OBJECTIVE,
            slo=args.slo,
            budget=args.budget,
            search=args.search,
            most_points=points // 2,
            engines=args.together,
            folder=args.folder / "study",
            progress=tell,
            check=False,
        )
        print(study.says)
    if "grid" in args.parts:
        grid(config, args, tell)
    for name in ("study", "grid"):
        if (args.folder / name).is_dir():
            print(json.dumps(_found(args.folder / name, args.slo), indent=1))


def grid(config: Any, args: argparse.Namespace, tell: Any) -> None:
    """Measure each point of the grid that is missing; some engines start at the same time, and
    measure in turn.
    """
    points = [
        dict(zip(args.search, values, strict=True))
        for values in itertools.product(*args.search.values())
    ]
    file = args.folder / "grid" / "grid.json"
    done = typed.found(file, Any) or []
    left = [point for point in points if point not in [one["values"] for one in done]]
    for group in (left[k : k + args.together] for k in range(0, len(left), args.together)):
        configs = [apply(config, point).replace(timeout_s=300.0) for point in group]
        homes = [file.parent / f"{time.time_ns()}-{k}" for k in range(len(group))]
        with loaded_engines(configs, homes) as engines:
            for engine, point in zip(engines, group, strict=True):
                engine.ready(300.0)
                tell(f"loaded: {point}", len(done), len(points))
            for engine, point in zip(engines, group, strict=True):
                requests = requests_of(engine.measure(300.0))
                done.append({"values": point, **_figures(requests, limits(args.slo))})
                tell(f"measured: {done[-1]}", len(done), len(points))
                files.write_json(file, done)


def _figures(requests: Any, slo: Any) -> dict[str, Any]:
    names = dict.fromkeys([OBJECTIVE, "tpot_p95", "ttft_p99", *(one.figure.name for one in slo)])
    figures = {name: parse_figure(name).of(requests) for name in names}
    return {**figures, "holds": holds(figures, slo)}


def _found(folder: Path, slo: str) -> dict[str, Any]:
    """Figures of the measured points of a study or a grid."""
    if folder.name == "grid":
        return {"what": "grid", "points": typed.found(folder / "grid.json", Any)}
    study, rows = open_study(folder), []
    for point in study.state["points"]:
        run = point["state"] == "finished" and llmprof.run.launch.open_run(folder / point["run"])
        found = _figures(run.requests, limits(slo)) if run else {"error": point["error"]}
        rows.append({"values": point["values"], **found, "seconds": point["seconds"]})
    return {
        "what": "study",
        "points": rows,
        "spent_s": study.state["tune"]["spent_s"],
        "says": study.says,
    }


if __name__ == "__main__":
    main()
