// Elements, with what a trace says in them as text and never as markup.
import { whenReleased } from "./press.mjs";
import { ask, declareLost, onLost, Superseded, wordsOf } from "./wire.mjs";

/**
 * Element with properties (class, text, on…: listener, aria-… and data-… attributes) and children.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...any} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") el.className = value;
    else if (name === "text") el.textContent = value;
    else if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else if (value === true) el.setAttribute(name, "");
    else el.setAttribute(name, String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) el.append(child);
  return el;
}

/** @typedef {{words: string, at: number, tag: string}} Mark  Words of an element, and its place among its likes. */

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";
/** @param {string | null} text */
const plain = (text) => (text ?? "").replace(/[\d.,\s]+/g, " ").trim();

/**
 * Words that an element is known by: its own label, that around it, else its text.
 * @param {Element} el
 */
function wordsFor(el) {
  return (
    el.getAttribute("aria-label") ?? el.closest("label")?.querySelector("span")?.textContent ?? el.textContent ?? ""
  );
}

/**
 * The element that stands for another one after a redraw: the same words, else the same place among its likes.
 * @param {Element} el
 * @param {string} selector
 * @param {Mark} known
 * @returns {HTMLElement | null}
 */
function counterpart(el, selector, { words, at, tag }) {
  const all = /** @type {HTMLElement[]} */ ([...el.querySelectorAll(selector)]).filter((one) => one.tagName === tag);
  const same = all.filter((one) => wordsFor(one) === words);
  return same.length === 1 ? same[0] : (all.filter((one) => plain(wordsFor(one)) === plain(words))[at] ?? null);
}

/**
 * What is needed to find the counterpart of an element.
 * @param {Element} el
 * @param {string} selector
 * @param {Element} one
 * @returns {Mark}
 */
function mark(el, selector, one) {
  const words = wordsFor(one);
  /** @param {Element} other */
  const like = (other) => other.tagName === one.tagName && plain(wordsFor(other)) === plain(words);
  return { words, tag: one.tagName, at: [...el.querySelectorAll(selector)].filter(like).indexOf(one) };
}

const SCROLLED = ".lp-scroll";

/**
 * What a redraw of an element would lose: open details, the focus, and how far its parts are scrolled.
 * @param {HTMLElement} el
 */
function keep(el) {
  const details = [...el.querySelectorAll("details[open] > summary")].map((one) => mark(el, "summary", one));
  const root = /** @type {Document | ShadowRoot} */ (el.getRootNode());
  const active = root.activeElement;
  const focus = /** @type {HTMLElement | null} */ (active && active !== el && el.contains(active) ? active : null);
  const focused = focus && mark(el, FOCUSABLE, focus);
  const scrolled = [...el.querySelectorAll(SCROLLED)]
    .filter((one) => one.scrollTop || one.scrollLeft)
    .map((one) => ({ ...mark(el, SCROLLED, one), top: one.scrollTop, left: one.scrollLeft }));
  return () => {
    for (const one of details) counterpart(el, "summary", one)?.parentElement?.setAttribute("open", "");
    for (const one of scrolled) counterpart(el, SCROLLED, one)?.scrollTo(one.left, one.top);
    if (focus && focused && root.activeElement !== focus)
      (focus.isConnected ? focus : counterpart(el, FOCUSABLE, focused))?.focus({ preventScroll: true });
  };
}

/**
 * Replace the children of an element. What a user has in hand is not replaced before it is let go; details that were
 * opened stay open; the focus goes to what stands in the place of the element that had it. A child that was there
 * before is not taken out.
 * @template {HTMLElement} E
 * @param {E} el
 * @param {...any} children
 * @returns {E}
 */
export function fill(el, ...children) {
  whenReleased(el, () => replace(el, children));
  return el;
}

/**
 * @param {HTMLElement} el
 * @param {any[]} children
 */
function replace(el, children) {
  const next = children.flat().filter((child) => child !== null && child !== undefined);
  if (!el.firstChild) {
    el.append(...next);
    return;
  }
  const restore = keep(el);
  const stay = new Set(next);
  for (const child of [...el.childNodes]) if (!stay.has(child)) child.remove();
  /** @type {ChildNode | null} */
  let at = el.firstChild;
  for (const child of next) {
    if (child === at) at = child.nextSibling;
    else el.insertBefore(child instanceof Node ? child : document.createTextNode(child), at);
  }
  restore();
}

/**
 * One tab stop for the buttons inside an element: the arrow keys, Home and End move between them.
 * @param {HTMLElement} el
 * @param {{down?: boolean}} [options] down: the buttons stand below each other
 */
export function roving(el, { down = false } = {}) {
  const [next, before] = down ? ["ArrowDown", "ArrowUp"] : ["ArrowRight", "ArrowLeft"];
  /** @param {HTMLElement} one */
  const around = (one) => (one.tagName === "SUMMARY" ? one.parentElement?.parentElement : one)?.closest("details");
  /** @param {HTMLElement} one */
  const own = (one) => around(one) === el.closest("details"); // menus have their own
  const every = () => /** @type {HTMLElement[]} */ ([...el.querySelectorAll("button, summary")]).filter(own);
  const buttons = () => every().filter((one) => one.offsetParent !== null && !one.matches(":disabled"));
  /** @param {HTMLElement | undefined} current */
  const settle = (current) => {
    for (const one of every()) one.tabIndex = one === current ? 0 : -1;
  };
  const first = () => {
    const shown = buttons();
    const all = shown.length ? shown : every(); // none is shown in a hidden tab, and none would be reached later
    if (!all.some((one) => one.tabIndex === 0) || all.filter((one) => one.tabIndex === 0).length > 1) settle(all[0]);
  };
  el.addEventListener("focusin", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches("button, summary") && own(target)) settle(target);
  });
  el.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const all = buttons();
    const at = all.indexOf(/** @type {HTMLElement} */ (event.target));
    const to = { [next]: at + 1, [before]: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    all[(to + all.length) % all.length].focus();
  });
  new MutationObserver(first).observe(el, { childList: true, subtree: true });
  queueMicrotask(first);
}

/**
 * A button that opens a box below it: arrow down leads into it, Escape closes it.
 * @param {string} label
 * @param {HTMLElement} box
 * @returns {HTMLDetailsElement}
 */
export function menuOf(label, box) {
  box.classList.add("lp-menubox");
  const head = h("summary", { text: label });
  const menu = /** @type {HTMLDetailsElement} */ (h("details", { class: "lp-menu" }, head, box));
  roving(box, { down: true });
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (!menu.open || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") {
      menu.open = false;
      head.focus();
    } else if (event.key === "ArrowDown" && event.target === head) {
      event.preventDefault();
      /** @type {HTMLElement | null} */ (box.querySelector("button, input"))?.focus();
    } else if (event.target === head && event.key !== "ArrowUp") return; // the bar moves between its buttons
    event.stopPropagation(); // what is around the menu has keys of its own
  });
  return menu;
}

/**
 * Button whose text is short, with words for what it does.
 * @param {string} text
 * @param {string} label
 * @param {() => void} onclick
 * @returns {HTMLButtonElement}
 */
export function labelledButton(text, label, onclick) {
  return h("button", { type: "button", text, "aria-label": label, title: label, onclick });
}

/**
 * Select with a label: options are [value, text] pairs. Returns {el, select, update(options, value)}, which offers other
 * options in the same element: a list that is open or has the focus stays.
 * @param {string} label
 * @param {any[][]} options
 * @param {any} value
 * @param {(value: string) => void} changed
 */
export function labelled(label, options, value, changed) {
  const select = h("select", { onchange: () => changed(select.value) });
  let offered = "";
  /**
   * @param {any[][]} now
   * @param {any} chosen
   */
  const update = (now, chosen) => {
    const text = JSON.stringify(now);
    if (text !== offered) {
      offered = text;
      fill(
        select,
        now.map(([key, words]) => h("option", { value: key, text: words, selected: String(key) === String(chosen) })),
      );
    } else if (select.value !== String(chosen)) select.value = String(chosen);
  };
  update(options, value);
  return { el: h("label", { class: "lp-label" }, h("span", { text: label }), select), select, update };
}

/**
 * Button that copies a text.
 * @param {string} label
 * @param {() => string | null} text
 */
export function copyButton(label, text) {
  const button = labelledButton("Copy", label, async () => {
    await navigator.clipboard?.writeText(text() ?? "").catch(() => {});
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/**
 * A widget's render function that shows the picture of an exported page, where no kernel would answer.
 * @template {{model: any, el: HTMLElement}} V
 * @template R
 * @param {(view: V) => R} render
 * @returns {(view: V) => R | undefined}
 */
export function orPicture(render) {
  return (view) => {
    const still = view.model.get("still");
    if (!still) return render(view);
    const words = "Exported without a kernel: a picture of what was shown.";
    view.el.append(
      h("img", { src: `data:image/png;base64,${still}`, alt: words, style: "max-width: 100%" }),
      h("p", { text: words }),
    );
    return undefined;
  };
}

/**
 * Save a file where the browser keeps what it loads.
 * @param {string} name
 * @param {any} content  text or bytes
 * @param {string} type
 */
export function saveFile(name, content, type) {
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * A search field, whose text is told when typing pauses or ends. `follow` shows another text, but not over what was
 * typed and is not told yet, or while it is typed in.
 * @param {{label: string, placeholder: string, text: string, changed: (text: string) => void}} options
 */
export function searchField({ label, placeholder, text, changed }) {
  const el = h("input", { type: "search", placeholder, "aria-label": label });
  el.value = text;
  let typing = 0;
  const tell = () => {
    if (!typing) return;
    clearTimeout(typing);
    typing = 0;
    changed(el.value);
  };
  el.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(tell, 150);
  });
  el.addEventListener("change", tell); // Enter, or the field is left
  /** @param {string} now */
  const follow = (now) => {
    if (!typing && !el.matches(":focus")) el.value = now;
  };
  return { el, follow };
}

/**
 * Line that says what is computed, what went wrong and that the kernel is gone.
 * Returns {el, busy, error(text), failed(error), stop()}; put el somewhere into the widget, and its part busy elsewhere
 * if it should not make room there. `failed` says what was thrown by a request, unless a newer one has replaced it.
 * @param {import("./model").Model} model
 * @param {HTMLElement} host
 * @param {{saves?: boolean}} [options]  saves: whether a button saves the selection
 */
export function status(model, host, { saves = true } = {}) {
  const busy = h("span", { class: "lp-busy", role: "status" });
  const error = h("span", { class: "lp-error", role: "alert" });
  const save = async () => {
    try {
      const { msg } = await ask(model, "selection");
      showError("");
      saveFile(msg.file, msg.content, "text/csv");
    } catch (problem) {
      failed(problem);
    }
  };
  const saving = h("button", { type: "button", text: "CSV", title: "Save the selection as CSV", onclick: save });
  const el = h("div", { class: "lp-status" }, busy, error, saves ? saving : null);
  let lost = false;
  const say = () => {
    busy.textContent = lost ? "" : (model.get("busy") ?? "");
    busy.title = busy.textContent;
    el.classList.toggle("lp-working", !lost && Boolean(model.get("busy")));
  };
  model.on("change:busy", say);
  say();
  // the style sheet of an output shows the picture that was saved with a notebook until then
  const alive = () => host.classList.add("lp-live");
  model.on("msg:custom change:busy", alive);
  onLost(model, () => {
    lost = true;
    say();
    error.textContent = "The kernel of this widget is gone: this is its last picture. Run the cell again.";
    host.classList.add("lp-lost");
  });
  // ipywidgets marks views of models whose channel has closed
  const look = () => {
    const view = host.closest(".jupyter-widgets-disconnected, .jp-mod-disconnected");
    if (view) declareLost(model);
  };
  model.on("comm_live_update", () => queueMicrotask(look));
  const watch = new MutationObserver(look);
  for (let up = /** @type {HTMLElement | null} */ (host); up && up !== document.body; up = up.parentElement) {
    watch.observe(up, { attributes: true, attributeFilter: ["class"] });
  }
  // JupyterLab and Notebook tell what becomes of the kernel; elsewhere the first request that cannot be sent does
  const kernel = model.widget_manager?.kernel;
  /**
   * @param {unknown} _
   * @param {string} state
   */
  const follow = (_, state) => {
    if (["restarting", "autorestarting", "terminating", "dead"].includes(state)) declareLost(model);
  };
  kernel?.statusChanged?.connect?.(follow);
  /** @param {string} text */
  const showError = (text) => {
    if (!lost) error.textContent = text;
  };
  /** @param {unknown} error */
  const failed = (error) => {
    if (!(error instanceof Superseded)) showError(wordsOf(error));
  };
  const stop = () => {
    watch.disconnect();
    kernel?.statusChanged?.disconnect?.(follow);
  };
  return { el, busy, error: showError, failed, stop };
}
