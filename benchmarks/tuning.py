"""Whether a search finds what a grid of the same settings finds, with at most half of its measurements.

``python benchmarks/tuning.py --model random:Qwen2.5-7B --folder DIR tune grid`` searches the settings of a loaded
server, measures the grid of the same settings on the same machine, and prints both as JSON. Each part can be called
alone, and continues what is in its folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import llmprof
from llmprof.batch import BatchRunner, open_sweep
from llmprof.trials import open_study
from llmprof.trials.objectives import figure, holds, limits

OBJECTIVE = "output_tokens_per_s"
SERVED = {
    "served": True, "eager": True, "max_model_len": 1024, "monitor_hz": 0, "warmup": 1, "repeat": 1, "seed": 1,
    "profile_mode": "inference_only", "load": {"input": "64:256", "output": "48:96"},
}  # fmt: skip


def main() -> None:
    """Measure the parts that are asked for, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=["tune", "grid"])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--folder", type=Path, required=True, help="folder of both, new or to continue")
    parser.add_argument("--budget", default="9m", help="of the search (default: %(default)s)")
    parser.add_argument("--slo", default="", help="limits (default: none)")
    parser.add_argument("--requests", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--search", type=json.loads, required=True, help="values by setting, as JSON")
    parser.add_argument("--engine", type=json.loads, default={}, help="engine_args of the start, as JSON")
    parser.add_argument("--stop-after", type=float, default=1e9, help="no point of the grid begins later (s)")
    args = parser.parse_args()
    server = {"num_prompts": args.requests, "max_concurrency": args.concurrency, "health_timeout_s": 600.0}
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
            config, objective=OBJECTIVE, slo=args.slo, budget=args.budget, search=args.search, most_points=points // 2,
            folder=args.folder / "study", progress=tell, check=False,
        )  # fmt: skip
        print(study.says)
    if "grid" in args.parts:
        runner = BatchRunner(config, progress=tell, check=False, runner=_until(began + args.stop_after))
        runner.run_parameter_sweep(args.search, folder=args.folder / "grid")
    for name in ("study", "grid"):
        if (args.folder / name).is_dir():
            print(json.dumps(_found(args.folder / name, args.slo), indent=1))


def _until(end: float) -> Any:
    """Runner of points of which none begins after a time."""

    def start(config: llmprof.ExperimentConfig, progress: Any) -> Any:
        if time.monotonic() > end:
            raise KeyboardInterrupt
        return llmprof.launch.ExperimentRunner(config, progress=progress, check=False)

    return start


def _found(folder: Path, slo: str) -> dict[str, Any]:
    """Figures of the measured points of a study or a grid."""
    rows, limited = [], limits(slo)
    for point in open_sweep(folder).state["points"]:
        if point["state"] == "finished":
            requests = llmprof.launch.open_run(folder / point["run"]).requests
            names = [OBJECTIVE, "tpot_p95", "ttft_p99", *(one.figure.name for one in limited)]
            figures = {name: figure(name).of(requests) for name in names}
            rows.append({**point["values"], **figures, "seconds": point["seconds"], "holds": holds(figures, limited)})
        else:
            rows.append({**point["values"], "state": point["state"], "error": point["error"]})
    found: dict[str, Any] = {"what": folder.name, "points": rows}
    if folder.name == "study":
        found |= {"spent_s": open_study(folder).state["tune"]["spent_s"], "says": open_study(folder).says}
    return found


if __name__ == "__main__":
    main()
