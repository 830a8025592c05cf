// Columns of the table of changes.
import { h } from "../base/js/dom.mjs";
import { formatNs, formatNumber } from "../base/js/format.mjs";
import { nameSpan } from "../base/js/names.mjs";

/** @typedef {import("./messages").Messages["rows"]["answers"]["rows"][number]} Row */
/** @typedef {import("../base/js/table.mjs").Column} Column */
/** @typedef {import("./messages").Traits["by"][number]} Label */

/** @type {Label[]} */
const COMPARE_LABELS = ["layer", "stage", "category", "name"];

/**
 * Change in words: the difference with its sign, and the factor.
 * @param {Row} row
 */
export function compareChange({ delta_ns: delta, ratio }) {
  if (delta === null || delta === undefined) return "";
  const size = `${delta > 0 ? "+" : delta < 0 ? "−" : ""}${formatNs(Math.abs(delta))}`;
  return !ratio ? size : `${size} (×${ratio.toFixed(2)})`;
}

/**
 * Columns of the table of changes; `largest` gives the change whose bar is full.
 * @param {Label[]} by
 * @param {string[]} names
 * @param {import("./messages").Model} model
 * @param {() => number} largest
 * @returns {Column[]}
 */
export function compareColumns(by, names, model, largest) {
  const colours = model.get("colours");
  /** @type {(kind: "stage" | "category") => (row: Row) => Element} */
  const square = (kind) => (row) => {
    const el = h("span", { class: "lp-square" });
    el.style.background = colours[kind][row[kind]] ?? colours[kind].other;
    return h("span", { class: "lp-key" }, el, h("span", { text: row[kind] ?? "other" }));
  };
  const texts = { layer: 64, stage: 138, category: 126, name: 240 };
  /** @type {(name: Label) => Column} */
  const label = (name) => ({
    name,
    title: name,
    width: texts[name],
    number: name === "layer",
    cell: name === "stage" || name === "category" ? square(name) : (row) => String(row[name] ?? ""),
  });
  /** @type {(row: Row) => string} */
  const named = (row) => row.readable ?? row.name ?? "";
  /** @type {Column} */
  const kernel = {
    ...label("name"),
    title: "kernel",
    of: named,
    cell: (row, shown) => nameSpan(named(row), shown, row.name ?? undefined),
  };
  /** @type {(name: string, title: string) => Column} */
  const time = (name, title) => ({
    name,
    title,
    number: true,
    width: 84,
    cell: (row) => (row[name] === null ? "" : formatNs(row[name])),
  });
  /** @param {Row} row */
  const word = (row) => h("span", { class: `lp-verdict lp-${row.status}`, text: model.get("statuses")[row.status] });
  /** @param {Row} row */
  const bar = (row) => {
    const el = h("span", { class: "lp-change" }, h("i"), h("span", { text: compareChange(row) }));
    const share = largest() ? Math.abs(row.delta_ns ?? 0) / largest() : 0;
    el.firstChild.className = row.delta_ns > 0 ? "lp-more" : "lp-less";
    el.firstChild.style.width = `${share * 60}px`;
    return el;
  };
  /** @type {(name: string, title: string) => Column} */
  const count = (name, title) => ({
    name,
    title,
    number: true,
    width: 84,
    cell: (row) => (row[name] === null ? "" : formatNumber(row[name])),
  });
  return [
    ...COMPARE_LABELS.filter((name) => by.includes(name)).map((name) => (name === "name" ? kernel : label(name))),
    { name: "status", title: "verdict", width: 120, cell: word },
    time("a_ns", names[0]),
    time("b_ns", names[1]),
    { name: "delta_ns", title: "change", tip: "by its size", number: true, width: 216, cell: bar },
    count("a_count", `events in ${names[0]}`),
    count("b_count", `events in ${names[1]}`),
  ].map((column) => ({ ...column, width: Math.max(column.width, 22 + 7.2 * column.title.length) }));
}
