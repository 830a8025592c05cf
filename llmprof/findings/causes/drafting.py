"""Passes of a draft model or of prediction heads in speculative decoding."""

from __future__ import annotations

from typing import Final

from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.scope import Scope, sum_of


class Drafting(Figures, frozen=True):
    """Tokens are those of a request and step."""

    even_tokens: float
    """More tokens than these pay for the drafts."""
    draft_tokens: float | None = None

    def title(self, of: Context) -> str:
        tokens = self.draft_tokens
        each = f": {tokens:.1f} tokens per request and step" if tokens else ""
        return f"Drafting takes {of.amount}{of.where}{each}."

    def detail(self, of: Context) -> str:
        return (
            "A draft model or prediction heads guess tokens, which the model verifies in the next"
            " step. By the time of the kernels, it pays if a step gives a request more than"
            f" {self.even_tokens:.2f} tokens."
        )

    def advice(self, of: Context) -> str:
        return (
            "See how many are right: analyze.speculation(run.trace, engine_steps=run.engine_steps),"
            " or the engine's counter of accepted tokens. If too few are, draft fewer, or by"
            " n-grams, which take the device no time."
        )


def _measure(scope: Scope) -> Measurement | None:
    drafts = scope.events.filter(stage="draft")
    if not drafts.height:
        return None
    ns, whole = sum_of(drafts, "dur_ns"), sum_of(scope.events, "dur_ns")
    drafted = None
    if scope.steps is not None:
        decodes = scope.steps.join(
            scope.windows[["rank", "step"]].unique(), on=["rank", "step"], how="semi"
        )
        requests = sum_of(decodes, "decode_requests")
        verified = sum_of(decodes, "decode_tokens") - requests
        drafted = verified / requests if requests and verified > 0 else None
    # without drafts a step would be shorter by them, but give fewer tokens
    figures = Drafting(whole / max(1.0, whole - ns), drafted)
    return Measurement.of(drafts, figures, gain_ns=0.0, where="stage = 'draft'")


DRAFTING: Final = Cause("drafting", _measure, "events", min_share=0.005, info=True)
