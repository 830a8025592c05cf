"""Speculative decoding: tokens that a step is expected to give, and its least time for drafting
and verifying.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
from msgspec.structs import replace

from llmprof.errors import LlmprofError
from llmprof.theory.bound import Machine
from llmprof.theory.hardware import Device
from llmprof.theory.plan import Batch, Requests, decode, positive
from llmprof.theory.profiler import Profile, base_of, machine_for
from llmprof.theory.shapes import Shape, shape
from llmprof.theory.work import OperatorWork, step_operators

SCHEMA: Final = {
    "draft_tokens": pl.Int64,
    "tokens_per_step": pl.Float64,
    "draft_s": pl.Float64,
    "verify_s": pl.Float64,
    "step_s": pl.Float64,
    "token_s": pl.Float64,
    "speedup": pl.Float64,
}


def speculate(
    model: str | Path | Mapping[str, Any] | Shape | Profile,
    device: str | Path | Device | None = None,
    *,
    acceptance: float,
    draft: str | Path | Mapping[str, Any] | Shape | None = None,
    most: int = 8,
    **options: Any,
) -> pl.DataFrame:
    """Least time of a token for each number of drafted tokens.

    A step drafts k tokens one after another, verifies them with one token of its own, and keeps
    those before the first that is wrong. If each is right with probability a, independent of the
    others, a step gives (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan et al., arXiv
    2211.17192, equation 1).

    Parameters
    ----------
    model, device
        As for :func:`llmprof.theory.profile`; or a profile (without a device) that gives all other
        parameters.
    acceptance : float
        Share of drafted tokens that are right, in [0, 1]; vLLM's counters state it.
    draft : str, path, mapping or Shape, optional
        Model that drafts, on the same ranks; ``"mtp"``: a layer like the model's last, with a
        projection of the hidden state and the embedding in front and the model's own output
        projection (multi-token prediction of DeepSeek-V3, arXiv 2412.19437, section 2.2; EAGLE is
        alike). Not given: drafting takes no time (n-grams).
    most : int
        Largest number of drafted tokens.
    **options
        Further arguments of :func:`llmprof.theory.profile`. The context is that in the middle of
        the output.

    Returns
    -------
    polars.DataFrame
        A row for each number of drafted tokens from 0: ``draft_tokens``, ``tokens_per_step`` of a
        request, least seconds of drafting (``draft_s``), of verifying (``verify_s``) and of both
        (``step_s``), least seconds of a request's token (``token_s``), and ``speedup`` of tokens
        against no drafting. Rejection and scheduling take further time.

    Raises
    ------
    LlmprofError
        The acceptance is outside [0, 1], ``most`` is not positive, or the errors of
        :func:`llmprof.theory.profile`.

    Examples
    --------
    >>> table = speculate("Qwen3-8B", "H200", acceptance=0.7, draft="Qwen3-0.6B", most=4)
    >>> table["tokens_per_step"].round(2).to_list()
    [1.0, 1.7, 2.19, 2.53, 2.77]
    """
    if not 0 <= acceptance <= 1:
        raise LlmprofError(
            f"acceptance={acceptance!r}", expected="a share of at least 0 and at most 1"
        )
    positive("most", most)
    base = base_of(model, device, **options)
    machine, count = (
        machine_for(base.shape, base.device, base.plan, base.efficiency),
        base.batch_size,
    )
    context = base.seq_len + max(base.generate_len, 1) / 2
    each, rows = _draft_s(base, machine, draft, decode(count, context)), []
    for k in range(most + 1):
        verify = machine.total(
            step_operators(
                base.shape,
                (Requests(count, k + 1, context + k, "decode"),),
                base.plan,
                all_logits=True,
            )
        )
        tokens = k + 1.0 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)
        step = k * each + verify
        rows.append((k, tokens, k * each, verify, step, step / tokens))
    frame = pl.DataFrame(rows, schema=list(SCHEMA)[:-1], orient="row")
    return frame.with_columns(speedup=pl.first("token_s") / pl.col("token_s")).cast(
        pl.Schema(SCHEMA)
    )


def _draft_s(
    base: Profile,
    machine: Machine,
    draft: str | Path | Mapping[str, Any] | Shape | None,
    batch: Batch,
) -> float:
    """Least time of drafting one token of each request."""
    if draft is None:
        return 0.0
    if draft != "mtp":
        return machine.total(step_operators(shape(draft), batch, base.plan))
    layer = replace(base.shape, layers=base.shape.layers[-1:])
    hidden, each, count = base.shape.hidden, base.plan.high_bytes, base.batch_size
    projection = OperatorWork(
        "mtp_proj",
        "mtp_proj",
        flops=4 * count * hidden * hidden,
        math=base.plan.activations,
        weight_bytes=2 * hidden * hidden * each,
        input_bytes=2 * count * hidden * each,
        output_bytes=count * hidden * each,
    )
    return machine.total([projection, *step_operators(layer, batch, base.plan)])
