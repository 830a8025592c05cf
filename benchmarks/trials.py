"""Whether a trial of nothing says "no effect": the same engine twice, many times.

``python benchmarks/trials.py --folder DIR --count 20`` tries a change that changes nothing (the name of the experiment)
on vLLM's CPU build and ``random:tiny``, and counts the verdicts. At a level of 95 % about one of 20 may say ``better``
or ``worse``. A folder with trials is continued.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import llmprof
from llmprof import trials
from llmprof.errors import ReadError


def main() -> None:
    """Run the trials that are missing, and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the trials, new or to continue")
    parser.add_argument("--count", type=int, default=20, help="trials (default: %(default)s)")
    parser.add_argument("--until", type=float, default=0.05, help="half width to measure to (default: %(default)s)")
    parser.add_argument("--most-pairs", type=int, default=8, help="most pairs of a trial (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="output tokens of a request (default: %(default)s)")
    args = parser.parse_args()
    verdicts: Counter[str] = Counter()
    for k in range(args.count):
        folder = args.folder / f"{k:02d}"
        try:
            done = trials.open_trial(folder)
        except ReadError:
            done = None
        if done is None or not (folder / "verdict.json").is_file():
            config = llmprof.ExperimentConfig(
                model="random:tiny", batch_size=4, input_tokens=32, max_tokens=args.max_tokens, repeat=2, seed=k,
                max_model_len=512, monitor_hz=0, profile_mode="inference_only",
            )  # fmt: skip
            done = llmprof.trial(
                config, {"experiment_name": "again"}, until=args.until, most_pairs=args.most_pairs, profile=False,
                folder=folder, check=False,
            )  # fmt: skip
        verdicts[done.verdict] += 1
        effect = done.effect or {}
        row = {
            "trial": k,
            "verdict": done.verdict,
            **{name: effect.get(name) for name in ("pairs", "gain", "gain_low", "gain_high")},
        }
        print(json.dumps(row), flush=True)
    print(json.dumps(dict(verdicts)))


if __name__ == "__main__":
    main()
