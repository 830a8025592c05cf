"""Reads plain data from a pickle without unpickling it.

A pickle is a program, and unpickling it can run any code. ``torch.cuda.memory._dump_snapshot`` writes a tree of
dictionaries, lists, tuples, texts and numbers, which needs about thirty operations. The interpreter here knows only
these. It refuses operations that name or call a class or a function, or that refer to an object outside the file.

Source of the operations: CPython's ``pickletools`` (protocols 2 to 5).
"""

from __future__ import annotations

import struct
from typing import Any, Final

from llmprof.errors import ReadError

_MARK: Final = object()
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_F64: Final = struct.Struct(">d")

_REFUSED: Final = {
    "c": "a class by its name", "\x93": "a class by its name", "R": "a call", "b": "the state of an object",
    "i": "an object of a class", "o": "an object of a class", "\x81": "a new object", "\x92": "a new object",
    "P": "an object outside the file", "Q": "an object outside the file", "\x82": "an object by its code",
    "\x83": "an object by its code", "\x84": "an object by its code", "\x97": "a buffer outside the file",
}  # fmt: skip


def data_of(pickled: bytes) -> Any:
    """Read the dictionaries, lists, tuples, texts and numbers of a pickle."""
    try:
        return _run(pickled)
    except (IndexError, struct.error, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ReadError(
            f"the pickle is cut off or damaged ({type(error).__name__}: {error})",
            expected="the file that torch.cuda.memory._dump_snapshot wrote",
            hint="write it again, or copy it again",
        ) from error


def _run(pickled: bytes) -> Any:  # noqa: C901, PLR0912 (one branch an operation)
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    offset, end = 0, len(pickled)

    def text(start: int, size: int) -> str:
        if start + size > end:
            raise IndexError("a text reaches beyond the end")
        return str(pickled[start : start + size], "utf-8", "surrogatepass")

    def since_mark() -> list[Any]:
        begin = marks.pop()
        items = stack[begin:]
        del stack[begin:]
        return items

    while True:
        op = pickled[offset]
        offset += 1
        if op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op == 0x68:  # BINGET
            stack.append(memo[pickled[offset]])
            offset += 1
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo[_U32.unpack_from(pickled, offset)[0]])
            offset += 4
        elif op == 0x8C:  # SHORT_BINUNICODE
            size = pickled[offset]
            stack.append(text(offset + 1, size))
            offset += 1 + size
        elif op == 0x4B:  # BININT1
            stack.append(pickled[offset])
            offset += 1
        elif op == 0x4D:  # BININT2
            stack.append(_U16.unpack_from(pickled, offset)[0])
            offset += 2
        elif op == 0x4A:  # BININT
            stack.append(_I32.unpack_from(pickled, offset)[0])
            offset += 4
        elif op == 0x8A:  # LONG1
            size = pickled[offset]
            stack.append(int.from_bytes(pickled[offset + 1 : offset + 1 + size], "little", signed=True))
            offset += 1 + size
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif op == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif op == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif op == 0x75:  # SETITEMS
            items = since_mark()
            _put(stack[-1], items)
        elif op == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            _put(stack[-1], [key, value])
        elif op == 0x65:  # APPENDS
            items = since_mark()
            _list(stack[-1]).extend(items)
        elif op == 0x61:  # APPEND
            value = stack.pop()
            _list(stack[-1]).append(value)
        elif op == 0x74:  # TUPLE
            stack.append(tuple(since_mark()))
        elif 0x85 <= op <= 0x87:  # TUPLE1 to TUPLE3
            size = op - 0x84
            stack[-size:] = [tuple(stack[-size:])]
        elif op == 0x4E:  # NONE
            stack.append(None)
        elif op in (0x88, 0x89):  # NEWTRUE, NEWFALSE
            stack.append(op == 0x88)
        elif op == 0x47:  # BINFLOAT
            stack.append(_F64.unpack_from(pickled, offset)[0])
            offset += 8
        elif op == 0x58:  # BINUNICODE
            size = _U32.unpack_from(pickled, offset)[0]
            stack.append(text(offset + 4, size))
            offset += 4 + size
        elif op == 0x8D:  # BINUNICODE8
            size = _U64.unpack_from(pickled, offset)[0]
            stack.append(text(offset + 8, size))
            offset += 8 + size
        elif op == 0x71:  # BINPUT
            memo[pickled[offset]] = stack[-1]
            offset += 1
        elif op == 0x72:  # LONG_BINPUT
            memo[_U32.unpack_from(pickled, offset)[0]] = stack[-1]
            offset += 4
        elif op == 0x95:  # FRAME
            offset += 8
        elif op == 0x80:  # PROTO
            offset += 1
        elif op == 0x2E:  # STOP
            return stack[-1]
        else:
            raise _refusal(op)


def _put(target: Any, items: list[Any]) -> None:
    if type(target) is not dict:
        raise TypeError("items are put into an object that is not a dictionary")
    target.update(zip(items[::2], items[1::2], strict=False))


def _list(target: Any) -> list[Any]:
    if type(target) is not list:
        raise TypeError("items are added to an object that is not a list")
    return target


def _refusal(op: int) -> ReadError:
    what = _REFUSED.get(chr(op))
    if what is None:
        return ReadError(
            f"the pickle is damaged, or has an operation that plain data do not need ({op:#04x})",
            expected="dictionaries, lists, texts and numbers, as torch.cuda.memory._dump_snapshot writes them",
        )
    return ReadError(
        f"the pickle has {what}: unpickling it could run any code, so it is refused",
        expected="dictionaries, lists, texts and numbers, as torch.cuda.memory._dump_snapshot writes them",
        hint="a file that a stranger gave you may be an attack: do not open it with pickle.load either",
    )
