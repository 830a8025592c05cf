"""Places of datasets: a folder of this machine, or a URL of an object store (read through
fsspec).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmprof.errors import OutputError, ReadError
from llmprof.trace.storage import files

_READ_BY_POLARS: Final = (
    "s3",
    "s3a",
    "gs",
    "gcs",
    "az",
    "azure",
    "abfs",
    "abfss",
    "adl",
    "hf",
    "http",
    "https",
)
"""Protocols that Polars itself reads, only the parts of a file that it needs; from others, whole
files are read.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, or a prefix of an object store. Names inside it are separated by slashes."""

    root: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Place:
        """Place of a path or URL; ``file://`` URLs become paths."""
        text = os.fspath(path)
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        return cls(text.rstrip("/") or "/") if "://" in text else cls(str(Path(text)))

    @property
    def is_local(self) -> bool:
        """Whether it is a path on this machine, mounted disks included."""
        return "://" not in self.root

    @property
    def name(self) -> str:
        """Last part of its path."""
        return self.root.rstrip("/").rpartition("/")[2]

    @property
    def path(self) -> Path:
        """Path of the folder; only a local place has one."""
        return Path(self.root)

    def at(self, name: str) -> str:
        """Path or URL of a file or folder inside the place."""
        return f"{self.root}/{name}" if name else self.root

    def store(self) -> tuple[Any, str]:
        """File system of fsspec, and the path of the place in it."""
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            found = f"{self.root} is in an object store, and fsspec is not installed"
            raise ReadError(
                found, hint="pip install 'llmprof[scale]', or copy it to a disk"
            ) from error
        try:
            store, path = url_to_fs(self.root)
        except (ImportError, ValueError, OSError) as error:
            hint = (
                "install fsspec's package for this protocol (s3fs, gcsfs, adlfs …) and check the"
                " address"
            )
            raise ReadError(
                f"the store of {self.root} cannot be used: {error}", hint=hint
            ) from error
        return store, str(path)

    def read(self, name: str) -> bytes | None:
        """Content of a file; None if the file does not exist."""
        try:
            if self.is_local:
                return files.regular(Path(self.at(name))).read_bytes()
            store, path = self.store()
            content: bytes = store.cat_file(f"{path}/{name}" if name else path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ReadError(f"cannot read {self.at(name)}: {error.strerror or error}") from error
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file; if that fails, an earlier file stays as it was."""
        if self.is_local:
            files.write(Path(self.at(name)), content)
            return
        store, path = self.store()
        try:
            store.pipe_file(
                f"{path}/{name}", content
            )  # a store shows an object only when it is complete
        except OSError as error:
            raise OutputError(f"cannot write {self.at(name)}: {error.strerror or error}") from error

    def names(self, folder: str = "") -> list[str]:
        """Names of the files and folders in the place, or in one of its folders; empty if it
        does not exist.
        """
        if self.is_local:
            target = Path(self.at(folder))
            return sorted(path.name for path in target.iterdir()) if target.is_dir() else []
        store, path = self.store()
        try:
            listed = store.ls(f"{path}/{folder}" if folder else path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(listed_path).rstrip("/").rpartition("/")[2] for listed_path in listed)

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes of the files in a folder (bytes) by name; empty if there is no such folder."""
        if self.is_local:
            try:
                with os.scandir(self.at(folder)) as entries:
                    return {
                        entry.name: entry.stat().st_size for entry in entries if entry.is_file()
                    }
            except (FileNotFoundError, NotADirectoryError):
                return {}
        store, path = self.store()
        try:
            listed = store.ls(f"{path}/{folder}", detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        items = [item for item in listed if item["type"] == "file"]
        return {str(item["name"]).rpartition("/")[2]: int(item.get("size") or 0) for item in items}

    @contextmanager
    def folder(self, name: str, *, last: str) -> Iterator[Path]:
        """Temporary folder that gets its name when the block ends well; object stores get
        ``last`` at the end.
        """
        try:
            if self.is_local:
                self.path.mkdir(parents=True, exist_ok=True)
            near = self.path if self.is_local else None
            work = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{name}-", dir=near))
        except OSError as error:
            raise files.refused(
                self.path if self.is_local else Path(tempfile.gettempdir()), error
            ) from error
        try:
            yield work
            self._publish(work, name, last)
        except OSError as error:
            raise files.refused(Path(self.at(name)), error) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _publish(self, work: Path, name: str, last: str) -> None:
        if self.is_local:
            place = Path(self.at(name))
            files.as_the_user_would(work)
            if place.exists():
                shutil.rmtree(place)
            work.replace(place)
            return
        store, path = self.store()
        self.remove(name)
        for file in sorted(work.iterdir(), key=lambda file: file.name == last):
            store.put_file(str(file), f"{path}/{name}/{file.name}")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold a lock on the folder of this machine until the process ends, or raise
        OutputError; URLs have none.
        """
        if not self.is_local:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise files.refused(self.path, error) from error
        try:
            with contextlib.suppress(OSError):  # some network file systems lock no folder
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    found = f"another process is writing to {self.root}"
                    raise OutputError(
                        found, hint="wait until it has ended, or choose another folder"
                    ) from error
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # it is not empty, unless nothing was written
                    self.path.rmdir()
        finally:
            os.close(lock)

    def remove(self, name: str) -> None:
        """Remove a folder, if there is one."""
        if self.is_local:
            shutil.rmtree(self.at(name), ignore_errors=True)
            return
        store, path = self.store()
        if store.exists(f"{path}/{name}"):
            store.rm(f"{path}/{name}", recursive=True)

    def clean(self) -> None:
        """Remove unfinished folders of processes that were killed."""
        if self.is_local and self.path.is_dir():
            for path in self.path.glob(f"{UNFINISHED}*"):
                shutil.rmtree(path, ignore_errors=True)

    def parquet(self, names: Sequence[str]) -> list[str] | list[bytes]:
        """Argument of :func:`polars.scan_parquet` for some files: their addresses, or their
        bytes.
        """
        if self.is_local or self.root.partition("://")[0] in _READ_BY_POLARS:
            return [self.at(name) for name in names]
        contents = []
        for name in names:
            if (content := self.read(name)) is None:
                raise ReadError(f"{self.at(name)} is missing", hint="convert its rank again")
            contents.append(content)
        return contents


UNFINISHED: Final = ".unfinished-"
"""Start of the name of an unfinished folder."""
