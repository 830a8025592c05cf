"""Of the program of an engine: runs a batch of prompts through vLLM's ``LLM``, and profiles it
after the warm-up.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from .job import (
    RunRecord,
    drop_traces,
    each_point,
    take_traces,
    token_ids,
    turns,
)
from .machine import set_environment
from .vllm_common import (
    check_devices,
    cuda_profiler_is_known,
    engine_options,
    of_this_start,
    prepare_environment,
    profiler_options,
    warms_profiler,
)


def run_vllm(job: Mapping[str, Any], record: RunRecord) -> None:
    """Import, build, warm up, measure, profile."""
    set_environment(job)
    platform = check_devices(job, record)
    prepare_environment(job, platform)
    options = engine_options(job, record, platform) | profiler_options(job, record)
    options["disable_log_stats"] = False  # without it, requests have no times
    with record.importing("vLLM"):
        vllm: Any = importlib.import_module("vllm")
        engine_class, sampling_class = vllm.LLM, vllm.SamplingParams
    with record.stage("init", message="starting the engine"):
        llm = engine_class(model=job["model"], **options)
    try:
        if job["layer_annotations"]:
            count = llm.collective_rpc("llmprof_annotate", args=(job["profiler"] == "cuda",))
            record.note(f"names of {count[0]} modules are in the trace; they cost time")
        _warm_profiler(job, record, llm, sampling_class)

        def measure(point: Mapping[str, Any]) -> None:
            llm.collective_rpc("llmprof_begin")
            _generate_all(point, record, llm, sampling_class)
            _facts(record, llm)

        each_point(of_this_start(job, record), record, measure)
    finally:
        with contextlib.suppress(AttributeError):
            llm.llm_engine.engine_core.shutdown()


def _warm_profiler(
    job: Mapping[str, Any], record: RunRecord, llm: Any, sampling_class: Any
) -> None:
    """Start and stop PyTorch's profiler once: its first start is slow and would lengthen the
    first request.
    """
    if not warms_profiler(job, record):
        return
    own, prompt = _own_options(llm), _prompts(job)[:1]
    with record.stage("warm_profiler"):
        _profile(job, record, llm, on=True)
        llm.generate(prompt, [sampling_class(temperature=0.0, max_tokens=2, **own)], use_tqdm=False)
        _profile(job, record, llm, on=False)
    drop_traces(record)


def _own_options(llm: Any) -> dict[str, Any]:
    return (
        {"detokenize": False} if llm.llm_engine.vllm_config.model_config.skip_tokenizer_init else {}
    )


def _prompts(job: Mapping[str, Any]) -> Sequence[Any]:
    tokens = job["prompt_token_ids"] or (token_ids(job["synthetic"]) if not job["prompts"] else ())
    return job["prompts"] or [{"prompt_token_ids": ids} for ids in tokens]


def _sampling(job: Mapping[str, Any], llm: Any, sampling_class: Any, count: int) -> list[Any]:
    own = _own_options(llm)
    own |= {name: job[name] for name, usual in (("top_p", 1.0), ("n", 1)) if job[name] != usual}
    each = job["max_tokens_each"] or [job["max_tokens"]]
    return [
        sampling_class(
            temperature=job["temperature"],
            max_tokens=each[k % len(each)],
            ignore_eos=job["ignore_eos"],
            seed=job["seed"] + k if job["temperature"] > 0 else None,
            **own,
        )
        for k in range(count)
    ]


def _generate_all(job: Mapping[str, Any], record: RunRecord, llm: Any, sampling_class: Any) -> None:
    prompts = _prompts(job)
    sampling = _sampling(job, llm, sampling_class, len(prompts))

    def generate(phase: str, least: int) -> list[Any]:
        outputs: list[Any] = []
        for i in turns(job, record, phase, least):
            if job["prefix_caching"]:
                llm.reset_prefix_cache()
            with record.stage(phase, repeat=i, total=least):
                outputs = llm.generate(prompts, sampling, use_tqdm=False)
            for k, output in enumerate(outputs):
                record.request(phase, i, k, **_times(output))
        return outputs

    outputs = generate("warmup", job["warmup"])
    if job["plain"] or job["profiler"] == "none":
        before = _prefix_cache(llm)
        outputs = generate("plain", job["repeat"])
        record.prefix_cache("plain", before, _prefix_cache(llm))
    if job["profiler"] != "none":
        with record.stage("start_profile"):
            if job["memory_snapshot"]:
                llm.collective_rpc("llmprof_memory")
            llm.collective_rpc("llmprof_watch_steps")
            _profile(job, record, llm, on=True)
        before = _prefix_cache(llm)
        outputs = generate("profiled", job["profile_repeats"])
        record.prefix_cache("profiled", before, _prefix_cache(llm))
        with record.stage("stop_profile", message="writing the trace"):
            _profile(job, record, llm, on=False)
        take_traces(record)
        record.engine_steps("profiled", llm.collective_rpc("llmprof_steps")[0])
        if job["memory_snapshot"]:
            record.snapshots(llm.collective_rpc("llmprof_memory", args=(record.snapshot_path,)))
    texts = [output.outputs[0].text for output in outputs]
    record.outputs(texts, [list(output.outputs[0].token_ids) for output in outputs])


def _prefix_cache(llm: Any) -> dict[str, float]:
    """Tokens looked up in the prefix cache, and hits among them, by the names of vLLM's metrics,
    if it has any.
    """
    try:
        metrics = llm.get_metrics()
    except (
        AttributeError,
        AssertionError,
    ):  # this version has no metrics, or its statistics are off
        return {}
    return {
        one.name: float(one.value)
        for one in metrics
        if "prefix_cache" in one.name and hasattr(one, "value")
    }


def _profile(job: Mapping[str, Any], record: RunRecord, llm: Any, *, on: bool) -> None:
    if job["profiler"] == "ops":
        _time_operators(job, record, llm, on=on)
    elif job["profiler"] == "cuda" and not cuda_profiler_is_known():
        llm.collective_rpc("llmprof_cuda_profiler", args=(on,))
    else:
        (llm.start_profile if on else llm.stop_profile)()


def _time_operators(job: Mapping[str, Any], record: RunRecord, llm: Any, *, on: bool) -> None:
    """Open or close the window of the timer on every rank; vLLM's own profiler runs too if
    ``engine_args`` sets it.
    """
    beside = "profiler_config" in job["engine_args"]
    if not on:
        if beside:
            llm.stop_profile()
        of_ranks = llm.collective_rpc("llmprof_ops_stop")
        record.document["ops"] = sorted(of_ranks, key=lambda rank: rank["rank"])
        for note in dict.fromkeys(note for rank in of_ranks for note in rank["notes"]):
            record.note(note)
        return
    options = {**job["ops"], "folder": str(record.out / "traces")}
    llm.collective_rpc("llmprof_ops_start", args=(options,))
    if beside:
        llm.start_profile()


def _times(output: Any) -> dict[str, Any]:
    """Times of a request as vLLM reports them.

    The arrival is wall-clock time, the others are on the engine's clock.
    """
    tokens = sum(len(part.token_ids) for part in output.outputs)
    longest = max(len(part.token_ids) for part in output.outputs)
    record: dict[str, Any] = {
        "id": getattr(output, "request_id", None),
        "prompt_tokens": len(output.prompt_token_ids)
        if output.prompt_token_ids is not None
        else None,
        "output_tokens": tokens,
        "finish_reason": output.outputs[0].finish_reason,
    }
    metrics = output.metrics
    first, last = getattr(metrics, "first_token_ts", 0), getattr(metrics, "last_token_ts", 0)
    if not first or not last:
        return record
    decode, to_first = last - first, getattr(metrics, "first_token_latency", 0) or None
    return record | {
        "start_ns": round(metrics.arrival_time * 1e9) if metrics.arrival_time else None,
        "ttft_s": to_first,
        "tpot_s": decode / (longest - 1) if longest > 1 else None,
        "queue_s": metrics.scheduled_ts - metrics.queued_ts,
        "prefill_s": first - metrics.scheduled_ts,
        "decode_s": decode,
        "e2e_s": to_first + decode if to_first else None,
    }


def _facts(record: RunRecord, llm: Any) -> None:
    facts = llm.collective_rpc("llmprof_facts")
    if record.document["platform"] == "cuda" and all(fact["device"] for fact in facts):
        record.document["device_names"] = [fact["device"] for fact in facts]
    record.document["peak_memory_bytes"] = {str(fact["rank"]): fact["peak"] for fact in facts}
    cache = llm.llm_engine.vllm_config.cache_config
    record.kv_cache(cache.num_gpu_blocks, cache.block_size, bytes=facts[0]["kv_bytes"])
