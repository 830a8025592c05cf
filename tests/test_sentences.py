"""Sentences of findings, made from the fields of their records: each renders whatever is known,
and says no number but those of its figures.
"""

import itertools
import re
import types
from collections.abc import Mapping
from typing import Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct, structs

import llmprof
from llmprof import analyze, text
from llmprof.findings.cause import Context, Figures
from llmprof.findings.causes import between_queued, uneven_ranks
from llmprof.findings.first_tokens import _ADVICE
from llmprof.findings.host import CALLS, SET_UP
from llmprof.findings.reasons import REASONS
from llmprof.trace.platforms import ON_DEVICE, ON_HOST, PLATFORMS
from llmprof.units import format_bytes, format_ns, format_share
from tests.samples import sample

CHOICES = {
    ("HostWork", "reason"): list(REASONS),
    ("UnevenRanks", "cause"): list(uneven_ranks._WHAT),
    ("BetweenQueued", "kind"): list(between_queued._KINDS),
    ("FirstTokens", "part"): list(_ADVICE),
    ("DeviceHeld", "kind"): list(CALLS),
    ("HostActivity", "set_up"): list(SET_UP),
    ("HostActivity", "kind"): ["call", "op", "python", "range", "ranges"],
    ("OtherCall", "set_up"): ["loading", "compiling", "memory"],
    ("Why", "reason"): list(REASONS),
    ("Copies", "kind"): ["pageable", "to device", "to host", "peer"],
    ("LimitedKernel", "limit"): ["compute", "memory", "latency"],
    ("HeaviestStage", "stage"): ["attention", "other"],
    ("SlowestRequest", "part"): ["queue", "first token", "decode", "the rest"],
    ("SlowestRequest", "stretches"): [
        {},
        {"decode": {"ns": 3_000_000, "steps": 0}},
        {
            "decode": {
                "ns": 3_000_000,
                "steps": 4,
                "recorded": 0.75,
                "requests": 2.5,
                "prefill": 0.125,
            }
        },
    ],
    ("ExposedCommunication", "kinds"): [["all-reduce", "broadcast"], ["other"]],
    ("AiCoreUnits", "units"): [{"cube": 0.3125, "vector": 0.90625}, {"cube": 0.875}],
    ("_Waiting", "group"): [
        {"who": "ranks x and y", "last_share": 0.625, "late_median_ns": 7_000, "evidence": "name"}
    ],
}
"""Values of texts that select a sentence, and of mappings."""

KEPT = {"5.00 us", "80.0 %", "8.00 MiB", "1 ms", "16 bytes"}
"""Numbers that sentences have of their own."""

numbers = itertools.count(1)


def concrete(base=Figures):
    below = [found for own in base.__subclasses__() for found in concrete(own)]
    return below or [base]


def choices(owner, name):
    return next(
        (found for of in owner.__mro__ if (found := CHOICES.get((of.__name__, name)))), None
    )


def values(owner, name, kind):
    """Values of a field, the usual one first."""
    if chosen := choices(owner, name):
        optional = type(None) in get_args(kind)
        return [*chosen, *([None] if optional else [])]
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (of,) = [arg for arg in inside if arg is not type(None)]
        return [*values(owner, name, of), None]
    if origin is list:
        one = values(owner, name, inside[0])[0]
        return [[one], []]
    if origin is tuple:
        return [tuple(values(owner, name, of)[0] for of in inside)]
    if origin in (dict, Mapping):
        return [{"tensor cores": 0.3125, "device memory": 0.90625}, {"tensor cores": 0.875}]
    if issubclass(kind, Struct):
        return list(variants(kind))
    number = next(numbers)
    usual = {
        bool: [True, False],
        int: [40 + number % 50],
        float: [0.5 + number % 97 / 200],
        str: [f"name_{'abcdefghij'[number % 10]}"],
    }
    return usual[kind]


def variants(kind):
    """A record with everything, then with each other value of each field, then with nothing more
    than it must have.
    """
    hints = get_type_hints(kind)
    of = {name: values(kind, name, hints[name]) for name in kind.__struct_fields__}
    usual = {name: given[0] for name, given in of.items()}
    yield kind(**usual)
    for name, given in of.items():
        yield from (kind(**usual | {name: value}) for value in given[1:])
    yield kind(**{name: None if None in given else given[0] for name, given in of.items()})


def contexts():
    for on_host, platform in itertools.product((False, True), ("nvidia", "ascend", "unknown")):
        words = {**PLATFORMS[platform].words, **(ON_HOST if on_host else ON_DEVICE)}
        for on, ranks in ((None, 1), (None, 4), ([2], 4), ([0, 1], 4)):
            for torch, follows in ((True, None), (False, "host_bound")):
                yield Context(
                    123_456_789.0,
                    0.0625,
                    "per prefill step",
                    words,
                    ranks=ranks,
                    on=on,
                    of_torch=torch,
                    on_host=on_host,
                    follows_from=follows,
                )


def written(value):
    """How a sentence may write the numbers of a record."""
    if isinstance(value, Struct):
        value = structs.asdict(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from written(one)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (format_ns(value), format_share(value), format_bytes(value), text.tenths(value))
        yield from (f"{value:,.0f}", f"{value:.1f}", f"{value:.2f}", f"{100 * value:.0f} %")
        yield text.tenths(round(value))


def made_of(value, *more):
    return " ".join([*written(value), *more_of(more), *KEPT])


def more_of(more):
    return itertools.chain.from_iterable(map(written, more))


NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")


def most_words(said):
    """Words of the longest sentence of a text."""
    return max(len(one.split()) for one in re.split(r"(?<=[.?!])\s+(?=[A-Z0-9])", said))


OF_TEXT = ("title", "detail", "suggestion", "prediction", "denominator")


@pytest.mark.parametrize("name", [each for each in llmprof.samples()["name"] if "ncu" not in each])
def test_no_sentence_of_a_finding_has_more_than_25_words(name):
    for row in analyze.findings(sample(name)).iter_rows(named=True):
        for column in OF_TEXT:
            assert most_words(row[column] or "") <= 25, row[column]


@pytest.mark.parametrize("kind", concrete(), ids=lambda kind: kind.__name__)
def test_a_sentence_is_said_whatever_is_known(kind):
    for figures, of in itertools.product(variants(kind), contexts()):
        title, detail, advice = figures.title(of), figures.detail(of), figures.advice(of)
        assert len(title.split()) <= 25, title
        for said in (title, detail, advice):
            assert most_words(said) <= 25, said
            assert said == said.strip()
            assert said
            assert not re.search(r"None|\bnan\b|  |\.\.|\{|\}| [,;]| \.$", said), said
        quotients = [
            of.time_ns / value
            for value in structs.asdict(figures).values()
            if type(value) in (int, float)
        ]
        known = made_of([structs.asdict(figures), of.on or [], of.time_ns, of.share], *quotients)
        for number in NUMBER.findall(f"{title} {detail}"):
            assert number in known, (number, title, detail)


def test_the_title_has_the_figure_and_its_share():
    for name in ("torch_tp4_eager_nccl", "torch_pp2_eager", "torch_tp1_cudagraph"):
        for row in analyze.findings(sample(name)).iter_rows(named=True):
            assert format_ns(row["figure"]) in row["title"]
            assert format_share(row["share"]) in row["title"]
            if row["rank"] is not None and " of rank" in row["denominator"]:
                assert str(row["rank"]) in row["title"]
