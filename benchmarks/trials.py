"""Whether a trial of nothing says "no effect": one engine configuration twice, many trials.

``python benchmarks/trials.py --folder DIR --count 20`` starts vLLM's CPU build with ``random:tiny``
twice, alike, and lets the two measure trials one after the other, each with its own pairs of
measurements and its own verdict. At a level of 95 % about one of 20 may say ``better`` or
``worse``. A folder with trials is continued.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import llmprof
from llmprof.run.trials.measure import Trial, loaded_engine, new_state
from llmprof.run.trials.verdict import FILE, Verdict
from llmprof.trace.storage import typed


def main() -> None:
    """Measure the trials that are missing, and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder of the trials, new or to continue"
    )
    parser.add_argument("--count", type=int, default=20, help="trials (default: %(default)s)")
    parser.add_argument(
        "--until", type=float, default=0.05, help="half width to measure to (default: %(default)s)"
    )
    parser.add_argument(
        "--most-pairs", type=int, default=60, help="most pairs of a trial (default: %(default)s)"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=16,
        help="output tokens of a request (default: %(default)s)",
    )
    parser.add_argument(
        "--repeat", type=int, default=3, help="repeats of a measurement (default: %(default)s)"
    )
    args = parser.parse_args()
    config = llmprof.ExperimentConfig(
        model="random:tiny",
        batch_size=2,
        input_tokens=16,
        max_tokens=args.max_tokens,
        repeat=args.repeat,
        warmup=0,
        max_model_len=512,
        monitor_hz=0,
        profile_mode="inference_only",
        environment={"OMP_NUM_THREADS": "1"},
    )
    verdicts: Counter[str] = Counter()
    number = sum(1 for _ in args.folder.glob("start-*"))
    homes = {side: args.folder / f"start-{number}" / side for side in "AB"}
    with loaded_engine(config, homes["A"]) as a, loaded_engine(config, homes["B"]) as b:
        for engine in (a, b):
            engine.measure(config.timeout_s)
        for k in range(args.count):
            folder = args.folder / f"{k:02d}"
            state = typed.found(folder / FILE, Any)
            if not isinstance(state, dict) or not (folder / "verdict.json").is_file():
                folder.mkdir(exist_ok=True)
                state = new_state(
                    config, "nothing", {}, objective="output_tokens_per_s", until=args.until
                )
                Trial(folder, state, config, config, None, args.most_pairs).pairs(
                    {"A": a.measure, "B": b.measure}
                )
                Verdict(folder, state).write()
            done = Verdict(folder, state)
            verdicts[done.verdict] += 1
            row = {
                name: (done.effect or {}).get(name)
                for name in ("pairs", "gain", "gain_low", "gain_high")
            }
            print(json.dumps({"trial": k, "verdict": done.verdict, **row}), flush=True)
    print(json.dumps(dict(verdicts)))


if __name__ == "__main__":
    main()
