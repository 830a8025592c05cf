"""What a profile says of people and machines, found by reading its bytes: written apart from
what redacts it.
"""

import csv
import gzip
import io
import json
import re
import sqlite3
import sys

_ENV_TABLES = (
    "META_DATA_CAPTURE",
    "TARGET_INFO_SYSTEM_ENV",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
)
_IDENTITY_KEYS = re.compile(
    r"(?i)^(?:host_?name|user_?name|user|login|tw_\w+|mast_\w+|logical_server\w*|ai_rm\w*|export_(?:user|host)|traceName|"
    r"trace_id|group_trace_id|targetinstalldir|systemuid|hostname|host_?uid|host_?ip|node_?name|owner|account|cwd|work_?dir)$"
)
_PATTERNS = {
    "absolute path": re.compile(
        rb"(?<![\w.)\]*&/-])/(?:[A-Za-z0-9_.+@~-]{2,}/)+[A-Za-z0-9_.+@~-]{2,}"
    ),
    "home": re.compile(rb"/(?:home|Users|root|users|u)/[A-Za-z0-9_.-]{2,}"),
    "Windows path": re.compile(rb"\b[A-Za-z]:\\{1,2}[A-Za-z0-9_.-]+\\{1,2}[A-Za-z0-9_.\\-]+"),
    "address": re.compile(rb"(?<![\d.\w])(?:\d{1,3}\.){3}\d{1,3}(?![\d.\w])"),
    "e-mail": re.compile(rb"[A-Za-z0-9_.+-]+@[A-Za-z0-9-]+\.[A-Za-z0-9.-]+"),
    "UUID": re.compile(
        rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    ),
    "token": re.compile(rb"(?<![A-Za-z0-9])(?:sk-|hf_|ghp_|glpat-|AKIA)[A-Za-z0-9_-]{8,}"),
    "domain": re.compile(
        rb"\b[a-z0-9-]+(?:\.[a-z0-9-]+)+\.(?:com|net|org|edu|gov|local|internal)\b"
    ),
    "variable": re.compile(
        rb"\b[A-Z][A-Z0-9_]{3,}=[A-Za-z0-9_./:@-]*[A-Za-z][A-Za-z0-9_./:@-]{3,}"
    ),
}
_NEEDS = {
    "Windows path": (b":\\",),
    "e-mail": (b"@",),
    "token": (b"sk-", b"hf_", b"ghp_", b"glpat-", b"AKIA"),
    "domain": (b".com", b".net", b".org", b".edu", b".gov", b".local", b".internal"),
}
"""What a text holds somewhere that a pattern fits: looked for first, because it is quicker."""
# words that stand in every trace of this kind, whoever recorded it
_COMMON = re.compile(
    r"(?i)(?:[\d.,:;\s+_-]*|[a-z]{1,5}|true|false|none|null|root|localhost|python[\d.]*|python3|linux|ubuntu|default|"
    r"unknown|process|kernel|stream|device|nvidia|nobody|prod|vm|modal|x86_64|aarch64|cuda|utility|compute,utility|"
    r"\(removed\)|removed|<removed>|x+|all|en_us.utf-8|c.utf-8|c\.utf8|nvidia nsight systems|[bf]?float\d+|unentitled|"
    r"L4X|pt_main_thread|noninteractive|truecolor|color|xterm[\w-]*|driver|memory|pytorch|torch|[A-Z]{1,2}\d{2,3}|"
    r"bfloat16|nvcr|hopper|cpuip|python|on-off|unix|standard|[0-9a-f]{1,7})"
)


def expanded(path):
    """All bytes of a file or folder, compressed members expanded too."""
    if path.is_dir():
        return b"\n".join(
            p.name.encode() + b"\n" + expanded(p) for p in sorted(path.rglob("*")) if p.is_file()
        )
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            return data[:64] + gzip.decompress(data)
        except (OSError, EOFError):
            return data
    return data


def identities(path):
    """Every string of a file or folder that says something of a person or machine, by kind."""
    if path.is_dir():
        together = {}
        for file in (p for p in path.rglob("*") if p.is_file()):
            for kind, values in identities(file).items():
                together[kind] = together.get(kind, set()) | values
        return together
    data = expanded(path)
    found = {
        kind: set(pattern.findall(data))
        for kind, pattern in _PATTERNS.items()
        if any(part in data for part in _NEEDS.get(kind, (b"",)))
    }
    if path.is_file() and data.startswith(b"SQLite format 3"):
        found["metadata"] = {text.encode() for text in _of_database(path)}
    elif path.is_file() and data.lstrip()[:1] == b"{":
        found["metadata"] = {text.encode() for text in _of_document(data)}
    elif b'"Host Name"' in data:
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8", "replace"))))
        found["metadata"] = {row["Host Name"].encode() for row in rows if row.get("Host Name")}
    return {kind: {one for one in values if _counts(one, kind)} for kind, values in found.items()}


def _counts(value, kind):
    text = value.decode("utf-8", "replace").strip()
    if kind == "address":  # the common texts below hold all that is made of digits
        return not text.startswith("127.") and all(int(part) <= 255 for part in text.split("."))
    if len(text) < 4 or _COMMON.fullmatch(text):
        return False
    if (
        kind == "absolute path" and len(text) < 10
    ):  # a few bytes of a number in a page of a database look like one
        return False
    return not (
        kind == "absolute path"
        and text.startswith("/lib/python")
        and text.split("/")[-1][:-3] in sys.stdlib_module_names
    )


def _of_database(path):
    out = set()
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    connection.text_factory = lambda b: b.decode("utf-8", "replace")
    try:
        tables = {
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        for table in _ENV_TABLES:
            if table in tables:
                for name, value in connection.execute(f"SELECT name, value FROM {table}"):
                    if isinstance(value, str) and (
                        "ENVIRONMENT" in str(name).upper()
                        or _IDENTITY_KEYS.match(str(name))
                        or "COMMAND" in str(name)
                    ):
                        out |= {
                            value,
                            *(
                                part.partition("=")[2]
                                for part in re.split(r"[\0;\n]", value)
                                if "=" in part
                            ),
                        }
        for table in tables:
            for (column,) in connection.execute(
                "SELECT name FROM pragma_table_info(?)", (table,)
            ).fetchall():
                if _IDENTITY_KEYS.match(column):
                    rows = connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}"')
                    out |= {value for (value,) in rows if isinstance(value, str)}
        if "PROCESSES" in tables:
            names = [
                row[0]
                for row in connection.execute("SELECT name FROM PROCESSES")
                if isinstance(row[0], str)
            ]
            out |= {name for name in names if " " in name.strip() or "/" in name}
    finally:
        connection.close()
    return out


def _of_document(data):
    try:
        document = json.loads(data.decode("utf-8", "replace"), strict=False)
    except ValueError:
        return set()
    head = {key: value for key, value in document.items() if key != "traceEvents"}
    out = set()

    def walk(key, value, *, inside):
        if isinstance(value, dict):
            for name, item in value.items():
                walk(name, item, inside=inside or name == "env")
        elif isinstance(value, list):
            for item in value:
                walk(key, item, inside=inside)
        elif isinstance(value, str) and (inside or _IDENTITY_KEYS.match(key)):
            out.add(value)

    walk("", head, inside=False)
    return out


def left(found, copy):
    """Which of the strings stand in a copy."""
    data = expanded(copy)
    return {
        kind: [one.decode("utf-8", "replace") for one in sorted(values) if one in data]
        for kind, values in found.items()
        if any(one in data for one in values)
    }
