"""Hand-built run folders."""

import json

import polars as pl

from llmprof.run.launch import ExperimentConfig, RunFolder
from llmprof.run.launch.run.requests import document
from tests.launch.test_run import worker_with


class Run:
    """What the reports need of a run, made by hand."""

    def __init__(self, folder, trace=None, **values):
        self.config = ExperimentConfig(model="random:tiny", **values)
        self.folder = RunFolder.create(self.config, folder)
        told = worker_with() | {
            "engine": "vllm",
            "engine_version": "0.32.0",
            "kv_cache": {"tokens": 4096, "peak_usage": 0.25},
        }
        self.folder.worker.write_text(json.dumps(told), encoding="utf-8")
        self.folder.metrics.write_text(json.dumps(document(told)), encoding="utf-8")
        self.folder.summary.write_text(
            json.dumps({"warnings": ["the repeats disagree"]}), encoding="utf-8"
        )
        self.folder.set_state("finished", stage="done")
        self.traced = trace


def counters():
    """Two devices and a host, sampled ten times a second for a second."""
    rows = [
        {
            "rank": device or 0,
            "device": device,
            "time_ns": i * 100_000_000,
            "name": name,
            "unit": unit,
            "value": value + i,
        }
        for i in range(10)
        for name, unit, value, devices in (
            ("gpu.utilization", "%", 40.0, (0, 1)),
            ("memory.used", "B", 2e9, (None,)),
        )
        for device in devices
    ]
    kinds = {"rank": pl.Int32, "device": pl.Int32, "time_ns": pl.Int64, "value": pl.Float64}
    return pl.DataFrame(rows, infer_schema_length=None).cast(kinds)
