"""Every kind of secret in every text of a format, alone, joined to words and encoded: nothing of
it is copied.
"""

import base64
import csv
import gzip
import json
import random
import shutil
import sqlite3
import urllib.parse
from pathlib import Path
from string import ascii_letters, digits

import polars as pl
import pytest

import llmprof
from llmprof.readers.redaction import redact
from llmprof.run.launch import open_run
from llmprof.trace.storage.pseudonyms import Pseudonyms
from tests.redaction import hunt

ROOT = Path(__file__).parents[2]
WHOLE = {
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "aiza": "AIzaSyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe",
    "mac": "0a:1b:2c:3d:4e:5f",
    "mac-": "0a-1b-2c-3d-4e-5f",
    "ipv6": "2001:db8::ff00:42:8329",
    "ipv6b": "fe80::dead:beef:99",
    "ipv6c": "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
    "ipv6d": "fd12:3456:789a::1",
    "ipv4": "10.99.88.77",
    "hex32": "9e107d9d372bb6826bd81d3542a419d6",
    "hex40": "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
    "HEX32": "9E107D9D372BB6826BD81D3542A419D6",
    "host": "gpu-box-17",
    "aws secret2": "zT4kQ9vLm2XcB7nWp8RsY3dHf6JgA1eUoKi5ZqMx",
    "b64 token": "aGZfUGxhbnRlZFRva2VuT2ZUaGVUZXN0czk5",
    "b64": "c2stcHJvai1hYmNkZWYwMTIzNDU2Nzg5",
    "licence": "A1B2C-D3E4F-G5H6I-J7K8L-M9N0P",
    "licence num": "12345-67890-12345-67890",
    "card2": "5500-0000-0000-0004",
    "card3": "4111111111111111",
    "uuid": "deadbeef-1111-2222-3333-444455556666",
    "uuid num": "12345678-1234-1234-1234-123456789012",
    "hf": "hf_PlantedTokenOfTheTests99",
    "sk": "sk-planted-0123456789",
    "ghp": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "slack": "xoxb-123456789012-abcdefABCDEF",
    "glpat": "glpat-plantedPLANTED1234",
    "iban": "DE89370400440532013000",
    "stripe": "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "gsk": "gsk_plantedplanted0123456789",
    "hex of a text": "7a656272613a7061737321",
    "b64 short": "emVicmElNDBjb3JwLmlv",
    "b64 mail": "bXlzcWwgLXB6ZWJyYXB3",
    "b32": "PJSWE4TBHJYHC43TO5XXEZBB",
    "asia": "ASIAPLANTED0EXAMPLE7",
}
"""Secrets of which nothing must be left."""
KINDS = {
    **{kind: (secret, [secret]) for kind, secret in WHOLE.items()},
    "json password": ('{"password": "pla\\"nted9x", "user": "bobx"}', ["nted9x", "bobx"]),
    "json in arg": ('run({"password": "pl\\"anted9y"})', ["anted9y"]),
    "fqdn": ("db.planted.internal", ["planted"]),
    "fqdn2": ("planted.example.com", ["planted"]),
    "fqdn3": ("node7.cluster.acme.io", ["acme"]),
    "pod": ("vllm-worker-7d9f8b6c5d-xk2lp", ["7d9f8b6c5d", "xk2lp"]),
    "arn": ("arn:aws:iam::123456789012:role/Planted", ["123456789012", "Planted"]),
    "s3": ("s3://planted-bucket/key", ["planted", "bucket"]),
    "path": ("/home/planted/models", ["planted"]),
    "winpath": ("C:\\Users\\Planted\\x.py", ["Planted"]),
    "relpath": ("planted/secret_model/x", ["planted"]),
    "mail": ("planted@example.org", ["planted"]),
    "aws secret": (
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ["wJalrXUtnFEMI", "K7MDENG", "bPxRfiCYEXAMPLEKEY"],
    ),
    "aws secret3": (
        "tG7+bq2LxV9mZr4KcJ8pWs5Ny1Hd6FuQe3TaX0Yo",
        ["bq2LxV9mZr4KcJ8pWs5Ny1Hd6FuQe3TaX0Yo"],
    ),
    "mysql": ("mysql -uroot -pplantedpw", ["plantedpw"]),
    "card": ("4111 1111 1111 1111", ["1111 1111 1111"]),
    "zw": ("hf_Plan\u200btedTokenOfTheTests99", ["tedTokenOfTheTests99"]),
    "fw": ("\uff48\uff46\uff3f\uff30lantedTokenOfTheTests99", ["lantedTokenOfTheTests99"]),
    "fw2": ("\uff21\uff2b\uff29\uff21IOSFODNN7EXAMPLE", ["IOSFODNN7EXAMPLE"]),
    "module": ("acme.models.x", ["acme"]),
    "slurm": ("node[01-04,07]", ["node[", "01-04"]),
    "slurm2": ("gpu-n[001-128]", ["001-128"]),
    "slurm3": ("tux[3-5]", ["tux"]),
    "jwt": (
        "eyJhbGciOiJIUzI1NiJ9.eyJwbGFudGVkIjoxfQ.plantedSignature99",
        ["eyJhbGciOi", "plantedSignature99"],
    ),
    "prompt": ("What is the salary of Planted Jones", ["salary", "Planted", "Jones"]),
    "prompt2": ("Planted salary", ["salary"]),
    "prompt zh": ("\u4ec0\u4e48\u662f\u5f20\u4e09\u7684\u5de5\u8d44", ["\u5f20\u4e09"]),
    "prompt in order": ("summarize this patient record for Planted", ["patient"]),
    "prompt keyed": ("{'prompt': 'plantedword'}", ["plantedword"]),
    "prompt of a request": ("request 7: What is the salary of Jones", ["salary", "Jones"]),
    "prompt ru": ("\u0437\u0430\u0440\u043f\u043b\u0430\u0442\u0430", ["\u0437\u0430\u0440"]),
    "prompt de": ("Wie hoch ist das Gehalt", ["Gehalt"]),
    "user": ("user=plantedbob", ["plantedbob"]),
    "var": ("MY_VAR=plantedvalue", ["plantedvalue"]),
    "pct": ("%2Fhome%2Fplanted%2Fx", ["planted"]),
    "pct mail": ("planted%40example.org", ["planted"]),
    "pem": ("-----BEGIN RSA PRIVATE KEY-----\nMIIEplanted\n-----END", ["MIIEplanted"]),
    "bearer": ("Bearer plantedabc123", ["plantedabc123"]),
    "url": ("postgres://bob:hunter2@db/x", ["hunter2"]),
    "git": ("git@github.com:planted/private.git", ["planted"]),
    "flag": ("--api-key plantedflag", ["plantedflag"]),
    "gcp": ("ya29.a0AfH6SMBplantedplanted", ["a0AfH6SMB"]),
    "fqdn of a pod": ("worker-0.planted-svc.default.svc.cluster.local", ["planted"]),
    "share": ("\\\\plantedserver\\share\\models", ["plantedserver"]),
    "login": ("plantedbob:hunter2@db.example.com", ["plantedbob", "hunter2"]),
    "registry": ("registry.planted.io/team/img:1.2", ["planted"]),
    "host of ec2": ("ip-10-99-88-77", ["10-99-88-77"]),
    "card after numbers": ("size 4 4096 5105 1051 0510 5100", ["1051 0510"]),
    "card of fifteen": ("3782-822463-10005", ["822463"]),
    "hash after letters": (
        "SK0123456789abcdef0123456789abcdef",
        ["0123456789abcdef0123456789abcdef"],
    ),
    "password": ("password: planted-pass", ["planted-pass"]),
    "b64 long": ("cGxhbnRlZCBzZWNyZXQgdGV4dCBvZiBhIHVzZXI5OTk=", ["cGxhbnRlZCBzZWNyZXQ"]),
    "url2": ("postgresql+psycopg://bob:planted9@db/x", ["planted9"]),
    "group of ranks": ("10.99.88.66%eth0_60000_0_173", ["10.99.88.66"]),
    "model": ("--model planted/llama-70b-tuned", ["llama-70b-tuned"]),
    "basic": ("Basic cGxhbnRlZDpwdw==", ["cGxhbnRlZDpwdw"]),
    "short path": ("/mis/planted", ["planted"]),
    "uuid gpu": ("GPU-deadbeef-1111-2222-3333-444455556666", ["deadbeef"]),
}
"""The secret, and what of it must not be left."""


def variants():
    """Each secret alone, beside and joined to other words, and encoded."""
    for kind, (secret, parts) in KINDS.items():
        encoded = base64.b64encode(secret.encode()).decode()
        quoted = urllib.parse.quote(secret, safe="")
        as_digits = secret.encode().hex()
        yield kind, secret, parts
        for sign in "_-./:":
            yield f"{kind} joined by {sign}", f"load{sign}{secret}{sign}step", parts
        yield f"{kind} after a word", f"load {secret}", parts
        yield f"{kind} as an argument", f"void run<{secret}>(int)", parts
        yield f"{kind} quoted", f"load({quoted})", parts
        yield f"{kind} quoted wholly", "".join(f"%{byte:02X}" for byte in secret.encode()), ["%"]
        yield f"{kind} in base64", f"load_{encoded}_x", [encoded.rstrip("=")]
        yield f"{kind} in digits", as_digits, [as_digits]


VARIANTS = list(variants())
NAMED = "planted-user-17"
"""A name that has no shape, and is known by the field in which it stands."""


def left(content):
    """The secrets of which a part is in what was copied."""
    forms = {
        part: (part, json.dumps(part)[1:-1])
        for _, _, parts in VARIANTS
        for part in parts
        if part != "%"
    }
    there = {part for part, ways in forms.items() if any(way in content for way in ways)}
    return [
        (kind, sorted(there.intersection(parts)))
        for kind, _, parts in VARIANTS
        if there.intersection(parts)
    ]


def content_of(copy):
    text = hunt.expanded(copy).decode("utf-8", "replace")
    for path in [copy, *copy.rglob("*")]:
        if path.suffix == ".parquet":
            text += json.dumps(pl.read_parquet(path).to_dicts(), default=str, ensure_ascii=False)
    return text


@pytest.mark.parametrize("free", [False, True])
def test_nothing_is_left_of_a_text(free):
    names = Pseudonyms(b"k")
    bad = [
        (kind, text)
        for kind, text, parts in VARIANTS
        if any(p in names.text(text, free=free) for p in parts)
    ]
    assert bad == []


@pytest.mark.parametrize(
    ("signs", "length", "most"),
    [(f"{ascii_letters}{digits}+/", 40, 0.005), (f"{ascii_letters}{digits}", 20, 0.03)],
)
def test_of_random_keys_few_look_like_names(signs, length, most):
    rng, names = random.Random(length), Pseudonyms(b"k")
    keys = ["".join(rng.choices(signs, k=length)) for _ in range(2000)]
    assert sum(key in names.text(key) for key in keys) <= most * len(keys)
    kernels = [
        "MainloopSm90TmaGmma",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4",
        "4096 4096 512",
    ]
    assert [names.text(kernel) for kernel in kernels] == kernels


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_a_chrome_trace(zipped, tmp_path):
    events = []
    for number, (_, text, _) in enumerate(VARIANTS):
        event = {
            "ph": "X",
            "cat": text,
            "name": text,
            "pid": text,
            "tid": text,
            "ts": number,
            "dur": 1,
            "id": text,
            text: 1,
            "bp": text,
            "extra": text,
            "args": {
                "External id": text,
                "Input type": [text],
                "Input Dims": [[text], {text: 1}],
                text: text,
                "device": text,
                "Call stack": text,
                "Concrete Inputs": [text],
                "kernel_file": text,
                "Process Group Name": text,
                "Collective name": text,
                "dtype": text,
            },
        }
        named = {
            "ph": "M",
            "name": "process_name",
            "pid": number,
            "args": {"name": text, "labels": text},
        }
        events += [event, named, {"ph": "C", "name": text, "pid": 1, "ts": 1, "args": {text: 5}}]
    groups = [
        {"pg_name": text, "pg_desc": text, "backend_config": text, "ranks": [0]}
        for _, text, _ in VARIANTS
    ]
    devices = [{"name": text} for _, text, _ in VARIANTS]
    head = {f"v{i}_version": text for i, (_, text, _) in enumerate(VARIANTS)}
    texts = [text for _, text, _ in VARIANTS]
    document = {
        "username": NAMED,
        "traceName": texts,
        **dict.fromkeys(texts, 1),
        "metadata": {"system": {"env": {"X": texts}}},
        "traceEvents": [*events, {"ph": "i", "name": NAMED, "ts": 1}],
        "deviceProperties": devices,
        **head,
        "distributedInfo": {"backend": texts, "host": texts, "pg_config": groups},
        "INFO": texts,
    }
    data = json.dumps(document, ensure_ascii=False).encode()
    path, copy = tmp_path / "t.json", tmp_path / "copy.json"
    path.write_bytes(gzip.compress(data) if zipped else data)
    redact(path, copy, key=b"k")
    content = gzip.decompress(copy.read_bytes()) if zipped else copy.read_bytes()
    assert left(content.decode()) == []
    assert len(json.loads(content)["traceEvents"]) == len(events) + 1


@pytest.mark.parametrize("form", ["sqlite", pytest.param("parquet", marks=pytest.mark.slow)])
def test_an_export_of_nsys(form, tmp_path):
    path = tmp_path / "t.sqlite"
    path.write_bytes((ROOT / "sample_traces/nsys_transformers_generate/report.sqlite").read_bytes())
    frames = {}
    with sqlite3.connect(path) as c:
        for (table,) in c.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [
                (row[1], row[2].upper()) for row in c.execute(f'PRAGMA table_info("{table}")')
            ]
            texts = [name for name, kind in columns if "TEXT" in kind or "CHAR" in kind]
            for number, (_, text, _) in enumerate(VARIANTS if texts else []):
                ids = [name for name, kind in columns if name == "id" and "INT" in kind]
                values = [*[text] * len(texts), *[900_000 + number] * len(ids)]
                columns_of = ", ".join(f'"{name}"' for name in [*texts, *ids])
                places = ", ".join("?" * len(values))
                try:
                    c.execute(f'INSERT INTO "{table}" ({columns_of}) VALUES ({places})', values)
                except sqlite3.IntegrityError:
                    c.execute(
                        f'UPDATE "{table}" SET "{texts[0]}" = ? WHERE rowid = {number + 1}', (text,)
                    )
        c.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, textId) VALUES (1, 2, 59, ?)",
            [(900_000 + number,) for number in range(len(VARIANTS))],
        )
        for (table,) in c.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            frames[table] = pl.read_database(
                f'SELECT * FROM "{table}"', c, infer_schema_length=None
            )
        for number, (secret, _) in enumerate(KINDS.values()):
            name = secret.replace('"', '""')
            c.execute(f'ALTER TABLE NVTX_EVENTS ADD COLUMN "{name} {number}" TEXT')
            c.execute(f'CREATE TABLE "{name} {number}" (a)')
        c.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)")
        c.execute(
            "INSERT INTO META_DATA_CAPTURE (name, value) VALUES ('PROCESS_0:USER', ?)", (NAMED,)
        )
        c.execute("CREATE VIEW seen AS SELECT 1 AS x")
        c.execute(
            "CREATE TABLE gone AS SELECT ? AS text", (" ".join(text for _, text, _ in VARIANTS),)
        )
        c.execute("DROP TABLE gone")
    c.close()
    if form == "parquet":
        path = tmp_path / "tables"
        path.mkdir()
        for name, frame in frames.items():
            frame.write_parquet(path / f"{name}.parquet")
    redact(path, tmp_path / "copy", key=b"k")
    content = content_of(tmp_path / "copy")
    assert left(content) == []
    assert NAMED not in content


def test_every_column_of_a_page_of_ncu(tmp_path):
    columns = [
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
        "Section Name",
        "Metric Name",
        "Metric Unit",
        "Metric Value",
        "Rule Name",
        "Rule Type",
        "Rule Description",
        "Estimated Speedup Type",
        "Estimated Speedup",
    ]
    said = " ".join(secret for secret, _ in KINDS.values())
    with (tmp_path / "a.csv").open("w", newline="") as file:
        file.write(f"==PROF== Connected to {said}\n{said}\n")
        write = csv.writer(file, quoting=csv.QUOTE_ALL)
        write.writerow(columns)
        write.writerows(
            [str(n), "1", *[text] * (len(columns) - 2)] for n, (_, text, _) in enumerate(VARIANTS)
        )
    redact(tmp_path / "a.csv", tmp_path / "b.csv", key=b"k")
    assert left((tmp_path / "b.csv").read_text()) == []


def test_a_saved_trace(tmp_path, sample_trace):
    trace = sample_trace("torch_transformers_generate")
    texts = [text for _, text, _ in VARIANTS]
    tables = {
        name: frame.sample(len(texts), with_replacement=True, seed=1).with_columns(
            pl.Series(column, texts) for column, dtype in frame.schema.items() if dtype == pl.String
        )
        for name, frame in trace.tables.items()
        if frame.height
    }
    meta = trace.meta | {"device": "\n".join(texts), "versions": dict.fromkeys(texts, "1")}
    meta |= {"options": {text: text for text in texts}}
    llmprof.Trace(tables, meta, {**trace.coverage, "warnings": texts}).save(tmp_path / "s")
    redact(tmp_path / "s", tmp_path / "copy", key=b"k")
    assert left(content_of(tmp_path / "copy")) == []


def told_by_a_plug_in(value):
    """A document with keys of its own beside each key: plain words and identifiers, which have
    no shape of a secret.
    """
    if isinstance(value, list):
        return [told_by_a_plug_in(item) for item in value]
    if not isinstance(value, dict):
        return value
    own = {
        "plantedkey": 7,
        "Planted": {"tokens": 7, "name": "void gemm<int>(int)"},
        "planted_customer": [1.5, True],
    }
    return {key: told_by_a_plug_in(item) for key, item in value.items()} | own


def numbers(path, value=None):
    """Numbers of a JSON file with the keys that lead to them."""
    value = json.loads(path.read_text()) if value is None else value
    if isinstance(value, dict):
        return {
            key: found
            for key, item in value.items()
            if item is not None and (found := numbers(path, item)) != []
        }
    if isinstance(value, list):
        return [
            found for item in value if item is not None and (found := numbers(path, item)) != []
        ]
    return value if isinstance(value, int | float) else []


def test_every_file_of_a_run(tmp_path):
    secret = " ".join(text for text, _ in KINDS.values())
    run = Path(shutil.copytree(ROOT / "sample_traces/run_torch_tp1", tmp_path / "run"))
    for path in run.rglob("*"):
        if path.suffix in {".log", ".txt", ".jsonl", ".py"}:
            path.write_text(path.read_text() + secret)
        if path.suffix == ".json" and path.parent == run:
            value = json.loads(path.read_text())
            path.write_text(
                json.dumps(
                    told_by_a_plug_in(value)
                    | {"name": secret, "more": [secret], secret: {"state": secret}}
                )
            )
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("environment: {}", f"environment: {{A: {NAMED}}}"))
    (run / f"{NAMED}.log").write_text(secret)
    (run / "traces" / f"{NAMED}_41.rank3.json").write_text('{"traceEvents": []}')
    redact(run, tmp_path / "copy", key=b"k")
    content = content_of(tmp_path / "copy")
    assert left(content) == []
    assert NAMED not in content
    assert "planted" not in content.lower()
    for name in ("worker.json", "metrics.json", "summary.json", "gpu_info.json"):
        assert numbers(tmp_path / "copy" / name) == numbers(
            ROOT / "sample_traces/run_torch_tp1" / name
        )
    assert "state.json" in {p.name for p in (tmp_path / "copy").iterdir()}
    assert open_run(tmp_path / "copy").summary["batch_size"] == 4


def test_names_of_files(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for number, (_, text, _) in enumerate(VARIANTS):
        name = text.replace("/", "_").replace("\n", "")[:200]
        (folder / f"{name}_{number}.json").write_text('{"traceEvents": []}')
    redact(folder, tmp_path / "copy", key=b"k")
    names = "\n".join(path.name for path in (tmp_path / "copy").iterdir())
    assert left(names) == []
    assert names.count("\n") == len(VARIANTS) - 1
