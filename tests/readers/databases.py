"""Changes of SQLite files that leave the same rows in them."""

import sqlite3
from contextlib import closing

from llmprof.trace.storage import sqlite


def changed(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def as_view(path, table):
    """The file with a view in the place of a table."""
    rows = f"{table} rows"
    view = f'CREATE VIEW "{table}" AS SELECT * FROM "{rows}"'
    return changed(path, f'ALTER TABLE "{table}" RENAME TO "{rows}"', view)


def in_other_case(path):
    """The file with upper and lower case exchanged in the names of all tables and columns."""
    with closing(sqlite3.connect(path)) as connection:
        columns_of = dict(sqlite.database_tables(connection))
    for table, columns in columns_of.items():
        if not table.startswith("sqlite_"):
            rows, selected = (
                f"{table} rows",
                ", ".join(f'"{name}" AS "{name.swapcase()}"' for name in columns),
            )
            changed(
                path,
                f'ALTER TABLE "{table}" RENAME TO "{rows}"',
                f'CREATE TABLE "{table.swapcase()}" AS SELECT {selected} FROM "{rows}"',
                f'DROP TABLE "{rows}"',
            )
    return path
