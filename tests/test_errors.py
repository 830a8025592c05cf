import pickle

import pytest

from llmprof import errors
from llmprof.errors import (
    DefectError,
    LlmprofError,
    NotCapturedError,
    ReadError,
    TraceWarning,
    guarded,
)


def test_message_says_what_was_found_expected_and_what_to_do():
    error = ReadError(
        "a.json is empty", expected="a trace", hint="was the profiler killed?", size=0
    )
    assert str(error) == "a.json is empty; expected a trace; was the profiler killed?"
    assert (error.found, error.expected, error.hint) == (
        "a.json is empty",
        "a trace",
        "was the profiler killed?",
    )
    assert error.facts == {"size": 0}


@pytest.mark.parametrize(
    "kind",
    [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, LlmprofError)],
)
def test_every_kind_is_caught_as_the_base_and_survives_another_process(kind):
    error = kind("found", expected="expected", hint="hint", rank=3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert isinstance(again, LlmprofError)
    assert str(again) == str(error)
    assert again.facts == {"rank": 3}


def test_kinds_of_reading_errors_are_reading_errors():
    assert issubclass(errors.UnknownFormatError, ReadError)
    assert issubclass(errors.MixedRunsError, ReadError)
    assert not issubclass(NotCapturedError, ReadError)


class Panic(BaseException):
    """What Polars raises where Rust panics."""


@pytest.mark.parametrize("kind", [KeyError, ZeroDivisionError, RecursionError, MemoryError, Panic])
def test_a_fault_in_a_part_is_named_and_keeps_what_was_raised(kind):
    raised = kind("a bug")
    warns = pytest.warns(TraceWarning, match="a part failed")
    with warns as warned, pytest.raises(DefectError) as caught, guarded("a part"):
        raise raised
    assert caught.value.__cause__ is warned[0].message.__cause__ is raised
    assert "a bug" in caught.value.found


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(3), NotCapturedError("none")])
def test_an_end_and_an_error_of_ours_are_no_faults(raised):
    with pytest.raises(type(raised)) as caught, guarded("a part"):
        raise raised
    assert caught.value is raised
