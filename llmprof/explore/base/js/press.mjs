// What a user has in hand stays: what is under a pressed pointer or key, since a browser sends a click only to an
// element that saw the press and the release, and a field with half-typed text in it.

/** @type {Element | null} */
let pressed = null;
/** @type {Element | null} */
let typing = null;
let listening = false;
/** @type {Map<Element, () => void>} */
const waiting = new Map();

/** Fields whose text counts when it is finished; a search field is followed while it is typed. */
const FIELDS = "input[type=text], input[type=number], textarea";

/** @param {Event} event */
const elementOf = (event) => (event.target instanceof Element ? event.target : null);

/** Work that waits for what is no longer in hand, in the order in which it came. */
function release() {
  for (const [el, work] of [...waiting]) {
    if (inHand(el)) continue;
    waiting.delete(el);
    work();
  }
}

const soon = () => setTimeout(release, 0); // a click and a change come right after the release

function letGo() {
  if (!pressed) return;
  const was = pressed;
  setTimeout(() => {
    if (pressed === was) pressed = null;
    release();
  }, 0);
}

function typed() {
  if (!typing) return;
  typing = null;
  soon();
}

function listen() {
  listening = true;
  /**
   * @template {keyof WindowEventMap} T
   * @param {T} type
   * @param {(event: WindowEventMap[T]) => void} listener
   */
  const on = (type, listener) => addEventListener(type, listener, true);
  on("pointerdown", (event) => (pressed = elementOf(event)));
  for (const type of /** @type {const} */ (["pointerup", "pointercancel", "change", "keyup", "blur"])) on(type, letGo);
  // what a click does may draw anew what was clicked
  on("click", () => {
    pressed = null;
    soon();
  });
  // the release of a press that opened the list of a select is never told
  on("pointermove", (event) => event.buttons === 0 && letGo());
  on("keydown", (event) => {
    letGo();
    const el = elementOf(event);
    if (event.key === " " && el?.matches("button, summary, input")) pressed = el; // clicked when the key comes up
  });
  on("input", (event) => (typing = elementOf(event)?.matches(FIELDS) ? elementOf(event) : typing));
  for (const type of /** @type {const} */ (["change", "blur"])) on(type, typed);
}

/**
 * Whether a user has something in an element in hand: it is pressed, or its text is half typed.
 * @param {Element} el
 */
export function inHand(el) {
  if (!listening) listen();
  return [pressed, typing].some((one) => one && el.contains(one) && (one !== el || el.matches("select")));
}

/**
 * Replace the content of an element, but not while something in it is in hand. Of work that waits for the same element
 * only the newest is done.
 * @param {Element} el
 * @param {() => void} work
 */
export function whenReleased(el, work) {
  if (inHand(el)) waiting.set(el, work);
  else {
    waiting.delete(el);
    work();
  }
}

/**
 * Where an event leads: -1 (back), 1 (forward) or 0.
 * @param {Partial<KeyboardEvent & MouseEvent>} event
 */
export function wayOf(event) {
  if (event.type === "keydown") {
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return 0;
    return event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  }
  return event.button === 3 ? -1 : event.button === 4 ? 1 : 0;
}
