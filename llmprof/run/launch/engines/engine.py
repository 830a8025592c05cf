"""The record of an engine (its name, and the modules of its script), and the records of the
built-in ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One way to run a model.

    To add an engine, write a module in this folder and one line in :mod:`llmprof.run.launch.engines`.
    The module must not import the engine at its top. llmprof joins the modules below to a script,
    which runs in a separate process with the Python in which the engine is installed.
    """  # noqa: E501

    name: str
    """Name of the engine, as ``engine=`` of a configuration has it."""
    served: bool = False
    """Whether the script starts a server and sends requests to it.

    An engine that also runs offline has two records.
    """
    modules: tuple[str, ...]
    """Modules of this folder, besides the common ones, whose text goes into the script without the
    imports of llmprof. A module comes after those that it needs.
    """
    run: str
    """Name of the function that runs a job.

    It takes the job and a :class:`~llmprof.run.launch.engines._job.RunRecord`.
    """
    worker: str = ""
    """Module for the worker processes that the engine starts; :attr:`run` gets its text as a
    third argument.
    """
    timer: tuple[str, ...] = ()
    """Modules whose text follows that of :attr:`worker` in mode ``ops``; an engine without them
    does not have this mode.
    """
    packages: tuple[str, ...] = ()
    """Import names of the Python packages that the engine needs; the doctor looks for them."""
    most_ranks: int | None = None
    """Largest number of ranks; None if there is no limit."""
    modes: tuple[str, ...] = ()
    """Profile modes that the engine supports; empty if it supports all."""
    untested: str = ""
    """Text for the doctor and the report that says what was never tested with this engine."""
    labels_steps: bool = False
    """Whether traces of this engine label their steps; a capture without labels is then
    incomplete.
    """


TRANSFORMERS = Engine(
    name="transformers",
    modules=("annotate", "transformers_offline"),
    run="run_transformers",
    packages=("transformers", "torch"),
    most_ranks=1,
)


VLLM_OFFLINE = Engine(
    name="vllm",
    modules=("_vllm", "vllm_offline"),
    run="run_vllm",
    worker="vllm_worker",
    timer=("ops_timer", "vllm_ops"),
    packages=("vllm", "torch"),
    labels_steps=True,
)
VLLM_SERVED = Engine(
    name="vllm",
    served=True,
    modules=("_vllm", "_server", "vllm_served"),
    run="run_served",
    worker="vllm_worker",
    packages=("vllm", "torch"),
    labels_steps=True,
)

_STAND_INS = "tested against stand-ins, never run on hardware by its authors"
SGLANG_SERVED = Engine(
    name="sglang",
    served=True,
    modules=("_server", "other_served"),
    run="run_sglang",
    packages=("sglang", "torch"),
    modes=("inference_only", "torch", "nsys"),
    untested=_STAND_INS,
)
TENSORRT_LLM_SERVED = Engine(
    name="tensorrt_llm",
    served=True,
    modules=("_server", "other_served"),
    run="run_tensorrt_llm",
    packages=("tensorrt_llm", "torch"),
    modes=("inference_only", "torch", "nsys"),
    untested=_STAND_INS,
)
ENGINES = (VLLM_OFFLINE, VLLM_SERVED, TRANSFORMERS, SGLANG_SERVED, TENSORRT_LLM_SERVED)
