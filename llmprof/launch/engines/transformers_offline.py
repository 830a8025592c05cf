"""Part of an engine script: a batch of prompts through ``generate`` of transformers, on any device that torch knows."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmprof.launch.engines._failures import Refused
from llmprof.launch.engines._hooks import Steps, annotate
from llmprof.launch.engines._place import check_model, cpu_name, gpu_names, guard
from llmprof.launch.engines._record import Record, version_of
from llmprof.launch.engines._transformers import build_model, padded_batch


def run_transformers(job: Mapping[str, Any], record: Record) -> None:
    """Import, build, warm up, measure, profile.

    Parameters
    ----------
    job : mapping
        What is run.
    record : Record
        Takes stages, requests and facts.
    """
    guard(job)
    record.document["engine_version"] = version_of("transformers")
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise Refused(f"{sys.executable} has no {name}", f"give python: an interpreter with torch and {name}")
    check_model(job["model"])
    with record.stage("import", message="importing transformers"):
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    record.document["platform"] = device
    record.document["device_names"] = (gpu_names() or [torch.cuda.get_device_name()])[:1] if cuda else [cpu_name()]
    if job["profiler"] == "cuda" and not cuda:
        raise Refused("there is no GPU for CUDA's profiler", "choose profile_mode torch or inference_only")
    with record.stage("init", message="building the model"):
        torch.manual_seed(job["seed"])
        model = build_model(job, record, torch, transformers, device)
        steps = Steps(torch, cuda=cuda)
        steps.watch(model)
        batch = padded_batch(job, torch, transformers, device)
    if job["layer_annotations"]:
        record.note(f"names of {annotate(torch, model, nvtx=job['profiler'] == 'cuda')} modules are in the trace")
    outputs = _Run(job, record, torch, model, steps, batch).all()
    tokenizer = batch["tokenizer"]
    texts = tokenizer.batch_decode(outputs, skip_special_tokens=True) if tokenizer else [None] * len(outputs)
    record.outputs(texts, outputs)
    if cuda:
        record.document["peak_memory_bytes"] = {"0": torch.cuda.max_memory_allocated()}


@dataclass
class _Run:
    """The phases of a run."""

    job: Mapping[str, Any]
    record: Record
    torch: Any
    model: Any
    steps: Steps
    batch: Mapping[str, Any]

    def all(self) -> list[list[int]]:
        """Warm up, measure, profile; the tokens of the last phase."""
        job, outputs = self.job, self._repeat("warmup", self.job["warmup"])
        if job["plain"] or job["profiler"] == "none":
            outputs = self._repeat("plain", job["repeat"])
        if job["profiler"] == "none":
            return outputs
        with self.record.stage("start_profile"):
            stop, write = self._profiler()
        self.steps.stop_after(job["max_iterations"], stop)
        outputs = self._repeat("profiled", job["profile_repeats"])
        with self.record.stage("stop_profile", message="writing the trace"):
            if not self.steps.stopped:
                stop()
            write()
        return outputs

    def _profiler(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Start the profiler; what stops it and what writes its trace."""
        torch = self.torch
        if self.job["profiler"] == "cuda":
            torch.cuda.synchronize()
            torch.cuda.profiler.start()

            def stop() -> None:
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()

            return stop, lambda: None
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU] + ([kinds.CUDA] if torch.cuda.is_available() else [])
        with torch.profiler.profile(activities=activities):
            torch.ones(1)  # the first use of the profiler is slow, and would count to the first step
        options = {name: self.job[name] for name in ("record_shapes", "with_stack")}
        profiler = torch.profiler.profile(activities=activities, **options)
        profiler.start()
        folder = self.record.out / "traces"
        folder.mkdir(exist_ok=True)
        return profiler.stop, lambda: profiler.export_chrome_trace(
            str(folder / f"rank0.{time.time_ns()}.pt.trace.json.gz")
        )

    def _repeat(self, phase: str, repeats: int) -> list[list[int]]:
        outputs: list[list[int]] = []
        for i in range(repeats):
            self.steps.begin(self.batch["tokens"])
            start_ns, began = time.time_ns(), time.perf_counter_ns()
            with self.record.stage(phase, repeat=i, total=repeats):
                outputs = self._generate()
            for k, output in enumerate(outputs):
                self.record.request(phase, i, k, start_ns=start_ns, **self._times(began, k, output))
        return outputs

    def _generate(self) -> list[list[int]]:
        job, greedy = self.job, self.job["temperature"] == 0
        options: dict[str, Any] = {"do_sample": not greedy, "max_new_tokens": job["max_tokens"]}
        if not greedy:
            options["temperature"] = job["temperature"]
            self.torch.manual_seed(job["seed"])
        if job["ignore_eos"]:
            options["min_new_tokens"] = job["max_tokens"]
        with self.torch.inference_mode():
            found = self.model.generate(
                input_ids=self.batch["input_ids"],
                attention_mask=self.batch["attention_mask"],
                stopping_criteria=[self.steps.token],
                pad_token_id=0,
                **options,
            )
        outputs: list[list[int]] = found[:, self.batch["longest"] :].tolist()
        return outputs

    def _times(self, began: int, k: int, output: list[int]) -> dict[str, Any]:
        """All requests of a batch get their tokens together; one that ended earlier counts to its end."""
        ends = self._end_ids()
        count = next((i + 1 for i, one in enumerate(output) if one in ends), len(output))
        at = self.steps.ended_ns[:count]
        first, last = (at[0], at[-1]) if at else (None, None)
        gaps = [(b - a) / 1e9 for a, b in zip(at, at[1:])]  # noqa: B905, RUF007
        return {
            "prompt_tokens": self.batch["tokens"][k],
            "output_tokens": count,
            "finish_reason": "length" if count == self.job["max_tokens"] and output[-1] not in ends else "stop",
            "ttft_s": None if first is None else (first - began) / 1e9,
            "tpot_s": sum(gaps) / len(gaps) if gaps else None,
            "itl_s": gaps,
            "decode_s": None if last is None or first is None else (last - first) / 1e9,
            "e2e_s": None if last is None else (last - began) / 1e9,
        }

    def _end_ids(self) -> set[int]:
        """Tokens that end a text, where they may."""
        found = self.model.generation_config.eos_token_id
        if self.job["ignore_eos"] or found is None:
            return set()
        return set(found) if isinstance(found, list) else {found}
