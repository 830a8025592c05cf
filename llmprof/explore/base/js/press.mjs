// What is under a pressed pointer stays: a browser sends a click only to an element that saw the press and the release.

/** @type {Element | null} */
let pressed = null;
let listening = false;
/** @type {Map<Element, () => void>} */
const waiting = new Map();

/** Work that has waited for the release, in the order in which it came. */
function release() {
  pressed = null;
  const todo = [...waiting.values()];
  waiting.clear();
  for (const work of todo) work();
}

function listen() {
  listening = true;
  const soon = () => setTimeout(release, 0); // the click comes right after the release
  addEventListener("pointerdown", (event) => (pressed = event.target instanceof Element ? event.target : null), true);
  for (const type of ["pointerup", "pointercancel", "change", "keydown", "blur"]) {
    addEventListener(type, () => pressed && soon(), true);
  }
  // the release of a press that opened the list of a select is never told
  addEventListener("pointermove", (event) => pressed && event.buttons === 0 && soon(), true);
}

/**
 * Replace the content of an element, but not while a pointer is pressed on something in it: the click would be lost.
 * Of work that waits for the same element only the newest is done.
 * @param {Element} el
 * @param {() => void} work
 */
export function whenReleased(el, work) {
  if (!listening) listen();
  if (pressed && pressed !== el && el.contains(pressed)) waiting.set(el, work);
  else {
    waiting.delete(el);
    work();
  }
}
