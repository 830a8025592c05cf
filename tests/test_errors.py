import pickle

import pytest

from llmprof import errors
from llmprof.errors import LlmprofError, NotCapturedError, ReadError


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
