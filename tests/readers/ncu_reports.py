"""Small reports of Nsight Compute, built field by field as the package ``ncu-report`` reads
them.
"""

import struct


class Library:
    """The package ``ncu-report``, whose every report holds these kernels."""

    class IAction:
        NameBase_DEMANGLED = 1

    def __init__(self, *actions):
        self.actions = actions

    def load_report(self, _):
        return self

    def num_ranges(self):
        return 1

    def range_by_idx(self, _):
        return self

    def num_actions(self):
        return len(self.actions)

    def action_by_idx(self, number):
        return self.actions[number]


def integer(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    if isinstance(value, int):
        return integer(number << 3) + integer(value)
    if isinstance(value, float):
        return integer(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return integer(number << 3 | 2) + integer(len(data)) + data


def sized(data):
    return struct.pack("<I", len(data)) + data


def block(parts=(), names=(), kind=2):
    payload = b"".join(map(sized, parts))
    strings = b"".join(field(1, name) for name in names)
    process = field(1, 7) + field(2, "127.0.0.1") + field(3, "/bin/app")
    counts = b"".join(field(number, len(parts) * (number == kind)) for number in (1, 2))
    return sized(counts + field(4, strings) + field(5, len(payload)) + field(6, process)) + payload


def result(name, values, rules=()):
    """A kernel with values by the number of the metric's name, and the texts of its rules."""
    size = field(1, 1) + field(2, 1) + field(3, 1)
    named = [
        field(1, n) + field(2, field(1 if isinstance(v, str) else 3, v)) for n, v in values.items()
    ]
    said = [
        field(1, "Rule")
        + field(2, "A rule")
        + field(3, field(1, field(1, field(1, text) + field(2, 2) + field(3, 0))))
        + field(4, "Launch")
        for text in rules
    ]
    return (
        b"".join(field(number, 0) for number in (1, 2, 3, 4))
        + field(5, name)
        + field(6, name)
        + field(7, name)
        + field(8, 0)
        + field(9, size)
        + field(10, size)
        + field(11, size)
        + b"".join(field(13, metric) for metric in named)
        + field(14, 0)
        + field(15, field(1, 1))
        + field(16, 0)
        + b"".join(field(19, rule) for rule in said)
        + field(22, 1)
        + field(23, 7)
        + field(25, field(1, 0) + field(2, 0))
    )


def report(*blocks):
    return b"NVR\0" + sized(field(1, 7)) + b"".join(blocks)
