"""Of the program of an engine: runs a batch of prompts through ``generate`` of transformers."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .annotate import annotate
from .job import RunRecord, each_point, token_ids, turns, version_of
from .machine import (
    Refused,
    check_model,
    cpu_name,
    gpu_names,
    has_tokenizer,
    set_environment,
)


class Steps:
    """Labels and times the forward passes of a model.

    The labels are those of vLLM, so that llmprof reads the traces of both engines in the same way:
    ``execute_context_R(T)_generation_R(T)`` has the number of requests and of tokens in prefill and
    in decode.
    """

    def __init__(self, torch: Any, *, cuda: bool) -> None:
        self._torch, self._cuda = torch, cuda
        self._range: Any = None
        self.tokens: list[int] = []
        self.ended_ns: list[int] = []
        self._left = -1
        self._stop: Callable[[], None] = lambda: None
        self.stopped = False

    def watch(self, model: Any) -> None:
        """Label the forward passes of a model from now on."""
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after)

    def begin(self, tokens: list[int]) -> None:
        """Begin a batch; ``tokens`` has the number of tokens of each prompt."""
        self.tokens, self.ended_ns = tokens, []

    def stop_after(self, steps: int, stop: Callable[[], None]) -> None:
        """Call ``stop`` once after a number of steps; 0 means never."""
        self._left, self._stop, self.stopped = steps or -1, stop, False

    def token(self, _ids: Any, _scores: Any, **_more: Any) -> Any:
        """Note when each request has its next token: a stopping criterion of ``generate`` that
        never stops it.
        """
        if self._cuda:
            self._torch.cuda.synchronize()
        self.ended_ns.append(time.perf_counter_ns())
        return self._torch.zeros(len(self.tokens), dtype=self._torch.bool, device=_ids.device)

    def _before(self, _model: Any, _args: Any, _kwargs: Any) -> None:
        if self._left == 0:
            self._stop()
            self.stopped = True
        self._left -= 1
        n = len(self.tokens)
        parts = (0, 0, n, n) if self.ended_ns else (n, sum(self.tokens), 0, 0)
        label = "execute_context_{}({})_generation_{}({})".format(*parts)
        if self._cuda:
            self._torch.cuda.nvtx.range_push(label)
        self._range = self._torch.profiler.record_function(label)
        self._range.__enter__()

    def _after(self, _model: Any, _args: Any, _output: Any) -> None:
        self._range.__exit__(None, None, None)
        if self._cuda:
            self._torch.cuda.nvtx.range_pop()


def build_model(
    job: Mapping[str, Any], record: RunRecord, torch: Any, transformers: Any, device: str
) -> Any:
    """The model with its weights or with random weights; a note names options that transformers
    does not know.
    """
    dtype = "auto" if job["dtype"] == "auto" else getattr(torch, job["dtype"])
    accepted = set(inspect.signature(transformers.PreTrainedModel.from_pretrained).parameters) | {
        "attn_implementation"
    }
    dropped = sorted(set(job["engine_args"]) - accepted)
    for name in dropped:
        record.note(f"engine option {name} ignored: transformers does not know it")
    record.document["dropped_engine_args"] = dropped
    options = {name: value for name, value in job["engine_args"].items() if name in accepted}
    auto = transformers.AutoModelForCausalLM
    if job["random_weights"]:
        config = transformers.AutoConfig.from_pretrained(job["model"])
        weights_dtype = (
            (getattr(config, "dtype", None) or torch.float32) if dtype == "auto" else dtype
        )
        attention = {k: v for k, v in options.items() if k == "attn_implementation"}
        usual = torch.get_default_dtype()
        torch.set_default_dtype(weights_dtype)
        try:
            with torch.device(device):
                model = auto.from_config(config, **attention).to(weights_dtype)
        finally:
            torch.set_default_dtype(usual)
    else:
        name = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
        model = auto.from_pretrained(job["model"], **{name: dtype}, **options).to(device)
    if job["eager"] is False:
        model.forward = torch.compile(model.forward)
    return model.eval()


def padded_batch(
    job: Mapping[str, Any], torch: Any, transformers: Any, device: str
) -> dict[str, Any]:
    """The prompts as one batch, padded on the left."""
    tokenizer: Any = None
    if has_tokenizer(job["model"]):
        tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    if job["prompts"]:
        prompts = [tokenizer(text)["input_ids"] for text in job["prompts"]]
    else:
        prompts = job["prompt_token_ids"] or token_ids(job["synthetic"])
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {
        "tokenizer": tokenizer,
        "tokens": [len(prompt) for prompt in prompts],
        "longest": longest,
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }


def run_transformers(job: Mapping[str, Any], record: RunRecord) -> None:
    """Import, build, warm up, measure, profile."""
    set_environment(job)
    record.document["engine_version"] = version_of("transformers")
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise Refused(
                f"{sys.executable} has no {name}",
                f"give python: an interpreter with torch and {name}",
            )
    check_model(job["model"])
    with record.importing("transformers"):
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    record.document["platform"] = device
    record.document["device_names"] = (
        (gpu_names() or [torch.cuda.get_device_name()])[:1] if cuda else [cpu_name()]
    )
    if job["profiler"] == "cuda" and not cuda:
        raise Refused(
            "there is no GPU for CUDA's profiler", "choose profile_mode torch or inference_only"
        )
    with record.stage("init", message="building the model"):
        torch.manual_seed(job["seed"])
        model = build_model(job, record, torch, transformers, device)
        steps = Steps(torch, cuda=cuda)
        steps.watch(model)
    if job["layer_annotations"]:
        record.note(
            f"names of {annotate(torch, model, nvtx=job['profiler'] == 'cuda')} modules are in the"
            " trace"
        )

    def measure(point: Mapping[str, Any]) -> None:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        batch = padded_batch(point, torch, transformers, device)
        outputs = _Run(point, record, torch, model, steps, batch).all()
        tokenizer = batch["tokenizer"]
        texts = (
            tokenizer.batch_decode(outputs, skip_special_tokens=True)
            if tokenizer
            else [None] * len(outputs)
        )
        record.outputs(texts, outputs)
        if cuda:
            record.document["peak_memory_bytes"] = {"0": torch.cuda.max_memory_allocated()}

    each_point(job, record, measure)


@dataclass
class _Run:
    """The phases of a point: warm-up, repeats without profiler, repeats with profiler."""

    job: Mapping[str, Any]
    record: RunRecord
    torch: Any
    model: Any
    steps: Steps
    batch: Mapping[str, Any]

    def all(self) -> list[list[int]]:
        """Run all phases, and return the generated tokens of each request in the last phase."""
        job, outputs = self.job, self._repeat("warmup", self.job["warmup"])
        if job["plain"] or job["profiler"] == "none":
            outputs = self._repeat("plain", job["repeat"])
        if job["profiler"] == "none":
            return outputs
        snapshot = job["memory_snapshot"] and self.torch.cuda.is_available()
        with self.record.stage("start_profile"):
            if snapshot:
                self.torch.cuda.memory._record_memory_history(max_entries=100_000)
            stop, write = self._profiler()
        self.steps.stop_after(job["max_iterations"], stop)
        outputs = self._repeat("profiled", job["profile_repeats"])
        with self.record.stage("stop_profile", message="writing the trace"):
            if not self.steps.stopped:
                stop()
            write()
        if job["memory_snapshot"]:
            path = self.record.snapshot_path.replace("RANK", "0")
            if snapshot:
                self.torch.cuda.memory._dump_snapshot(path)
                self.torch.cuda.memory._record_memory_history(enabled=None)
            self.record.snapshots([path] if snapshot else [])
        return outputs

    def _profiler(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Start the profiler; returns a function that stops it and a function that writes its
        trace.
        """
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
            torch.ones(
                1
            )  # the first use of the profiler is slow; without this, it would lengthen the first step  # noqa: E501
        options = {
            name: self.job[name] for name in ("record_shapes", "with_stack", "profile_memory")
        }
        profiler = torch.profiler.profile(activities=activities, **options)
        profiler.start()
        path = self.record.traces() / f"rank0.{time.time_ns()}.pt.trace.json.gz"
        return profiler.stop, lambda: profiler.export_chrome_trace(str(path))

    def _repeat(self, phase: str, repeats: int) -> list[list[int]]:
        outputs: list[list[int]] = []
        for i in turns(self.job, self.record, phase, repeats):
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
            options |= {"temperature": job["temperature"], "top_p": job["top_p"]}
            self.torch.manual_seed(job["seed"])
        if job["ignore_eos"]:
            options["min_new_tokens"] = job["max_tokens"]
        with self.torch.inference_mode():
            tokens = self.model.generate(
                input_ids=self.batch["input_ids"],
                attention_mask=self.batch["attention_mask"],
                stopping_criteria=[self.steps.token],
                pad_token_id=0,
                **options,
            )
        outputs: list[list[int]] = tokens[:, self.batch["longest"] :].tolist()
        return outputs

    def _times(self, began: int, k: int, output: list[int]) -> dict[str, Any]:
        """Times of request ``k`` of a batch, until its last token; all requests of it get tokens
        at the same times.
        """
        ends = self._end_ids()
        count = next((i + 1 for i, token in enumerate(output) if token in ends), len(output))
        times = self.steps.ended_ns[:count]
        first, last = (times[0], times[-1]) if times else (None, None)
        gaps = [(b - a) / 1e9 for a, b in zip(times, times[1:])]  # noqa: B905, RUF007
        return {
            "prompt_tokens": self.batch["tokens"][k],
            "output_tokens": count,
            "finish_reason": (
                "length" if count == self.job["max_tokens"] and output[-1] not in ends else "stop"
            ),
            "ttft_s": None if first is None else (first - began) / 1e9,
            "tpot_s": sum(gaps) / len(gaps) if gaps else None,
            "itl_s": gaps,
            "decode_s": None if last is None or first is None else (last - first) / 1e9,
            "e2e_s": None if last is None else (last - began) / 1e9,
        }

    def _end_ids(self) -> set[int]:
        """Ids of the tokens that end a text; empty if ``ignore_eos`` is set."""
        ids = self.model.generation_config.eos_token_id
        if self.job["ignore_eos"] or ids is None:
            return set()
        return set(ids) if isinstance(ids, list) else {ids}
