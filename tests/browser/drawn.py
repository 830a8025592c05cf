"""Waiting for a picture: explorers say in data-… attributes of their root what they have drawn."""

import time

from tests.browser.host import PAINTED, PATIENCE_S

FOCUSED = "(one => one.ariaLabel || one.closest('label')?.innerText || one.textContent)(document.activeElement).trim()"
OUTLINE = "(one => [one.outlineStyle, parseFloat(one.outlineWidth)])(getComputedStyle(document.activeElement))"
DRAWN = """([root, needs, shows]) => {
    const now = [...document.querySelectorAll(root)].pop()?.dataset ?? {};
    const read = (text) => { try { return JSON.parse(text); } catch { return text; } };
    const drawn = Object.fromEntries(Object.entries(now).map(([name, value]) => [name, read(value)]));
    const all = { ...drawn, ...drawn.shown };
    const same = ([name, value]) => JSON.stringify(all[name]) === JSON.stringify(value);
    return needs.every((name) => name in drawn) && Object.entries(shows).every(same);
}"""


def settled(shown, root, *needs, **shows):
    """Wait until the last widget has drawn, and drawn this:

    ``shows`` are the arguments of its last request.
    """
    shown.page.wait_for_function(DRAWN, arg=[root, ["shown", *needs], shows])
    shown.page.wait_for_function("!document.querySelector('.lp-working')")


def wait_until(true):
    """What ``true()`` gives, once it is true: a page may show an older state for a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {PATIENCE_S} s it is still {value!r}")
        time.sleep(0.05)
    return value


def painted(page):
    """Wait until what a page has drawn is on the screen, and nothing is computed for it."""
    page.wait_for_function("!document.querySelector('.lp-working')")
    page.evaluate(PAINTED)


def exact(page, nth=0):
    """Wait until a timeline has found its rows, and shows all that it has asked for."""
    page.wait_for_function(
        """nth => { const { found, exact } = document.querySelectorAll(".lpt")[nth]?.dataset ?? {};
        return found && exact === "true"; }""",
        arg=nth,
    )
    painted(page)


def drag(page, begin, end):
    """Press the button of the mouse at a place of the page, move, and release it."""
    page.mouse.move(*begin)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def tab_to(page, words):
    """Press Tab until the focus is on what is called so, and stands out."""
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(FOCUSED)
        if name.startswith(words) or name.endswith(words):
            line, width = page.evaluate(OUTLINE)
            assert line != "none"
            assert width >= 1
            return
    raise AssertionError(f"Tab does not lead to {words!r}")


def still(locator):
    """Box of a part of a timeline (px) once it stays where it is: rows are made anew while more
    is found.
    """
    exact(locator.page)
    return locator.bounding_box()
