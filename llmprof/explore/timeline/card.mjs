// The card beside the pointer, the details below the rows and the help.
import { fill, h } from "../base/js/dom.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import { tableGrid } from "../base/js/table.mjs";
import { KEYS } from "./keys.mjs";

/** Card that follows the pointer inside a host. */
export function makeCard(host) {
  const el = h("div", { class: "lpt-card", "aria-hidden": "true" });
  host.append(el);
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
  const el = h("div", { class: "lpt-details", role: "region", "aria-label": "Selection" });
  const empty = () =>
    fill(
      el,
      h("p", {
        class: "lpt-hint",
        text: "Click an event or drag over a range of time to select. Press ? for all keys.",
      }),
    );
  const show = (title, colour, facts, actions, more = null) => {
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

/** Help over the widget: a dialog with all keys. */
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
      before = host.getRootNode().activeElement;
      close.focus();
    } else {
      before?.focus?.();
    }
  };
  close.addEventListener("click", () => toggle(false));
  return { toggle, open: () => !el.hidden };
}

/** Lines of the card for an event of a view. */
export function eventLines(view, i, item, keys) {
  const key = keys[view.code[i]];
  const lines = [["duration", formatNs(view.dur[i])]];
  if (item.kind === "stream" || item.kind === "idle") lines.unshift([key.kind, key.name]);
  if (item.kind === "requests") lines.unshift(["request", item.label]);
  if (item.kind === "critical_path" && key.kind === "path") lines.unshift(["part", key.name]);
  if (item.kind === "collectives") lines.unshift(["part", key.name]);
  return lines;
}

const NAME_ORDER = { name: (row) => row.name.toLowerCase() };

/** Names of a selected range as a table that can be sorted; a click looks for the name. */
export function namesTable({ rows, total }, colours, pick) {
  const time = (name, title, tip) => ({
    name,
    title,
    tip,
    number: true,
    width: 92,
    cell: (row) => formatNs(row[name]),
  });
  const named = (row) => {
    const swatch = h("span", { class: "lp-square" });
    swatch.style.background = colours[row.code];
    return h("span", { class: "lp-key", title: row.name }, swatch, h("span", { text: row.name }));
  };
  const sorted = (sort) => {
    const column = sort.replace(/^-/, "");
    const key = NAME_ORDER[column] ?? ((row) => row[column] ?? -1);
    const order = [...rows].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
    if (sort.startsWith("-")) order.reverse();
    grid.order(sort);
    grid.show(order.length, order);
  };
  const grid = tableGrid({
    label: "Names in the selection",
    height: 220,
    columns: [
      { name: "name", title: "name", width: 320, cell: named },
      { name: "count", title: "count", number: true, width: 76, cell: (row) => formatNumber(row.count) },
      time("total_ns", "total", "the parts inside the selected range"),
      {
        name: "share",
        title: "share of sum",
        tip: "of the summed time of the selection, above",
        number: true,
        width: 100,
        cell: (row) => formatShare(row.share ?? NaN),
      },
      time("mean_ns", "mean", "of whole spans"),
      time("p99_ns", "p99", "99th percentile of whole spans"),
    ],
    load: () => {},
    sorted,
    pick: (_, row) => pick(row.name),
  });
  sorted("-total_ns");
  const cut =
    total > rows.length
      ? h("p", {
          class: "lpt-hint",
          text: `The ${formatNumber(rows.length)} names with the most time of ${formatNumber(total)}.`,
        })
      : null;
  return h("div", { class: "lpt-names" }, grid.el, cut);
}
