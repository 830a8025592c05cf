// Names of the rows, with buttons to fold and to pin them.
import { fill, h } from "../base/js/dom.mjs";
import { formatShare } from "../base/js/format.mjs";
import { PATH } from "./rows.mjs";

/** @typedef {(kind: string, item: {rank: number, number?: number, label: string, by?: number}) => void} Act */

/**
 * Fill a gutter with the items of a pane; does nothing where it shows them already. act(kind, item) folds or pins.
 * @param {HTMLElement} gutter
 * @param {import("./types").Item[]} items
 * @param {boolean} pinned
 * @param {Act} act
 */
export function fillGutter(gutter, items, pinned, act) {
  const focused = /** @type {HTMLElement | null} */ (gutter.querySelector(":focus"))?.dataset.key;
  fill(gutter, ...items.map((item) => (item.type === "group" ? groupHead(item, act) : rowHead(item, pinned, act))));
  if (focused) /** @type {HTMLElement | null} */ (gutter.querySelector(`[data-key="${focused}"]`))?.focus();
}

/**
 * What a rank loses, in words.
 * @param {import("./types").GroupItem} item
 */
function lost({ waits }) {
  return waits === null || waits === undefined ? "" : `waits ${formatShare(waits)}`;
}

/**
 * @param {import("./types").GroupItem} item
 * @param {Act} act
 */
function groupHead(item, act) {
  const open = !item.closed;
  const button = h(
    "button",
    {
      type: "button",
      class: "lpt-group",
      "aria-expanded": String(open),
      "data-key": `g${item.rank}`,
      disabled: !item.rows,
      title: [item.label, item.detail, lost(item), item.late ? "the others wait for it" : ""]
        .filter(Boolean)
        .join(", "),
      onclick: () => act("close", item),
    },
    h("i", { class: "lpt-chevron", text: item.rows ? (open ? "▾" : "▸") : "" }),
    h("strong", { text: item.label }),
    item.late ? h("em", { class: "lpt-late", text: "late" }) : null,
    h("span", { text: item.closed && item.waits !== null && item.waits !== undefined ? lost(item) : item.detail }),
  );
  return place(button, item);
}

/**
 * @param {import("./types").RowItem} item
 * @param {boolean} pinned
 * @param {Act} act
 */
function rowHead(item, pinned, act) {
  const foldable = item.levels.length > 1 || item.folded || item.levels[0]?.height > 10;
  const fold = h(
    "button",
    {
      type: "button",
      class: "lpt-fold",
      "aria-expanded": String(!item.folded),
      "data-key": `f${item.number}`,
      "aria-label": `${item.folded ? "Unfold" : "Fold"} ${item.label}`,
      onclick: () => act("fold", item),
      disabled: !foldable,
    },
    h("i", { class: "lpt-chevron", text: item.folded ? "▸" : "▾" }),
  );
  const path = item.kind === PATH;
  const pin = h(
    "button",
    {
      type: "button",
      class: "lpt-pin",
      "aria-pressed": path ? undefined : String(pinned),
      "data-key": `p${item.number}`,
      "aria-label": `${path ? "Hide" : pinned ? "Unpin" : "Pin"} ${item.label}`,
      title: path ? "Hide (X)" : pinned ? "Unpin (P)" : "Pin to the top (P)",
      onclick: () => act(path ? "path" : "pin", item),
    },
    h("i", { text: path ? "×" : pinned ? "★" : "☆" }),
  );
  return place(
    h("div", { class: "lpt-row" }, fold, h("span", { class: "lpt-name", text: item.label, title: item.label }), pin),
    item,
  );
}

/**
 * @param {HTMLElement} el
 * @param {import("./types").Item} item
 */
function place(el, item) {
  el.style.top = `${item.top}px`;
  el.style.height = `${item.height}px`;
  return el;
}
