"""Part of an engine script: what a run writes, as events while it goes and as ``worker.json`` at its end."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_UNKNOWN = (
    *("start_ns", "prompt_tokens", "output_tokens", "finish_reason"),
    *("ttft_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "decode_s", "e2e_s"),
)


class Record:
    """Files of one run of an engine script.

    Parameters
    ----------
    out : pathlib.Path
        Folder of the files; it is made.
    job : mapping
        What is run.
    """

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.events = out / "events.jsonl"
        self.document: dict[str, Any] = {
            "engine": job["engine"],
            "engine_version": None,
            "torch_version": version_of("torch"),
            "python_version": sys.version.split()[0],
            "platform": None,
            "device_names": [],
            "profiler": job["profiler"],
            "argv": sys.argv,
            "stages": [],
            "requests": [],
            "kv_cache": None,
            "peak_memory_bytes": None,
            "notes": [],
            "dropped_engine_args": [],
            "error": None,
        }

    def event(self, event: str, message: str = "", *, done: int = 0, total: int = 0) -> None:
        """Append an event; a reader sees it at once."""
        values = {"time_ns": time.time_ns(), "event": event, "done": done, "total": total, "message": message}
        with self.events.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    @contextlib.contextmanager
    def stage(self, name: str, *, repeat: int | None = None, total: int = 0, message: str = "") -> Iterator[None]:
        """Time what is done inside; it counts only if it ends well."""
        self.event(name, message, done=repeat or 0, total=total)
        start, began = time.time_ns(), time.perf_counter_ns()
        yield
        took = time.perf_counter_ns() - began
        self.document["stages"].append({"name": name, "start_ns": start, "dur_ns": took, "repeat": repeat})

    def note(self, text: str) -> None:
        """Say something that the user should know; once."""
        if text not in self.document["notes"]:
            self.document["notes"].append(text)

    def request(self, phase: str, repeat: int, request: int, **known: Any) -> None:
        """Add a request; what is not given is not known."""
        head = {"phase": phase, "repeat": repeat, "request": request}
        self.document["requests"].append({**head, **dict.fromkeys(_UNKNOWN), **known})

    def outputs(self, texts: Sequence[str | None], tokens: Sequence[Sequence[int] | None]) -> None:
        """Write what was generated: the text, or the tokens where there is no tokenizer."""
        parts = []
        for k, (text, ids) in enumerate(zip(texts, tokens)):  # noqa: B905 (the engine's Python may be older than ours)
            body = text or (" ".join(map(str, ids)) if ids else "(nothing)")
            parts.append(f"=== request {k}: {'text' if text else 'token numbers'}\n{body}\n")
        (self.out / "generated_output.txt").write_text("\n".join(parts), encoding="utf-8")

    def write(self) -> None:
        """Write ``worker.json``, whole or not at all."""
        part = self.out / f".worker.json.{os.getpid()}"
        part.write_text(json.dumps(self.document, indent=1), encoding="utf-8")
        part.replace(self.out / "worker.json")


def version_of(*distributions: str) -> str | None:
    """Version of the first distribution that is installed, without importing it."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
