"""The labelled events of a device, and its steps: what all other analyses begin with."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.edge import whole_steps
from llmprof.analyze.groups import sums_of_groups
from llmprof.analyze.step_times import steady_steps
from llmprof.errors import AnalysisError, Columns
from llmprof.label.steps import steps as label_steps
from llmprof.trace import Trace


@Analysis(
    question="Where does a step go?",
    help="every step of the engine on every rank",
    view="steps",
    recorded="device activity or operators",
)
def steps(trace: Trace, *, by: Columns = (), steady: bool = False) -> pl.DataFrame:
    """Steps of every rank, or their times by phase or other columns.

    A step begins where the engine's label begins on the host. The device span covers all kernels
    and copies that were launched from there until the next label begins. So sampling and output
    copies, which vLLM runs after the label, belong to their step. Work after the label of an empty
    step belongs to the next step. If a rank has no labels, each ``Optimizer.step`` ends a step of
    training (``optimizer``); without these, steps are inferred from the repetition of kernels
    (:mod:`llmprof.label.steps.labels`) and marked ``inferred``: the phase of such a step is known
    where the shapes of its batch were recorded, where heavier steps run kernels of attention that
    most steps do not run, or, with its tokens, where the grids of kernels that store keys say them
    (:mod:`llmprof.label.steps.stored`).

    Parameters
    ----------
    trace : Trace
        A trace with device activity or operators.
    by : str or sequence of str
        Columns of the steps to sum them by, such as ``"phase"`` or ``("rank", "phase")``.
    steady : bool
        Only the decode steps that represent the run. On each rank these are the decode steps with
        the most frequent batch size, in the longest stretch of the run without another phase. A
        step whose device span differs from the median by more than four robust standard deviations
        (and 10 %) is a warm-up or a disturbance, and is left out. The first decode step after a
        prefill is left out, too, if at least three others stay. Model load, graph captures, prefill
        and empty steps never count.

    Returns
    -------
    polars.DataFrame
        ``rank, step`` (from 0, by time), ``phase`` (prefill, decode, mixed, empty, other),
        ``start_ns, dur_ns`` (on the device, from the first event to that of the next step of the
        rank, of the last step to its last event; null if nothing ran),
        ``host_start_ns, host_dur_ns`` (of the label on the host; null where the label is on the
        device only, and where inferred without host data), ``prefill_requests, prefill_tokens,
        decode_requests, decode_tokens`` (null where not said), ``source`` (vllm, sglang,
        atom, tensorrt_llm, capture, execute_model, profiler_step, onnxruntime, mindspore, xla,
        optimizer, inferred) and ``name``, the label.

        With ``by``: its columns, ``count, total_ns, share`` (of all steps), ``mean_ns, median_ns,
        min_ns, max_ns`` (of ``dur_ns``).

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.steps(trace)["phase"].value_counts().sort("phase").rows()
    [('decode', 15), ('empty', 3), ('mixed', 1), ('prefill', 1)]
    """
    rows = whole_steps(trace)
    if steady:
        key = ["rank", "step"]
        rows = rows.join(steady_steps(trace), on=key, how="semi", maintain_order="left")
    return sums_of_groups(rows, by) if by else rows


def typical_step(trace: Trace) -> int:
    """The step to look at first: the steady decode step whose device span is the median, the lower
    of two; of all steps with work where none is steady.
    """
    rows = steady_steps(trace)
    if not rows.height:
        ran = pl.col("dur_ns").is_not_null() & (pl.col("phase") != "empty")
        rows = label_steps.steps_of(trace).filter(ran)
    if not rows.height:
        raise AnalysisError(
            "no step with work on the device was found", hint="see analyze.coverage(trace)"
        )
    spans = rows.group_by("step").agg(pl.max("dur_ns")).sort("dur_ns", "step")
    return int(spans["step"][(spans.height - 1) // 2])


@Analysis(
    question="Which step, layer and stage does each event belong to?",
    help="every device event with its step, layer and stage",
    view="events",
    recorded="device activity or operators",
)
def events(trace: Trace) -> pl.DataFrame:
    """Device activity with step, phase, layer and stage.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.

    Returns
    -------
    polars.DataFrame
        The columns of :func:`~llmprof.label.activity.activity`, then ``step`` and ``phase`` (null
        where no step is known), ``layer`` (from 0 in each step, null outside the layers), ``stage``
        and ``confidence`` (null outside the layers). Stages inside a layer: norm, qkv_proj, rope,
        kv_cache_write, attention, o_proj, all_reduce, gate_up_proj, activation, down_proj,
        residual, for mixtures of experts router, expert_dispatch, experts, combine, shared_experts
        (those that every token goes to), for sparse attention indexer (scores of keys) and top_k
        (their choice), and where a state space or linear attention takes the place of attention
        in_proj, conv, scan, gate_norm, out_proj; lora: products with adapters. In models where only
        some of these have a feed-forward part, that part is a layer of its own (Nemotron-H).
        Outside: prepare_inputs, embedding, final_norm, lm_head, sampling, draft, encoder (of images
        or sound, before the language model), kv_transfer (keys and values to or from another engine
        or memory), copy, other, and the kind of a collective. An event that only prepares the next
        one (a cleared workspace, the quantization of a GEMM's input) has the stage of that event.
        The confidence is 1 if the end of the layer follows from its activation or experts and its
        number of GEMMs is that of most layers of the rank, 0.8 if this number differs, and 0.5 if
        the end was taken from other layers. A layer's events before its attention have the
        confidence of the end before them. ``evidence`` of the stage is module (the launch was in
        it; the layer is then the module's, too), operator, metadata (of a copy), name (of the
        kernel) or position (its place among the others). ``reason`` says why an event that may
        belong to a layer has none: no step, draft model (its passes have the stage ``draft``),
        encoder (its passes have the stage ``encoder``), several passes or several models in one
        step, convolutions (an image model), unlike the other layers.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.

    Examples
    --------
    >>> trace.events.select("rank", "step", "layer", "stage", "category", "evidence").columns
    ['rank', 'step', 'layer', 'stage', 'category', 'evidence']
    """
    return trace.events
