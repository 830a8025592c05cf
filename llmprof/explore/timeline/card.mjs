// The card beside the pointer, the details below the rows and the help.
import { fill, h } from "../base/js/dom.mjs";
import { formatNs } from "../base/js/format.mjs";
import { KEYS } from "./keys.mjs";

/**
 * Card that follows the pointer inside a host.
 * @param {HTMLElement} host
 */
export function makeCard(host) {
  const el = h("div", { class: "lpt-card", "aria-hidden": "true" });
  host.append(el);
  /**
   * @param {number} x
   * @param {number} y
   * @param {string} title
   * @param {[string, string][]} rows
   */
  const show = (x, y, title, rows) => {
    fill(
      el,
      h("strong", { text: title }),
      ...rows.map(([label, text]) => h("div", {}, h("span", { text: label }), h("b", { text }))),
    );
    el.style.display = "block";
    const box = host.getBoundingClientRect();
    const [w, t] = [el.offsetWidth, el.offsetHeight];
    const left = x + 16 + w > box.width ? Math.max(4, x - w - 12) : x + 16;
    const top = y + 18 + t > box.height ? Math.max(4, y - t - 10) : y + 18;
    el.style.transform = `translate(${left}px, ${top}px)`;
  };
  return { show, hide: () => (el.style.display = "none") };
}

/** Panel with the facts about what is selected; actions are [text, key, listener]. */
export function makeDetails() {
  const el = h("div", { class: "lpt-details", role: "group", "aria-label": "Selection" });
  const empty = () =>
    fill(
      el,
      h("p", {
        class: "lpt-hint",
        text: "Click an event or drag over a range of time to select. Press ? for all keys.",
      }),
    );
  /**
   * @param {string} title
   * @param {string | null} colour
   * @param {[string, string][]} facts
   * @param {[string, string, () => void][]} actions
   * @param {{more?: HTMLElement | null, waits?: boolean}} [options] waits: facts are on their way, and find their room kept
   */
  const show = (title, colour, facts, actions, { more = null, waits = false } = {}) => {
    const swatch = h("i", { class: "lpt-swatch" });
    swatch.hidden = !colour;
    if (colour) swatch.style.background = colour;
    const buttons = actions.map(([text, key, onclick]) =>
      h("button", { type: "button", text, title: key ? `Key: ${key}` : undefined, onclick }),
    );
    const list = h(
      "dl",
      {},
      ...facts.map(([label, text]) => h("div", {}, h("dt", { text: label }), h("dd", { text, title: text }))),
    );
    el.style.minHeight = waits ? `${el.offsetHeight}px` : "";
    el.setAttribute("aria-busy", String(waits));
    fill(
      el,
      h(
        "div",
        { class: "lpt-title" },
        swatch,
        h("strong", { text: title, title }),
        h("span", { class: "lpt-actions" }, ...buttons),
      ),
      list,
      more,
    );
  };
  empty();
  return { el, empty, show };
}

/**
 * Help over the widget: a dialog with all keys.
 * @param {HTMLElement} host
 */
export function makeHelp(host) {
  const close = h("button", { type: "button", text: "Close" });
  const rows = KEYS.map(([key, text]) => h("tr", {}, h("th", { scope: "row", text: key }), h("td", { text })));
  const el = h(
    "div",
    { class: "lpt-help", role: "dialog", "aria-label": "Keys of the timeline", hidden: true },
    h("table", {}, h("tbody", {}, ...rows)),
    close,
  );
  host.append(el);
  /** @type {HTMLElement | null} */
  let before = null;
  const toggle = (open = el.hidden) => {
    if (open === !el.hidden) return;
    el.hidden = !open;
    if (open) {
      before = /** @type {HTMLElement | null} */ (/** @type {Document} */ (host.getRootNode()).activeElement);
      close.focus();
    } else {
      before?.focus?.();
    }
  };
  close.addEventListener("click", () => toggle(false));
  return { el, toggle, open: () => !el.hidden };
}

/**
 * Lines of the card for an event of a view.
 * @param {Pick<import("./types").View, "code" | "dur">} view
 * @param {number} i
 * @param {Pick<import("./messages").Described, "kind" | "label">} item
 * @param {Pick<import("./messages").Key, "kind" | "name">[]} keys
 */
export function eventLines(view, i, item, keys) {
  const key = keys[view.code[i]];
  /** @type {[string, string][]} */
  const lines = [["duration", formatNs(view.dur[i])]];
  if (item.kind === "stream" || item.kind === "idle") lines.unshift([key.kind, key.name]);
  if (item.kind === "requests") lines.unshift(["request", item.label]);
  if (item.kind === "critical_path" && key.kind === "path") lines.unshift(["part", key.name]);
  if (item.kind === "collectives") lines.unshift(["part", key.name]);
  return lines;
}
