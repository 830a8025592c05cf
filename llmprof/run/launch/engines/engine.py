"""The record of an engine, and the records of the built-in ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One way to run a model.

    To add an engine, write a module in :mod:`llmprof.run.workers` and one line in
    :mod:`llmprof.run.launch.engines`. The module imports others of its folder relatively
    (``from .job import RunRecord``), and must not import the engine at its top: it runs in a
    separate process with the Python in which the engine is installed.
    """

    name: str
    """Name of the engine, as ``engine=`` of a configuration has it."""
    served: bool = False
    """Whether the script starts a server and sends requests to it.

    An engine that also runs offline has two records.
    """
    run: str
    """Module of the workers and its function that runs a job: ``vllm_offline.run_vllm``.

    It takes the job and a :class:`~llmprof.run.workers.job.RunRecord`.
    """
    times_operators: bool = False
    """Whether it has the mode ``ops``."""
    packages: tuple[str, ...] = ()
    """Import names of the Python packages that the engine needs; the doctor looks for them."""
    most_ranks: int | None = None
    """Largest number of ranks; None if there is no limit."""
    modes: tuple[str, ...] = ()
    """Profile modes that the engine supports; empty if it supports all."""
    untested: str = ""
    """Text for the doctor and the report that says what was never tested with this engine."""
    writes_late: bool = False
    """Whether it may write its trace only as it stops, so that nothing is read before."""
    labels_steps: bool = False
    """Whether traces of this engine label their steps; a capture without labels is then
    incomplete.
    """


TRANSFORMERS = Engine(
    name="transformers",
    run="transformers_offline.run_transformers",
    packages=("transformers", "torch"),
    most_ranks=1,
)


VLLM_OFFLINE = Engine(
    name="vllm",
    run="vllm_offline.run_vllm",
    times_operators=True,
    packages=("vllm", "torch"),
    labels_steps=True,
)
VLLM_SERVED = Engine(
    name="vllm",
    served=True,
    run="vllm_served.run_served",
    packages=("vllm", "torch"),
    labels_steps=True,
)

_STAND_INS = "tested against stand-ins, never run on hardware by its authors"
SGLANG_SERVED = Engine(
    name="sglang",
    served=True,
    run="other_served.run_sglang",
    packages=("sglang", "torch"),
    modes=("inference_only", "torch", "nsys"),
    untested=_STAND_INS,
)
TENSORRT_LLM_SERVED = Engine(
    name="tensorrt_llm",
    served=True,
    run="other_served.run_tensorrt_llm",
    writes_late=True,
    packages=("tensorrt_llm", "torch"),
    modes=("inference_only", "torch", "nsys"),
    untested=_STAND_INS,
)
ENGINES = (VLLM_OFFLINE, VLLM_SERVED, TRANSFORMERS, SGLANG_SERVED, TENSORRT_LLM_SERVED)
