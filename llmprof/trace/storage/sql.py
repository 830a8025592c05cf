"""SQL over the tables of a trace. A query reads these tables and nothing else: no file, no network.

Polars' SQL has functions that read files and URLs, and its grammar has many ways to write a name.
So a query is not searched for what is forbidden: it is divided into tokens, of which only a few
plain kinds are taken; a name in front of a parenthesis must be one of :data:`CALLABLE`, written
without quotes. Whatever the grammar makes of a query, it cannot call what is not in this list.
Polars is given these same tokens, without comments. Before the rows are computed, its plan is
searched for sources that are no table of the trace. How much it computes is bounded by
:mod:`.bounded`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, NoReturn

import polars as pl

from llmprof.errors import AnalysisError
from llmprof.trace.storage import bounded
from llmprof.trace.storage.files import words_of

FUNCTIONS: Final = words_of("sql_functions.txt")
"""Functions of Polars' SQL that a query may call: all but those that read files (read_*)."""

CALLABLE: Final = FUNCTIONS | words_of("sql_words.txt")
"""Words that may stand in front of a parenthesis: functions, keywords and types."""

MOST_CHARACTERS: Final = 100_000
"""Longest query."""

_BEGIN: Final = ("select", "with", "from", "show")
_TOKEN: Final = re.compile(
    r"""
    (?P<blank>[ \t\r\n]+|--[^\n]*|/\*(?:[^*/]|\*(?!/)|/(?!\*))*+\*/)
    |(?P<text>'(?:[^'\\]|''|\\[^'])*+')
    |(?P<quoted>"[^"\\`]+"|`[^"\\`]+`)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<symbol>[-+*%<>=!~^|&:,.;()\[\]]|/(?!\*))
    """,
    re.VERBOSE,
)
"""Tokens that every dialect of SQL divides alike: no prefixes (``E'…'``), no ``$$``, no ``\\'``, no
comment in a comment.
"""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def query_tables(frames: bounded.QueryTables, query: str) -> pl.DataFrame:
    """Result of one ``SELECT`` in Polars' dialect or ``SHOW TABLES``; what does more than read
    is refused.
    """
    plain = _checked(query)
    words = {token.text.strip('"').lower() for token in _tokens(plain)}
    named = {
        name: frame if name.lower() in words else pl.DataFrame() for name, frame in frames.items()
    }
    return bounded.compute_bounded(compute_select, {"query": plain}, named)


def compute_select(frames: bounded.QueryTables, query: str) -> pl.DataFrame:
    """Result of a query that was checked, in this process."""
    lazy = any(isinstance(frame, pl.LazyFrame) for frame in frames.values())
    try:
        with pl.SQLContext(frames=dict(frames)) as context:
            plan = context.execute(query, eager=False)
            own = {
                line
                for frame in frames.values()
                if isinstance(frame, pl.LazyFrame)
                for line in bounded.sources(frame)
            }
            if other := [line for line in bounded.sources(plan) if line not in own]:
                expected = f"a query over the tables {', '.join(frames)}"
                raise AnalysisError(f"the SQL query reads {other[0]}", expected=expected)
            return plan.collect(engine="streaming" if lazy else "auto")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        said = str(error).partition("\n\nResolved plan")[0].strip().splitlines() or [
            "no reason was given"
        ]
        said = [said[0], *(line for line in said[1:] if line.startswith("Did you mean"))]
        if before := said[0].rpartition("Span(")[0]:  # without Polars' dump of the statement
            said[0] = re.split(r"\b\w+ ?[({]", before)[0].rstrip().removesuffix(":")
        said[0] = said[0][:300]
        facts = _placed(query, said[0], frames)
        if suggestion := facts.get("suggestion"):
            said = [said[0], str(suggestion)]
        place = f" (line {facts['line']}, column {facts['column']})" if "line" in facts else ""
        found = f"the SQL query cannot be answered: {'; '.join(filter(None, said))}{place}"
        wanted = f"one statement over the tables {', '.join(frames) or '(none was recorded)'}"
        raise AnalysisError(
            found, **facts, expected=wanted, hint="docs/reference.md lists their columns"
        ) from error


_SAID_PLACE: Final = re.compile(r" at Line: (\d+), Column: (\d+)")
_MISSING: Final = re.compile(
    r"""relation '(?P<table>.*)' was not found|no column named '(?P<of>.*)' found"""
    r"""|unable to find column "(?P<column>.*?)["]"""
)


def _placed(query: str, said: str, frames: bounded.QueryTables) -> dict[str, object]:
    """Where in a query an error of Polars is, and which known name is meant, as far as that can
    be told.
    """
    if place := _SAID_PLACE.search(said):
        return {"line": int(place[1]), "column": int(place[2])}
    if "found: EOF" in said:
        return _line(query, len(query.rstrip()))
    if (missing := _MISSING.match(said)) is None:
        return {}
    name = missing["table"] or missing["of"] or missing["column"]
    plain = [(token.text.strip('"`').lower(), token.start) for token in _tokens(query)]
    start = next((start for text, start in plain if text == name.lower()), None)
    words = {text for text, _ in plain}
    columns = {
        column
        for table, frame in frames.items()
        if table in words
        for column in frame.collect_schema().names()
    }
    suggestion = _nearest(name, frames if missing["table"] else frozenset(columns))
    return ({} if start is None else _line(query, start)) | (
        {"suggestion": suggestion} if suggestion else {}
    )


def _line(query: str, start: int) -> dict[str, object]:
    return {"line": query.count("\n", 0, start) + 1, "column": start - query.rfind("\n", 0, start)}


def _checked(query: str) -> str:
    """The query as Polars gets it: the tokens that were checked, at their places, with spaces
    for comments.
    """
    if len(query) > MOST_CHARACTERS:
        found = f"the SQL query is too long: {len(query):,} characters"
        raise AnalysisError(found, expected=f"at most {MOST_CHARACTERS:,}")
    tokens = list(_tokens(query))
    said = [token for token in tokens if token.kind != "blank"]
    first = next((token.text for token in said if token.kind == "word"), "")
    if first.lower() not in _BEGIN:
        found = f"the SQL query begins with {first.upper() or 'nothing'}"
        raise AnalysisError(
            found, expected=f"one that reads: {', '.join(word.upper() for word in _BEGIN)}"
        )
    before = _Token("symbol", "", 0)
    for token in said:
        if token.text == "(":
            _check_call(query, before)
        before = token
    return "".join(
        (
            re.sub(r"[^\n]", " ", token.text)
            if token.kind == "blank"
            else token.text.replace("`", '"', 2 * (token.kind == "quoted"))
        )
        for token in tokens
    )


def _tokens(query: str) -> Iterator[_Token]:
    """Divide a query into tokens; whatever is of no known kind is refused."""
    at, touching = 0, False
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            found = _Token("", query[at : at + 20].partition("\n")[0], at)
            expected = "'text', \"name\", numbers, words, operators and comments, each closed"
            _refuse(query, found, f"{found.text!r} is not understood", expected)
        token = _Token(str(match.lastgroup), match[0], at)
        joins = token.kind not in {"blank", "symbol"}
        if joins and touching:  # such as E'…', X'…', 0x1F
            what = f"{token.text[:20]!r} follows without a space"
            _refuse(query, token, what, "a space between words, names and texts")
        yield token
        at, touching = match.end(), joins


def _check_call(query: str, called: _Token) -> None:
    """Refuse what stands in front of a parenthesis, unless it may."""
    name = called.text.lower()
    if (
        name in CALLABLE
        if called.kind == "word"
        else called.kind == "symbol" and name not in {")", "]", "."}
    ):
        return
    shown = name.strip('"`')
    _refuse(
        query,
        called,
        f"calls {called.text[:60]}(…)",
        _nearest(shown, FUNCTIONS) or "a function over columns of the tables",
        (
            "files are not read by queries: read them with polars and join the frames"
            if re.match(r"(read|scan)_", shown)
            else (
                "the list is llmprof.trace.storage.sql.FUNCTIONS; columns of WITH and AS are named in"  # noqa: E501
                " their SELECT"
            )
        ),
    )


def _refuse(query: str, token: _Token, what: str, expected: str, hint: str = "") -> NoReturn:
    place = _line(query, token.start)
    found = f"the SQL query, line {place['line']}, column {place['column']}: {what}"
    raise AnalysisError(found, expected=expected, hint=hint, **place)


def _nearest(name: str, known: Mapping[str, object] | frozenset[str]) -> str:
    near = difflib.get_close_matches(name.lower(), sorted(known), n=3, cutoff=0.6)
    return f"perhaps {' or '.join(near)}" if near else ""
