"""Small hand-made traces, and an independent look at real ones: plain ``json``, with decimals
for times.
"""

import gzip
import json
import warnings
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import llmprof
from llmprof.errors import TraceWarning
from llmprof.readers.chrome import reader
from llmprof.trace import communication

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / ".." / "shared"


def real_files():
    """Chrome traces of many tools and years beside a developer's checkout; none where there is no
    such folder.

    Of our own captures of four ranks, which are alike, they are the first and the last rank.
    """
    found = [
        *(
            path
            for path in SHARED.glob("captures/torch_*/*.json.gz")
            if not path.name.startswith(("rank1.", "rank2."))
        ),
        *SHARED.glob("real/chrome/**/*.json*"),
        *SHARED.glob("real/onnxruntime/*.json"),
        *SHARED.glob("real/rocm/*.json"),
        *SHARED.glob("real/nsys/*reader.json"),
    ]
    return sorted(path for path in found if path.is_file())


def content(path):
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def document_of(path):
    """Events and other keys of a whole file, numbers with a fraction as decimals."""
    found = json.loads(content(path), parse_float=Decimal)
    return (found, {}) if isinstance(found, list) else (found.pop("traceEvents"), found)


def decimal_ns(us):
    """Time in us (number, decimal or text) in ns."""
    return int((Decimal(str(us)) * 1000).to_integral_value(ROUND_HALF_UP))


def event(cat="kernel", name="k", ts=0, dur=1, **more):
    """A complete event; ``args`` among ``more`` are its arguments."""
    found = {"ph": "X", "name": name, "pid": 1, "tid": 7, "ts": ts, "dur": dur, **more}
    return found if cat is None else {"cat": cat, **found}


def kernel(name="k", ts=0, dur=1, **args):
    return event("kernel", name, ts, dur, pid=0, args={"device": 0, "stream": 7, **args})


def op(name="aten::mm", ts=0, dur=1, **args):
    return event("cpu_op", name, ts, dur, pid=100, tid=101, args=args)


def launch(name="cudaLaunchKernel", ts=0, dur=1, **args):
    return event("cuda_runtime", name, ts, dur, pid=100, tid=101, args=args)


def collectives_of(part):
    """Collectives of one file, in its absolute times."""
    found = communication.make_collectives(
        {name: frame.with_columns(rank=0) for name, frame in part.tables.items()}
    )
    assert found is not None
    return found


def text_of(events, **keys):
    """A trace document: an object with the keys before the events."""
    return json.dumps({**keys, "traceEvents": list(events)}).encode()


def write(path, text):
    path.write_bytes(text)
    return path


def rank_file(
    folder,
    rank,
    events,
    world=2,
    backend="nccl",
    **keys,
):
    """A file as Kineto writes it for a rank of a run."""
    distributed = {"backend": backend, "rank": rank, "world_size": world}
    return write(folder / f"rank{rank}.json", text_of(events, distributedInfo=distributed, **keys))


def same(a, b):
    """Whether two sets of tables are equal, rows in their order."""
    return a.keys() == b.keys() and all(a[name].equals(b[name]) for name in a)


def read_one(path, **options):
    """The one part of a file that no tool merged."""
    (part,) = reader.read(path, **options)
    return part


def read_quietly(path):
    """A trace, whatever reading it warns of."""
    with warnings.catch_warnings(action="ignore", category=TraceWarning):
        return llmprof.read(path, cache=False)


def read_and_told(path):
    """A trace, and what reading it warned of."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        trace = llmprof.read(path, cache=False)
    assert all(issubclass(one.category, TraceWarning) for one in caught)
    return trace, [str(one.message) for one in caught]
