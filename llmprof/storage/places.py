"""Place of a dataset: a folder of this machine, or an object store by its URL (through fsspec)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmprof.errors import OutputError, ReadError
from llmprof.storage import files

_READ_BY_POLARS: Final = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "hf", "http", "https")
"""Protocols from which Polars itself reads the parts of a file that it needs; of others a file is read whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, or a prefix of an object store; names in it have slashes.

    Attributes
    ----------
    root : str
        Path or URL, without a slash at its end.
    """

    root: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Place:
        """The place that a path or URL names; ``file://`` is a path."""
        text = os.fspath(path)
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        return cls(text.rstrip("/") or "/") if "://" in text else cls(str(Path(text)))

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine (or of a disk that is mounted on it)."""
        return "://" not in self.root

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.root.rstrip("/").rpartition("/")[2]

    @property
    def path(self) -> Path:
        """The folder; only of a local place."""
        return Path(self.root)

    def at(self, name: str) -> str:
        """Path or URL of something in it."""
        return f"{self.root}/{name}" if name else self.root

    def store(self) -> tuple[Any, str]:
        """The file system of fsspec, and the place's path in it.

        Raises
        ------
        ReadError
            fsspec, or its package for this protocol, is not installed, or the store cannot be reached.
        """
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise ReadError(
                f"{self.root} is in an object store, and fsspec is not installed",
                hint="pip install 'llmprof[scale]', or copy it to a disk",
            ) from error
        try:
            store, path = url_to_fs(self.root)
        except (ImportError, ValueError, OSError) as error:
            raise ReadError(
                f"the store of {self.root} cannot be used: {error}",
                hint="install the package of fsspec for it (s3fs, gcsfs, adlfs …) and check the address",
            ) from error
        return store, str(path)

    def read(self, name: str) -> bytes | None:
        """Content of a file; None where there is none.

        Raises
        ------
        ReadError
            It exists and cannot be read.
        """
        try:
            if self.is_local:
                return Path(self.at(name)).read_bytes()
            store, path = self.store()
            content: bytes = store.cat_file(f"{path}/{name}" if name else path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ReadError(f"cannot read {self.at(name)}: {error.strerror or error}") from error
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        if self.is_local:
            files.write(Path(self.at(name)), content)
            return
        store, path = self.store()
        try:
            store.pipe_file(f"{path}/{name}", content)  # stores show an object when all of it is there
        except OSError as error:
            raise OutputError(f"cannot write {self.at(name)}: {error.strerror or error}") from error

    def names(self, folder: str = "") -> list[str]:
        """Names of the files and folders in it, or in a folder of it; none where there is no such folder."""
        if self.is_local:
            where = Path(self.at(folder))
            return sorted(path.name for path in where.iterdir()) if where.is_dir() else []
        store, path = self.store()
        try:
            listed = store.ls(f"{path}/{folder}" if folder else path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(one).rstrip("/").rpartition("/")[2] for one in listed)

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of the files in a folder, by their names; none where there is no such folder."""
        if self.is_local:
            try:
                with os.scandir(self.at(folder)) as entries:
                    return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
            except (FileNotFoundError, NotADirectoryError):
                return {}
        store, path = self.store()
        try:
            listed = store.ls(f"{path}/{folder}", detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {
            str(one["name"]).rpartition("/")[2]: int(one.get("size") or 0) for one in listed if one["type"] == "file"
        }

    @contextmanager
    def folder(self, name: str, *, last: str) -> Iterator[Path]:
        """A folder to be filled: it appears under its name when the block ends, whole or not at all.

        In an object store its files are sent when the block ends, the one called ``last`` after all others: without it
        a folder counts as not there.

        Parameters
        ----------
        name : str
            Name of the folder; one that exists is replaced.
        last : str
            File that is written last.

        Raises
        ------
        OutputError
            It cannot be written; nothing of it stays.
        """
        try:
            if self.is_local:
                self.path.mkdir(parents=True, exist_ok=True)
            near = self.path if self.is_local else None
            work = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{name}-", dir=near))
        except OSError as error:
            raise files.refused(self.path if self.is_local else Path(tempfile.gettempdir()), error) from error
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

    def remove(self, name: str) -> None:
        """Remove a folder, if there is one."""
        if self.is_local:
            shutil.rmtree(self.at(name), ignore_errors=True)
            return
        store, path = self.store()
        if store.exists(f"{path}/{name}"):
            store.rm(f"{path}/{name}", recursive=True)

    def clean(self) -> None:
        """Remove folders that a process was filling when it was killed."""
        if self.is_local and self.path.is_dir():
            for path in self.path.glob(f"{UNFINISHED}*"):
                shutil.rmtree(path, ignore_errors=True)

    def parquet(self, names: Sequence[str]) -> list[str] | list[bytes]:
        """What :func:`polars.scan_parquet` takes for some of its files.

        Raises
        ------
        ReadError
            One of them is missing.
        """
        if self.is_local or self.root.partition("://")[0] in _READ_BY_POLARS:
            return [self.at(name) for name in names]
        paths = []
        for name in names:
            content = self.read(name)
            if content is None:
                raise ReadError(f"{self.at(name)} is missing", hint="convert its rank again")
            paths.append(content)
        return paths


UNFINISHED: Final = ".unfinished-"
"""How the name of a folder begins while it is being filled."""
