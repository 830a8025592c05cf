"""First of several patterns that a name matches."""

from __future__ import annotations

import polars as pl


def match(name: pl.Expr, patterns: list[tuple[str, str]], default: str | None) -> pl.Expr:
    """First pattern that a name matches.

    Parameters
    ----------
    name : polars.Expr
        Names.
    patterns : list of (str, str)
        Ordered ``(value, pattern)``.
    default : str or None
        Value where none matches.

    Returns
    -------
    polars.Expr
        The value of the first match.
    """
    tests = [pl.when(name.str.contains(f"(?i){pattern}")).then(pl.lit(value)) for value, pattern in patterns]
    return pl.coalesce(*tests, pl.lit(default, dtype=pl.String))


def by_unique_name(names: pl.Series, patterns: list[tuple[str, str]], default: str | None) -> pl.Series:
    """Like :func:`match`, each distinct name looked at once.

    Parameters
    ----------
    names : polars.Series
        Names, with repetitions.
    patterns : list of (str, str)
        Ordered ``(value, pattern)``.
    default : str or None
        Value where none matches.

    Returns
    -------
    polars.Series
        One value a name, in the same order.
    """
    coded = names.cast(pl.Categorical)
    distinct = coded.drop_nulls().unique()
    if distinct.is_empty():
        return pl.Series("value", [None], dtype=pl.String).new_from_index(0, names.len())
    codes = distinct.to_physical().cast(pl.UInt32)
    found = pl.DataFrame({"code": codes, "name": distinct.cast(pl.String)})
    found = found.select("code", value=match(pl.col("name"), patterns, default))
    every = pl.DataFrame({"code": range(max(codes.to_list()) + 1)}, schema={"code": pl.UInt32})
    by_code = every.join(found, on="code", how="left", maintain_order="left")["value"]
    return by_code.gather(coded.to_physical())
