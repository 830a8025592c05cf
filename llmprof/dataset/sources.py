"""Source files of a dataset: listing, identification by size, time and content, and download of remote files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from llmprof import schema
from llmprof.errors import MixedRunsError, ReadError, listed
from llmprof.readers import reading, registry
from llmprof.readers.common.reader import Reader
from llmprof.readers.saved import capture
from llmprof.storage.places import Place
from llmprof.version import __version__

PathLike = str | os.PathLike[str]
Clocks = Literal["shared", "unrelated"]

_BLOCK: Final = 1 << 20


class Source(NamedTuple):
    """A file or folder of one rank or several, and the options that its reading depends on."""

    path: str
    reader: str | None
    """Name of its format; None if only a worker can open it."""
    python_functions: bool
    clocks: Clocks

    @property
    def name(self) -> str:
        """Name of the file without its folder."""
        return self.path.rstrip("/").rpartition("/")[2]


def sources_of(
    paths: PathLike | Iterable[PathLike], chosen: str | None, *, python_functions: bool, clocks: Clocks
) -> list[Source]:
    """The files of all paths, in the order in which :func:`llmprof.read` takes them."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ReadError("no path was given", expected="a file, a folder or several of them")
    reader = None if chosen is None else registry.reader(chosen)
    sources: list[Source] = []
    readers: dict[str, Reader] = {}
    for path in given:
        place = Place.of(path)
        if not place.is_local:
            sources += [Source(url, chosen, python_functions, clocks) for url in _remote(place)]
            continue
        for claimed_by, file in reading.files_of(capture(place.path), reader):
            readers[claimed_by.name] = claimed_by
            sources.append(Source(str(file.resolve()), claimed_by.name, python_functions, clocks))
    if len(readers) > 1 or (any(claimed_by.alone for claimed_by in readers.values()) and len(sources) > 1):
        raise MixedRunsError(
            f"the files are of different formats, or stand alone: {listed(sorted(readers))}",
            expected="the files that one profiler wrote for one run",
            hint="convert the files of each format separately",
            formats=sorted(readers),
        )
    return sources


def _remote(place: Place) -> list[str]:
    suffixes = {suffix for reader in registry.readers() for suffix in reader.suffixes}
    inside = [place.at(name) for name in place.names() if Path(name).suffix in suffixes]
    if inside and inside != [place.root]:
        return inside
    if place.read("") is None:
        raise ReadError(f"{place.root} does not exist, or holds no trace", hint="check the address")
    return [place.root]


def stamp(source: Source) -> str:
    """Size and time of a file, with the options that its reading depends on; it changes when the file changes."""
    options = f"{__version__}-{schema.VERSION}-{source.python_functions}-{source.clocks}"
    place = Place.of(source.path)
    if not place.is_local:
        store, path = place.store()
        try:
            return f"{store.ukey(path)}-{options}"
        except (OSError, NotImplementedError):
            return f"{store.size(path)}-{options}"
    try:
        stats = [(str(file.relative_to(place.path)), file.stat()) for file in _inside(place.path)]
    except OSError:
        return ""
    digest = hashlib.sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode())
    return f"{digest.hexdigest()[:16]}-{options}"


def _inside(path: Path) -> list[Path]:
    """A file, or all files of a folder."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def key_of(path: Path, options: str) -> str:
    """Key of the content of a file."""
    digest = hashlib.blake2b(options.encode(), digest_size=10)
    for file in _inside(path):
        digest.update(file.name.encode("utf-8", "surrogateescape"))
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def fetched(source: Source) -> Iterator[Path]:
    """Path of the file on this machine; a remote file is downloaded."""
    place = Place.of(source.path)
    if place.is_local:
        yield place.path
        return
    with tempfile.TemporaryDirectory(prefix="llmprof-") as folder:
        local = Path(folder) / source.name
        store, path = place.store()
        try:
            store.get_file(path, str(local))
        except OSError as error:
            raise ReadError(f"cannot read {source.path}: {error}", hint="check the address") from error
        yield local
