"""Remedies of findings that are settings of the engine: what each changes, and why one cannot be
tried.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from llmprof import analyze
from llmprof.errors import ConfigError, LlmprofError, nearest
from llmprof.run.batch import device_count
from llmprof.run.batch.parameters import apply, label, parse
from llmprof.run.launch import ExperimentConfig, Run
from llmprof.run.launch.config.options import setting
from llmprof.run.trials.gains import LEAST_TO_END
from llmprof.units import format_ns

LATE_HOST: Final = ("host_bound", "arrival_skew", "between_queued_events", "synchronisation")
COMMUNICATION: Final = ("exposed_communication", "nccl_for_small_messages", "arrival_skew")
QUEUE: Final = ("slow_first_tokens",)
STAGES: Final = ("pipeline_wait",)
KERNELS: Final = ("short_kernels", "heaviest_stage", "split_k")


class NotHereError(Exception):
    """Why a remedy cannot be tried with a configuration."""


Fields = Callable[["ExperimentConfig", Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of an engine's settings that answers some findings.

    Attributes
    ----------
    name : str
        Name, as ``llmprof try --change`` takes it.
    words : str
        What it does.
    rules : tuple of str
        Rules of the findings that it answers.
    fields : callable
        Function of a configuration and of what the engine reported (``worker.json``) that gives the
        changed fields, as ``llmprof sweep`` names them; it raises :class:`NotHereError` with the
        reason if there is nothing to change.
    change : str, optional
        Change of :func:`~llmprof.analyze.what_if` that predicts it.
    """

    name: str
    words: str
    rules: tuple[str, ...]
    fields: Fields
    change: str | None = None


def _vllm(config: ExperimentConfig) -> None:
    if config.engine != "vllm":
        raise NotHereError(f"it is an option of vLLM, and the engine is {config.engine}")


def _option(config: ExperimentConfig, name: str, value: Any, usual: Any = None) -> dict[str, Any]:
    """An option of vLLM, unless it has this value already."""
    _vllm(config)
    if config.engine_args.get(name, usual) == value:
        raise NotHereError(f"{name} is {value} already")
    return {f"engine_args.{name}": value}


def _graphs(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
    _vllm(config)
    if not config.eager and not config.layer_annotations:
        raise NotHereError("the engine compiles its model and uses graphs already")
    return {"eager": False, "layer_annotations": False}


def _eager(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
    if config.eager:
        raise NotHereError("the run is eager already")
    return {"eager": True}


def _concurrent(config: ExperimentConfig) -> int:
    return int(setting(config, "server", "max_concurrency") if config.served else config.batch_size)


def _sequences(factor: float) -> Fields:
    def fields(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
        _vllm(config)
        now = config.engine_args.get("max_num_seqs") or _concurrent(config)
        changed = int(now * factor)
        if changed < 1:
            raise NotHereError(f"max_num_seqs is {now}")
        if factor > 1 and "max_num_seqs" not in config.engine_args:
            raise NotHereError(
                "max_num_seqs is not set, and the run starts the engine for all of its requests at"
                " once"
            )
        return {"engine_args.max_num_seqs": changed}

    return fields


_USUAL_CHUNK: Final = 8192
"""Tokens of a step where ``max_num_batched_tokens`` is not set; vLLM takes 2,048 to 16,384 by
device and use.
"""


def _chunk(factor: float) -> Fields:
    def fields(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
        _vllm(config)
        changed = int(config.engine_args.get("max_num_batched_tokens", _USUAL_CHUNK) * factor)
        if changed < max(256, _concurrent(config)):
            raise NotHereError(
                f"chunks of {changed} tokens would be smaller than a step of this load needs"
            )
        return {
            "engine_args.max_num_batched_tokens": changed,
            "engine_args.enable_chunked_prefill": True,
        }

    return fields


def _batch_a_stage(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
    """Prompts that are read in as many steps as there are stages stay as many batches."""
    stages, requests = config.pipeline_parallel_size, _concurrent(config)
    if stages == 1:
        raise NotHereError("one stage has no pipeline")
    if requests < stages:
        raise NotHereError(
            f"{stages} stages need as many requests at a time, and it has {requests}"
        )
    if not config.input_tokens or config.served:
        raise NotHereError("how many tokens its prompts have is not set")
    longest = max(
        config.input_tokens if isinstance(config.input_tokens, tuple) else (config.input_tokens,)
    )
    return _option(config, "max_num_batched_tokens", max(longest, -(-longest * requests // stages)))


def _fp8_cache(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
    if worker.get("platform") == "cpu":
        raise NotHereError("vLLM's CPU build has no FP8 cache")
    return _option(config, "kv_cache_dtype", "fp8", "auto")


def _all_reduce(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
    _vllm(config)
    if config.tensor_parallel_size == 1:
        raise NotHereError("one rank has no all-reduce")
    if config.all_reduce != "nccl":
        raise NotHereError("the engine may use its own kernels already (all_reduce is not nccl)")
    return {"all_reduce": "auto"}


def _ranks(factor: float) -> Fields:
    def fields(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
        changed = int(config.tensor_parallel_size * factor)
        if changed < 1:
            raise NotHereError("there is one rank")
        if (
            worker.get("platform") != "cpu"
            and changed * config.pipeline_parallel_size > device_count()
        ):
            raise NotHereError(
                f"{changed} ranks need as many devices, and this machine has {device_count()}"
            )
        return {"tensor_parallel_size": changed}

    return fields


def _ngrams(config: ExperimentConfig, worker: Mapping[str, Any]) -> dict[str, Any]:
    _vllm(config)
    if config.engine_args.get("speculative_config"):
        raise NotHereError("the engine drafts tokens already")
    drafted = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    return {"engine_args.speculative_config": drafted}


REMEDIES: Final = (
    Remedy(
        "graphs",
        "compiled model and CUDA graphs in place of eager calls",
        (*LATE_HOST, *KERNELS),
        _graphs,
        change="no-host-delay",
    ),
    Remedy(
        "async-scheduling",
        "plan the next step while the device computes",
        LATE_HOST,
        lambda config, worker: _option(config, "async_scheduling", True),
    ),
    Remedy(
        "all-reduce", "the engine's own all-reduce in place of NCCL", COMMUNICATION, _all_reduce
    ),
    Remedy("fewer-ranks", "half as many tensor parallel ranks", COMMUNICATION, _ranks(0.5)),
    Remedy("more-ranks", "twice as many tensor parallel ranks", ("heaviest_stage",), _ranks(2)),
    Remedy(
        "a-batch-a-stage",
        "as many batches at a time as the pipeline has stages",
        STAGES,
        _batch_a_stage,
    ),
    Remedy("more-sequences", "twice as many sequences at once", QUEUE, _sequences(2)),
    Remedy("fewer-sequences", "half as many sequences at once", (), _sequences(0.5)),
    Remedy("smaller-chunks", "chunks of prefill of half the tokens", QUEUE, _chunk(0.5)),
    Remedy("larger-chunks", "chunks of prefill of twice the tokens", QUEUE, _chunk(2)),
    Remedy(
        "prefix-cache",
        "keep the cache of prompts' beginnings",
        QUEUE,
        lambda config, worker: _option(config, "enable_prefix_caching", True),
    ),
    Remedy("kv-fp8", "a KV cache of 8 bits", ("heaviest_stage",), _fp8_cache),
    Remedy(
        "ngram-drafts",
        "draft tokens from the prompt (speculative decoding)",
        (*KERNELS, "host_bound"),
        _ngrams,
    ),
    Remedy("eager", "no compiled model and no graphs", (), _eager),
)
"""All remedies; those that answer the same finding are tried in this order."""


def remedy(name: str) -> Remedy:
    """The remedy of a name."""
    names = [one.name for one in REMEDIES]
    if name not in names:
        expected = "" if nearest(name, names) else f"one of {', '.join(names)}, or FIELD=VALUE"
        raise ConfigError(
            f"there is no remedy {name!r}", expected=expected, hint=nearest(name, names)
        )
    return REMEDIES[names.index(name)]


def remedies(run: Run, findings: pl.DataFrame | None = None) -> pl.DataFrame:
    """Settings of the engine that answer the findings of a run, and why some cannot be tried.

    Parameters
    ----------
    run : Run
        A finished run.
    findings : polars.DataFrame, optional
        Its findings, if they are computed already.

    Returns
    -------
    polars.DataFrame
        One row for each finding and remedy, in the order of the findings: ``order`` and ``rule`` of
        the finding, ``title``, ``remedy`` (null if no setting answers the finding), ``words``,
        ``fields`` (the changed fields, as text), ``change`` (what :func:`~llmprof.analyze.what_if`
        predicts it with; null if nothing can), ``reason`` (why it cannot be tried; null if it can).
    """
    rows: list[dict[str, Any]] = []
    worker = run.worker
    if findings is None:
        try:
            findings = analyze.findings(run.trace)
        except LlmprofError as error:
            findings = pl.DataFrame(
                schema={"order": pl.Int32, "rule": pl.String, "title": pl.String}
            )
            rows = [{"reason": f"the run has no findings: {error}"}]
    for found in findings.to_dicts():
        head = {name: found[name] for name in ("order", "rule", "title")}
        answers = [one for one in REMEDIES if found["rule"] in one.rules]
        for one in answers:
            fields, reason = None, None
            try:
                fields = one.fields(run.config, worker)
                changed_config(run.config, fields)
            except (NotHereError, ConfigError) as error:
                reason = str(error)
            rows.append(head | _row(one, fields, reason))
        if not answers:
            rows.append({**head, "reason": "no setting of the engine answers it"})
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def commands(run: Run) -> dict[str, str]:
    """Command that tries the first remedy of a run that can be tried, by the rule of the
    findings that it answers.
    """
    found: dict[str, str] = {}
    for one in REMEDIES:
        try:
            changed_config(run.config, one.fields(run.config, run.worker))
        except (NotHereError, ConfigError):
            continue
        for rule in one.rules:
            found.setdefault(rule, trial_command(run, one.name))
    return found


def trial_command(run: Run, name: str) -> str:
    """Command that tries a remedy of a run."""
    return f"llmprof try {shlex.quote(str(run.folder.path))} {name}"


def cost_words(run: Run, most_pairs: int = 12) -> str:
    """What a trial of a run costs, from the times of the stages of the run, in words."""
    took = dict.fromkeys(("start", "measured", "profiled"), 0)
    for stage in run.worker.get("stages") or ():
        kind = {"import": "start", "init": "start", "serve": "start", "profiled": "profiled"}.get(
            stage["name"]
        )
        if kind or stage["name"] in {"warmup", "plain"}:
            took[kind or "measured"] += stage["dur_ns"]
    words = "two engines like that of the run stay loaded and measure its requests in turn"
    if not took["start"] or not took["measured"]:
        return f"{words}; how long is not known."
    ends = [
        2 * took["start"] + 2 * pairs * took["measured"] for pairs in (LEAST_TO_END, most_pairs)
    ]
    recorded = 2 * sum(took.values())
    low, high = (format_ns(end + recorded) for end in ends)
    return (
        f"{words}, then each is recorded once: about {low} to {high}, during which nothing else"
        " should run here."
    )


_SCHEMA: Final = {
    "order": pl.Int32,
    "rule": pl.String,
    "title": pl.String,
    "remedy": pl.String,
    "words": pl.String,
    "fields": pl.String,
    "change": pl.String,
    "reason": pl.String,
}


def _row(one: Remedy, fields: Mapping[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {
        "remedy": one.name,
        "words": one.words,
        "fields": label(fields) if fields else None,
        "change": one.change,
        "reason": reason,
    }


def changed_config(config: ExperimentConfig, fields: Mapping[str, Any]) -> ExperimentConfig:
    """The configuration with changed fields, named as a sweep names them.

    Raises
    ------
    ConfigError
        A field is unknown, a value is wrong, or nothing is changed.
    """
    other = apply(config, dict(fields))
    if other.to_dict() == config.to_dict():
        raise ConfigError(
            "the change changes nothing", hint="name a field that has another value now"
        )
    return other


def parse_change(
    text: str, config: ExperimentConfig, worker: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Name and fields of a change: the name of a remedy, or ``FIELD=VALUE`` several joined by
    semicolons.
    """
    if "=" in text:
        parts = ";".join(part.replace("=", ":", 1) for part in text.split(";"))
        given = parse(parts)
        if several := [name for name, values in given.items() if len(values) > 1]:
            raise ConfigError(
                f"{several[0]} has {len(given[several[0]])} values, and a trial compares one with"
                " the run",
                hint=(
                    "try one of them, or search all: llmprof tune --search; a list as a value needs"
                    " brackets"
                ),
            )
        return text, {name: values[0] for name, values in given.items()}
    chosen = remedy(text)
    try:
        return chosen.name, chosen.fields(config, worker)
    except NotHereError as error:
        raise ConfigError(f"{chosen.name} cannot be tried: {error}") from error
