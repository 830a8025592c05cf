"""Waiting for a picture: explorers say in data-… attributes of their root what they have drawn."""

from __future__ import annotations

DRAWN = """([root, needs, shows]) => {
    const now = [...document.querySelectorAll(root)].pop()?.dataset ?? {};
    const read = (text) => { try { return JSON.parse(text); } catch { return text; } };
    const drawn = Object.fromEntries(Object.entries(now).map(([name, value]) => [name, read(value)]));
    const all = { ...drawn, ...drawn.shown };
    const same = ([name, value]) => JSON.stringify(all[name]) === JSON.stringify(value);
    return needs.every((name) => name in drawn) && Object.entries(shows).every(same);
}"""


def settled(shown, root: str, *needs: str, **shows) -> None:
    """Wait until the last widget has drawn, and drawn this: ``shows`` are the arguments of its last request."""
    shown.page.wait_for_function(DRAWN, arg=[root, ["shown", *needs], shows], timeout=60_000)
    shown.page.wait_for_function("!document.querySelector('.lp-working')", timeout=60_000)
