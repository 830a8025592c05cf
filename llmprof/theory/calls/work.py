"""What the work of a recorded call is, and the record that says how the work of a kind of
operator is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmprof.theory.calls.call import OperatorCall


@dataclass(frozen=True, slots=True)
class CallWork:
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


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """A kind of operator.

    Parameters
    ----------
    name : str
        Its name in results.
    operators : str
        Names of its operators, separated by spaces; a name that ends with ``*`` stands for all with
        this beginning.
    work : callable
        From an :class:`OperatorCall` to its :class:`CallWork`; it raises :class:`NoWorkError` with
        the reason where it has none.
    formula : str
        FLOPs and bytes in a line, for the documentation.
    source : str
        Where the formula comes from.
    whole : bool
        Whether kernels of operators that it calls are part of it, whatever kinds these have.
    lengths : bool
        Whether its work depends on the lengths of the sequences of the step.
    inside : str
        Names of operators that it calls and whose arguments its work needs, separated by spaces.
    """

    name: str
    operators: str
    work: Callable[[OperatorCall], CallWork]
    formula: str
    source: str
    whole: bool = False
    lengths: bool = False
    inside: str = ""
