"""Reader of Arrow streams that lets other threads run while the producer of a stream works.

Polars holds Python's global lock from the first batch of a stream to its last. Here each batch is
requested through :mod:`ctypes`, which releases the lock, so several streams can be read at once.
The structures are those of Arrow's stable C data and C stream interfaces.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, ClassVar

import polars as pl

_POINTER = ctypes.c_void_p
_RELEASE = ctypes.CFUNCTYPE(None, _POINTER)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER)
_Fields = list[tuple[str, Any]]


class _Schema(ctypes.Structure):
    _fields_: ClassVar[_Fields] = [
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", _POINTER),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", _POINTER),
        ("dictionary", _POINTER),
        ("release", _RELEASE),
        ("private_data", _POINTER),
    ]


class _Array(ctypes.Structure):
    _fields_: ClassVar[_Fields] = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", _POINTER),
        ("children", _POINTER),
        ("dictionary", _POINTER),
        ("release", _RELEASE),
        ("private_data", _POINTER),
    ]


class _Stream(ctypes.Structure):
    _fields_: ClassVar[_Fields] = [
        ("get_schema", _FILL),
        ("get_next", _FILL),
        ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, _POINTER)),
        ("release", _RELEASE),
        ("private_data", _POINTER),
    ]


_address_in = ctypes.pythonapi.PyCapsule_GetPointer
_address_in.argtypes = [ctypes.py_object, ctypes.c_char_p]
_address_in.restype = _POINTER

_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.argtypes = [_POINTER, ctypes.c_char_p, _POINTER]
_capsule.restype = ctypes.py_object


class _Batch:
    """One batch on its way to its importer."""

    def __init__(self) -> None:
        self.schema, self.array = _Schema(), _Array()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _capsule(ctypes.addressof(self.schema), b"arrow_schema", None),
            _capsule(ctypes.addressof(self.array), b"arrow_array", None),
        )

    def release(self) -> None:
        """Free the parts that were not imported."""
        for part in (self.schema, self.array):
            if part.release:
                part.release(ctypes.addressof(part))


class _Rest:
    """The rest of a stream, from its current position."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.capsule


def frames(stream: Any) -> Iterator[pl.DataFrame]:
    """Batches of a stream as frames, at least one."""
    capsule = stream.__arrow_c_stream__()
    address = _address_in(capsule, b"arrow_array_stream")
    source = _Stream.from_address(address)
    batch, count = _Batch(), 0
    try:
        while True:
            _check(source, address, source.get_next(address, ctypes.addressof(batch.array)))
            if not batch.array.release:  # the end
                break
            _check(source, address, source.get_schema(address, ctypes.addressof(batch.schema)))
            yield pl.DataFrame(batch)
            count += 1
        if not count:
            yield pl.DataFrame(_Rest(capsule))
    finally:
        batch.release()
        del capsule  # ends the producer's work before its connection is closed


def _check(source: _Stream, address: int, status: int) -> None:
    if status:
        message = source.get_last_error(address) or b"the stream failed"
        raise OSError(status, message.decode("utf-8", "replace"))
