"""Display and wording of the notebooks' sentences, and sentences on what a trace is a recording of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from llmprof import analyze, bundled
from llmprof.analyze.activity import operators_stand_in
from llmprof.analyze.findings.facts import facts_in_words
from llmprof.errors import LlmprofError
from llmprof.text import counted, joined
from llmprof.trace import Trace
from llmprof.units import format_ns

if TYPE_CHECKING:
    from IPython.display import Markdown

_FORMATS: Final = {
    "chrome": "the PyTorch profiler or another tool that writes Chrome traces",
    "nsys": "Nsight Systems",
    "ascend": "an Ascend profiler",
}


def say(*sentences: str | Sequence[str]) -> Markdown | None:
    """Show sentences in a notebook; those of one list make a paragraph.

    Returns
    -------
    IPython.display.Markdown or None
        None, which shows nothing, if there is no sentence.

    Examples
    --------
    >>> say(["One sentence.", "Another."], []).data
    'One sentence. Another.'
    >>> say([]) is None
    True
    """
    from IPython.display import Markdown

    paragraphs = [part if isinstance(part, str) else " ".join(filter(None, part)) for part in sentences]
    text = "\n\n".join(filter(None, paragraphs))
    return Markdown(text) if text else None  # type: ignore[no-untyped-call]


def listed(sentences: Sequence[str], *, numbered: bool = False) -> str:
    r"""Sentences as a list in Markdown.

    Examples
    --------
    >>> listed(["a", "b"], numbered=True)
    '1. a\n2. b'
    """
    return "\n".join(f"{f'{i}.' if numbered else '-'} {text}" for i, text in enumerate(sentences, 1))


def or_why_not(show: Callable[[], Any]) -> Any:
    """Result of a function, or a sentence with the reason why the recording has no answer.

    Examples
    --------
    >>> or_why_not(lambda: 1)
    1
    """
    try:
        return show()
    except LlmprofError as error:
        return say(f"*Not to be had from this recording: {error}*")


def kind_in_words(kind: str | None) -> str:
    """A kind of collective as people write it.

    Examples
    --------
    >>> kind_in_words("all_reduce"), kind_in_words(None)
    ('all-reduce', 'collective')
    """
    return {"all_to_all": "all-to-all", "send_recv": "send/receive"}.get(
        str(kind), kind.replace("_", "-") if kind else "collective"
    )


def number(value: object) -> float:
    """A scalar of a frame as a number; NaN, which is written as *unknown*, if there is none.

    Examples
    --------
    >>> number(pl.Series([1, 2]).median()), number(None)
    (1.5, nan)
    """
    return float(value) if isinstance(value, int | float) else float("nan")


def events_called(trace: Trace) -> str:
    """Noun for the device events of a trace, or for the operators in their place.

    Examples
    --------
    >>> events_called(trace)
    'kernels and copies'
    """
    return "operators" if operators_stand_in(trace) else "kernels and copies"


def what_ran(trace: Trace, *, sample: str = "") -> list[str]:
    """Facts about the run that a trace recorded.

    Parameters
    ----------
    trace : Trace
        Any trace.
    sample : str, optional
        Name of the bundled sample, if it is one; the sentences then use its description.

    Examples
    --------
    >>> print(what_ran(trace, sample="torch_tp1_cudagraph")[0])  # doctest: +ELLIPSIS
    The bundled recording `torch_tp1_cudagraph`: **Qwen2.5-1.5B (28 layers)** in vLLM 0.26.0 on one NVIDIA H200...
    """
    if sample:
        return _what_the_sample_says(bundled.describe(sample))
    facts = dict(facts_in_words(analyze.run_facts(trace)))
    low, high = trace.span_ns
    tables = [
        counted(trace.table(table).height, noun)
        for table, noun in (("kernels", "kernel"), ("copies", "copy"), ("ops", "operator"))
        if trace.has(table) and trace.table(table).height
    ]
    ranks = [rank for rank in trace.ranks if rank >= 0] or list(trace.ranks)
    made_by = _FORMATS.get(str(trace.meta.get("format")), str(trace.meta.get("format") or "an unknown profiler"))
    sentences = [
        f"The trace has {counted(len(ranks), 'rank')} and covers {format_ns(high - low)}, with {joined(tables)}; "
        f"it was recorded by {made_by}."
    ]
    stated = [f"{what.lower()} {value}" for what, value in facts.items() if "unknown" not in value]
    stated += [value.partition(", ")[2] for value in facts.values() if value.startswith("name unknown, ")]
    missing = [what.lower() for what, value in facts.items() if "unknown" in value]
    if stated:
        sentences.append(f"It says: {'; '.join(stated)}.")
    if missing:
        sentences.append(f"It does not say: {', '.join(missing)}.")
    return sentences


def _what_the_sample_says(head: bundled.Sample) -> list[str]:
    work, shape = head.workload, head.parallelism
    devices = f"{head.devices} {head.device}" if head.devices > 1 else f"one {head.device}"
    split = [f"{how} parallel over {number}" for how, number in shape.items() if number > 1]
    execution = {"eager": "eager", "cuda_graphs": "with CUDA graphs"}.get(head.execution, head.execution)
    sentences = [
        f"The bundled recording `{head.name}`: **{head.model}** in {head.engine} on {devices}"
        f"{', ' if split else ''}{', '.join(split)}; {execution}, {head.dtype}, recorded with {head.profiler} "
        f"({head.profiler_options})."
    ]
    if {"requests", "prompt_tokens", "output_tokens"} <= set(work):
        sentences.append(
            f"Its load is {counted(work['requests'], 'request')} of {work['prompt_tokens']} tokens, "
            f"{work['output_tokens']} tokens out."
        )
    sentences += [f"{part.strip().rstrip('.')}." for part in head.origin.split(". ") if part.startswith("Weights")]
    return sentences
