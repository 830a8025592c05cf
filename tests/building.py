"""Frames from rows, for tests."""

import polars as pl


def table_of(columns, rows):
    """Frame of rows; ``columns`` are its names, as words."""
    return pl.DataFrame(rows, schema=columns.split(), orient="row")
