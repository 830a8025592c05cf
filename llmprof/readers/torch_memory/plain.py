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

_U32: Final = struct.Struct("<I")
_PUT: Final = frozenset({0x71, 0x72})  # BINPUT, LONG_BINPUT
_TEXT: Final = frozenset({0x8C, 0x58, 0x8D})  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
_NUMBER: Final = frozenset({0x4B, 0x4D, 0x4A, 0x47})  # BININT1, BININT2, BININT, BINFLOAT
_FORMS: Final = {
    "<B": (0x71, 0x8C, 0x4B, 0x8A, 0x80), "<H": (0x4D,), "<i": (0x4A,), "<I": (0x72, 0x58),
    "<Q": (0x8D, 0x95), ">d": (0x47,),
}  # fmt: skip
_ARGUMENTS: Final = [
    next((struct.Struct(form).unpack_from for form, ops in _FORMS.items() if op in ops), None) for op in range(256)
]
_SIZES: Final = {op: struct.calcsize(form) for form, ops in _FORMS.items() for op in ops}
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}  # NONE, NEWTRUE, NEWFALSE, EMPTY_TUPLE

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


def _run(pickled: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    offset, end = 0, len(pickled)

    def since_mark() -> list[Any]:
        begin = marks.pop()
        items = stack[begin:]
        del stack[begin:]
        return items

    while True:
        op = pickled[offset]
        offset += 1
        if op == 0x68:  # BINGET: this and the next one are three quarters of all operations
            stack.append(memo[pickled[offset]])
            offset += 1
            continue
        if op == 0x6A:  # LONG_BINGET
            stack.append(memo[_U32.unpack_from(pickled, offset)[0]])
            offset += 4
            continue
        if op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
            continue
        argument: Any = None
        if (unpack := _ARGUMENTS[op]) is not None:
            argument = unpack(pickled, offset)[0]
            offset += _SIZES[op]
        if op in _NUMBER:
            stack.append(argument)
        elif op in _TEXT or op == 0x8A:  # LONG1
            if offset + argument > end:
                raise IndexError("a text or a number reaches beyond the end")
            data = pickled[offset : offset + argument]
            stack.append(
                str(data, "utf-8", "surrogatepass") if op in _TEXT else int.from_bytes(data, "little", signed=True)
            )
            offset += argument
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif op == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif op in (0x75, 0x73):  # SETITEMS, SETITEM
            items = since_mark() if op == 0x75 else [stack.pop(-2), stack.pop()]
            if type(stack[-1]) is not dict:
                raise TypeError("items are put into an object that is not a dictionary")
            stack[-1].update(zip(items[::2], items[1::2], strict=False))
        elif op in (0x65, 0x61):  # APPENDS, APPEND
            items = since_mark() if op == 0x65 else [stack.pop()]
            if type(stack[-1]) is not list:
                raise TypeError("items are added to an object that is not a list")
            stack[-1].extend(items)
        elif op == 0x74:  # TUPLE
            stack.append(tuple(since_mark()))
        elif 0x85 <= op <= 0x87:  # TUPLE1 to TUPLE3
            size = op - 0x84
            stack[-size:] = [tuple(stack[-size:])]
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in _PUT:
            memo[argument] = stack[-1]
        elif op == 0x2E:  # STOP
            return stack[-1]
        elif op not in (0x80, 0x95):  # PROTO, FRAME
            raise _refusal(op)


def _refusal(op: int) -> ReadError:
    expected = "dictionaries, lists, texts and numbers, as torch.cuda.memory._dump_snapshot writes them"
    if (what := _REFUSED.get(chr(op))) is None:
        found = f"the pickle is damaged, or has an operation that plain data do not need ({op:#04x})"
        return ReadError(found, expected=expected)
    return ReadError(
        f"the pickle has {what}: unpickling it could run any code, so it is refused",
        expected=expected,
        hint="a file that a stranger gave you may be an attack: do not open it with pickle.load either",
    )
