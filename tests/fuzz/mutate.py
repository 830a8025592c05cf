"""Mutations of files that know their structure:

JSON, SQLite, CSV, saved traces, and plain bytes.
"""

import gzip
import json
import os
import random
import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import polars as pl

from tests.readers.databases import as_view, in_other_case

ODD_JSON = [
    "null",
    "true",
    "[]",
    "{}",
    '""',
    "0",
    "-1",
    "1e999",
    "-1e999",
    "1e-999",
    "9" * 40,
    "9" * 5000,
    "0.1",
    "1e18",
    "NaN",
    "-Infinity",
    '"x"',
    '"1e9"',
    '"\\u0000"',
    '"\\ud800"',
    '"\\u001b[2J"',
    '"=1+1"',
    "[[],[2,256],[]]",
    "[[[1]]]",
    '["a"]',
    '{"a":{"b":[1]}}',
    "[" * 40 + "]" * 40,
    '"/home/x/secret.py"',
    str(2**31),
    str(2**31 - 1),
    str(2**63),
    str(-(2**63)),
    '"' + "a" * 5000 + '"',
    '"TP-3"',
    "1.5",
    '"[1, 2"',
]
ODD_SQL = [
    "NULL",
    "'text'",
    "''",
    "x'00ff'",
    "0",
    "-1",
    "1e300",
    "9e999",
    str(2**63 - 1),
    str(-(2**63)),
    "2147483648",
    "0.5",
    "'12 apples'",
    "'/home/x'",
    "char(0)",
    "hex(randomblob(40))",
    "4611686018427387904",
    "cast(x'ff41' as text)",
]
ODD_CELLS = [
    "",
    "-",
    "N/A",
    "[N/A]",
    "nan",
    "inf",
    "-1",
    "1e999",
    "9" * 40,
    '"',
    "'",
    "\x00",
    "=1+1",
    "1,2",
    "ÿ",
    "0x1f",
    "a" * 5000,
]

Mutate = Callable[[Path, random.Random], None]


def of_bytes(path, rng):
    """Flip, cut, repeat or insert some bytes; of gzip now and then those of its content."""
    data = bytearray(path.read_bytes())
    zipped = data[:2] == b"\x1f\x8b" and rng.random() < 0.7
    if zipped:
        try:
            data = bytearray(gzip.decompress(bytes(data)))
        except (OSError, EOFError, zlib.error):  # changed before
            zipped = False
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        if not data:
            break
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.choice((1, 2, 8, 100, 1000))]
        elif kind == 2:
            data[at:at] = data[at : at + rng.choice((1, 16, 300))]
        elif kind == 3:
            data[at:at] = rng.choice(
                (
                    b'"',
                    b"{",
                    b"}",
                    b"[",
                    b"]",
                    b",",
                    b"\n",
                    b"\x00",
                    b"\xff\xfe",
                    b"\\",
                    b";",
                    b"\r\n",
                )
            )
        elif kind == 4:
            data[at:] = b""
        else:
            data[at : at + 4] = rng.randbytes(4)
    path.write_bytes(gzip.compress(bytes(data), 1, mtime=0) if zipped else bytes(data))


def of_json(path, rng):
    """Replace, remove or rename values of a document, and write numbers that JSON does not know."""
    document = json.loads(path.read_bytes())
    if not isinstance(document, dict | list) or not document:
        of_bytes(path, rng)
        return
    odd = []

    def planted():
        odd.append(rng.choice(ODD_JSON))
        return f"@odd{len(odd) - 1}@"

    for _ in range(rng.choice((1, 1, 2, 4, 10))):
        if not document:
            break
        place, key = _somewhere(document, rng)
        kind = rng.randrange(5)
        if kind <= 1:
            place[key] = planted()
        elif kind == 2:
            del place[key]
        elif kind == 3 and isinstance(place, dict):
            place[rng.choice(("ts", "name", "args", "ph", "pid", "x" * 300, "", "cat", "\x00"))] = (
                place.pop(key)
            )
        elif isinstance(place, list):
            place.insert(rng.randrange(len(place) + 1), place[key])
    text = json.dumps(document)
    for number, value in enumerate(odd):
        text = text.replace(f'"@odd{number}@"', value)
    path.write_text(text)
    if rng.random() < 0.1:
        of_bytes(path, rng)


def _somewhere(document, rng):
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return document, next(iter(document)) if isinstance(document, dict) and document else 0
        key = rng.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.9:
            place = inner
        else:
            return place, key


def of_sqlite(path, rng):
    """Change columns, types, values and rows, put views and triggers into the schema, or damage
    pages.
    """
    if rng.random() < 0.15:
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(100 if rng.random() < 0.2 else 0, len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data))
        return
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        for _ in range(rng.choice((1, 1, 2, 4))):
            with suppress(sqlite3.Error, IndexError):  # no table is left
                _statement(connection, rng)


def _statement(connection, rng):
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    table = rng.choice(tables)
    column = rng.choice([row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')])
    kind = rng.randrange(10)
    value = rng.choice(ODD_SQL)
    rows = rng.choice(
        ("", "WHERE rowid % 3 = 0", "WHERE rowid = 1", f"WHERE rowid = {rng.randrange(1, 40)}")
    )
    if kind <= 3:
        connection.execute(f'UPDATE "{table}" SET "{column}" = {value} {rows}')
    elif kind == 4:
        connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif kind == 5:
        connection.execute(
            f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{rng.choice(("other", "start", "id", "name"))}"'
        )
    elif kind == 6:
        connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
    elif kind == 7:
        connection.execute(
            f'DELETE FROM "{table}" {rows}' if rng.random() < 0.5 else f'DROP TABLE "{table}"'
        )
    elif kind == 8:
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS start, x AS end FROM c"
        connection.execute(f'ALTER TABLE "{table}" RENAME TO moved')
        connection.execute(
            f'CREATE VIEW "{table}" AS {endless if rng.random() < 0.5 else "SELECT * FROM moved"}'
        )
    else:
        connection.execute(
            f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END'
        )


def of_names(path, rng):
    """Exchange upper and lower case in the names of tables and columns, and put views in the
    place of tables.
    """
    if rng.random() < 0.5:
        in_other_case(path)
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
    for table in rng.sample(tables, min(len(tables), rng.choice((0, 1, 1, 2, 5, 100)))):
        with suppress(sqlite3.Error):  # of a table that is SQLite's own
            as_view(path, table)


def of_sectors(path, rng):
    """Cut a file, or write zeros, as a full disk or a crash leaves it: in sectors of 512 bytes."""
    data = bytearray(path.read_bytes())
    sectors = -(-len(data) // 512)
    if rng.random() < 0.5:
        path.write_bytes(data[: 512 * rng.randrange(1, sectors)])
        return
    for _ in range(rng.choice((1, 1, 2, 4))):
        begin = 512 * rng.randrange(sectors)
        end = min(begin + 512 * rng.choice((1, 1, 2, 8)), len(data))
        data[begin:end] = bytes(end - begin)
    path.write_bytes(data)


def of_lines(path, rng):
    """Change cells and lines of a text of columns."""
    text = path.read_text("utf-8", "replace")
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(lines))
        kind = rng.randrange(6)
        if kind <= 2:
            cells = re.split(r"([,;|]|\s+)", lines[at])
            cells[rng.randrange(len(cells))] = rng.choice(ODD_CELLS)
            lines[at] = "".join(cells)
        elif kind == 3:
            del lines[at]
            lines = lines or [""]
        elif kind == 4:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        else:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    path.write_text("\n".join(lines), "utf-8", "surrogateescape")


def of_saved(folder, rng):
    """Change the head, the columns or the bytes of a saved trace."""
    path = rng.choice(sorted(folder.iterdir()))
    if path.suffix == ".json":
        rng.choice((of_json, of_bytes))(path, rng)
    else:
        of_parquet(path, rng)


def of_parquet(path, rng):
    """Change a column of a Parquet file, its number of rows, or its bytes."""
    if rng.random() < 0.5:
        of_bytes(path, rng)
        return
    frame = pl.read_parquet(path)
    column = rng.choice(frame.columns)
    changes = (
        pl.lit(None).alias(column),
        pl.lit("x").alias(column),
        pl.lit(2**63 - 1).alias(column),
        pl.lit(1e300).alias(column),
        pl.lit([1]).alias(column),
        pl.col(column).alias("other"),
        pl.col(column).cast(pl.String, strict=False),
        pl.lit(b"\xff").alias(column),
    )
    with suppress(pl.exceptions.PolarsError):
        frame = (
            frame.drop(column) if rng.random() < 0.2 else frame.with_columns(rng.choice(changes))
        )
    frame.head(rng.choice((0, 1, 10**6))).write_parquet(path)


_BY_SUFFIX = {
    ".json": (of_json, of_json, of_bytes),
    ".gz": (of_bytes,),
    ".csv": (of_lines, of_lines, of_bytes),
    ".db": (of_sqlite,),
    ".sqlite": (of_sqlite,),
    ".parquet": (of_parquet,),
}


def of_anything(path, rng):
    """Change a single file by what it is."""
    try:
        rng.choice(_BY_SUFFIX.get(path.suffix, (of_lines, of_bytes)))(path, rng)
    except (
        ValueError,
        LookupError,
        RecursionError,
        sqlite3.Error,
        pl.exceptions.PolarsError,
    ):  # changed before
        of_bytes(path, rng)


def of_folder(folder, rng):
    """Change one or two files of a folder; now and then remove, empty, swap or double one, or
    make it a pipe.
    """
    for _ in range(rng.choice((1, 1, 1, 2))):
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        path = rng.choice(files)
        if rng.random() >= 0.15:
            of_anything(path, rng)
            continue
        kind = rng.randrange(7)
        if kind == 0 and len(files) > 1:
            path.unlink()
        elif kind == 6:
            path.unlink()
            os.mkfifo(path)
        elif kind == 1:
            path.write_bytes(b"")
        elif kind == 2:
            path.unlink()
            path.mkdir()
            (path / "inside").write_text("x")
        elif kind == 3:
            shutil.copyfile(path, path.with_name(f"again_{path.name}"))
        elif kind == 4:
            path.write_bytes(rng.choice(files).read_bytes())
        else:
            path.rename(path.with_name(f"{path.stem}\n\x1b[2J{path.suffix}"))


def copied(source, target):
    """A copy of a file or folder in place of what is there."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
    return target
