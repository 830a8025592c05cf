"""The record of an engine (its name, and the modules of its script), and the records of the built-in ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One way to run a model.

    An engine is a module of this folder that does not import the engine itself, and one line in
    :mod:`llmprof.launch.engines`. A script with the modules below runs in a process of its own, with the Python that
    has the engine.
    """

    name: str
    """What ``engine=`` of a configuration calls it."""
    served: bool = False
    """Whether it starts a server and sends requests to it; an engine may have one record for each way."""
    modules: tuple[str, ...]
    """Modules of this folder beside the common ones, in an order in which each finds what it needs. The script holds
    their text, without their imports of llmprof."""
    run: str
    """Function that runs a job: it takes the job and a :class:`~llmprof.launch.engines._job.Record`."""
    worker: str = ""
    """Module whose text :attr:`run` gets as a third argument, for processes that the engine starts itself."""
    timer: tuple[str, ...] = ()
    """Modules whose text follows that of :attr:`worker` in mode ``ops``; an engine without them cannot run in it."""
    packages: tuple[str, ...] = ()
    """Packages of Python that it needs, by the name that one imports: the doctor looks for them."""
    most_ranks: int | None = None
    """Most ranks that it runs on; None where it splits a model over any number."""
    modes: tuple[str, ...] = ()
    """Modes that it can be profiled in; all where there are none."""
    untested: str = ""
    """What was never tried of it, in words, for the doctor and the report."""
    labels_steps: bool = False
    """Whether its traces have labels of steps, so that a capture without them is not whole."""


TRANSFORMERS = Engine(
    name="transformers",
    modules=("transformers_offline",),
    run="run_transformers",
    packages=("transformers", "torch"),
    most_ranks=1,
)


VLLM_OFFLINE = Engine(
    name="vllm",
    modules=("_vllm", "vllm_offline"),
    run="run_vllm",
    worker="vllm_worker",
    timer=("ops_parts", "ops_timer", "vllm_ops"),
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
