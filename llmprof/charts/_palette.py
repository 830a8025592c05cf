"""One colour for one thing in every chart, and the order in which things are listed.

Families share a hue: matrix products are blue, attention and its cache green, communication vermilion, copies
violet, experts of a mixture wine, element-wise work yellow, what is outside the layers brown, and an idle device
light grey. The family hues are those of Okabe and Ito (2008), which stay apart for readers with a colour-vision
deficiency; inside a family the lightness tells the members apart.
"""

from __future__ import annotations

from collections.abc import Iterable

IDLE = "#E4E7EB"
MISSING = "#D3D7DD"
REST = "#C3CAD3"
INK = "#1F2933"
MUTED = "#52606D"
RULE = "#CBD2D9"
COMPUTE = "#0072B2"
HIDDEN = "#F3B58F"
COMMUNICATION = "#D55E00"
WAIT = "#F6CFB2"
DURATION = "#7B8794"
COPY = "#9F7FD0"
FASTER, SLOWER, SAME = "#5B7C99", "#B2182B", "#C3CAD3"

STAGES: dict[str, str] = {
    "prepare_inputs": "#C9B79C",
    "embedding": "#8B6F47",
    "norm": "#D9B300",
    "qkv_proj": "#7CC0EA",
    "rope": "#79CDB5",
    "kv_cache_write": "#B7E4D4",
    "attention": "#009E73",
    "o_proj": "#3D96D0",
    "all_reduce": COMMUNICATION,
    "gate_up_proj": "#1368AA",
    "activation": "#F2E27A",
    "down_proj": "#0B3C73",
    "residual": "#F7EFB8",
    "router": "#F2C4D8",
    "expert_dispatch": "#DE8DB3",
    "experts": "#8C2A5E",
    "combine": "#C4608F",
    "final_norm": "#A88B00",
    "lm_head": "#A3B8DE",
    "sampling": "#5E4526",
    "all_gather": "#EB8A3E",
    "reduce_scatter": "#B24E00",
    "all_to_all": "#F5AC78",
    "send_recv": "#F8C4A4",
    "broadcast": "#F08A5D",
    "copy": COPY,
    "other": "#8A94A0",
}
"""Stages in the order of a forward pass."""

CATEGORIES: dict[str, str] = {
    "attention": STAGES["attention"],
    "linear": "#1368AA",
    "norm": STAGES["norm"],
    "rope": STAGES["rope"],
    "kv_cache_write": STAGES["kv_cache_write"],
    "activation": STAGES["activation"],
    "moe_routing": STAGES["router"],
    "moe_experts": STAGES["experts"],
    "embedding": STAGES["embedding"],
    "sampling": STAGES["sampling"],
    "quantize": "#56B4E9",
    "collective": COMMUNICATION,
    "copy": COPY,
    "fill": "#D3C4EE",
    "other": STAGES["other"],
}
"""Kernel categories in the order of the analyses."""

PHASES: dict[str, str] = {
    "prefill": "#4B3F8F",
    "mixed": "#8F86C9",
    "decode": "#2F7F86",
    "empty": "#D3D7DD",
    "other": "#9AA5B1",
}
"""Phases of a step."""

CAUSES: dict[str, str] = {
    "host_bound": "#CC6677",
    "sync": "#332288",
    "queued": "#DDCC77",
    "unknown": "#B8BFC7",
}
"""Causes of an idle device."""

_SPARE = ("#4E79A7", "#B07AA1", "#76B7B2", "#9C755F", "#EDC948", "#59A14F")
_TABLES = {"stage": STAGES, "category": CATEGORIES, "phase": PHASES, "cause": CAUSES}


def colours(kind: str, present: Iterable[str]) -> dict[str, str]:
    """Colours of the names that are present, in their listing order.

    Parameters
    ----------
    kind : str
        ``stage``, ``category``, ``phase`` or ``cause``.
    present : iterable of str
        Names to colour. One that the palette does not know comes last, in the order of the alphabet, with a
        spare colour.

    Returns
    -------
    dict of str to str
        Hexadecimal colour by name.
    """
    table, names = _TABLES[kind], set(present)
    known = {name: colour for name, colour in table.items() if name in names}
    new = {name: _SPARE[i % len(_SPARE)] for i, name in enumerate(sorted(names - set(table)))}
    return known | new


def ink_on(colour: str) -> str:
    """Dark or white text, whichever has the higher contrast on a colour (WCAG 2 relative luminance)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    dark = 0.0206
    return INK if (luminance + 0.05) / (dark + 0.05) > 1.05 / (luminance + 0.05) else "#FFFFFF"
