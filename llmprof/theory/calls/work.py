"""What the work of a recorded call is, and the functions that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from llmprof.theory.calls.call import OperatorCall


class CallWork(Struct, frozen=True):
    """Work of one call.

    Parameters
    ----------
    flops : float or None
        Floating-point operations, a multiply-add is two; None where they are not known.
    read, written : float
        Bytes that must be read and written: each distinct element once.
    matrix : str
        Format of the operands of the matrix unit (``bf16``, ``fp8`` …); empty where no matrix unit
        computes.
    assumed : str
        What the recording does not say.
    source : str
        What says the rest.
    result : tuple of int, optional
        Batches, rows and columns of the result, whose tiles the blocks of a matrix product or
        attention compute.
    """

    flops: float | None
    read: float
    written: float
    matrix: str = ""
    assumed: str = ""
    source: str = "shapes"
    result: tuple[int, int, int] | None = None


class Cost(Struct, frozen=True):
    """A rule of work with the places of the arguments that it reads.

    Parameters
    ----------
    rule : callable
        From a call and the places to its work. Its docstring begins with FLOPs and bytes.
    places : sequence
        Places of arguments, and what else the rule takes.
    named : mapping
        The same by name.
    """

    rule: Callable[..., CallWork]
    places: Sequence[Any]
    named: Mapping[str, Any]

    def __call__(self, call: OperatorCall) -> CallWork:
        """Work of a call."""
        return self.rule(call, *self.places, **self.named)


RULES: Final[dict[str, Callable[..., CallWork]]] = {}
"""Rules of work, by name."""
RESULTS: Final[dict[str, Callable[..., float]]] = {}
"""Rules of the bytes of a new result, by name."""


def cost(rule: Callable[..., CallWork]) -> Callable[..., CallWork]:
    """Decorator of a rule of work: from a call and the places of its arguments to its work."""
    RULES[rule.__name__] = rule
    return rule


def new_result(rule: Callable[..., float]) -> Callable[..., float]:
    """Decorator of a rule of the bytes of a new result."""
    RESULTS[rule.__name__] = rule
    return rule
