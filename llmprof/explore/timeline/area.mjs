// What is in a selected area: a tab for each kind of row, with sums, percentiles and a table. Names begin with "area".
import { h } from "../base/js/dom.mjs";
import { formatNumber, formatShare, nsAs } from "../base/js/format.mjs";
import { tableGrid } from "../base/js/table.mjs";
import { formatSample } from "./draw.mjs";
import { KINDS } from "./rows.mjs";

/** @typedef {import("./messages").Messages["span"]["answers"]} Answer */
/** @typedef {import("../base/js/table.mjs").Column} Column */

/**
 * Name of a kind in its tab.
 * @param {string} kind
 */
export function areaTitle(kind) {
  /** @type {Record<string, string>} */
  const own = {
    own: "host, own time",
    stream: "kernels and copies",
    flows: "launches",
    critical_path: "critical path",
  };
  return own[kind] ?? KINDS[kind] ?? kind;
}

/**
 * Tabs of the kinds; no tabs where there is one kind only.
 * @param {Answer} answer
 * @param {(kind: string) => void} choose
 */
function areaTabs({ kinds, kind }, choose) {
  if (kinds.length < 2) return null;
  const tabs = kinds.map((part) => {
    const on = part.kind === kind;
    return h("button", {
      type: "button",
      role: "tab",
      class: "lpt-tab",
      "aria-selected": String(on),
      tabindex: on ? "0" : "-1",
      text: `${areaTitle(part.kind)} ${formatNumber(part.count)}`,
      onclick: () => choose(part.kind),
    });
  });
  const el = h("div", { class: "lpt-tabs", role: "tablist", "aria-label": "Kinds in the selection" }, tabs);
  el.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const at = tabs.indexOf(event.target);
    if (!by || at < 0 || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const next = tabs[(at + by + tabs.length) % tabs.length];
    next.focus(); // which stays on it when the panel is drawn anew
    next.click();
  });
  return el;
}

/**
 * Tabs, and the table of the kind that is shown; a click on a name looks for it.
 * @param {Answer} answer
 * @param {string[]} colours
 * @param {{pick: (name: string) => void, choose: (kind: string) => void}} acts
 */
export function areaPanel(answer, colours, { pick, choose }) {
  const table = areaTable(answer, colours, pick);
  const shown = answer.rows.length + answer.counters.length + answer.flows.length;
  const cut =
    answer.total > shown
      ? `The ${formatNumber(shown)} names that come first, of ${formatNumber(answer.total)}.`
      : shown
        ? ""
        : "Nothing is in this selection: drag over rows where something ran.";
  return h(
    "div",
    { class: "lpt-names" },
    areaTabs(answer, choose),
    shown ? table : null,
    cut ? h("p", { class: "lpt-hint", text: cut }) : null,
  );
}

/**
 * @param {Answer} answer
 * @param {string[]} colours
 * @param {(name: string) => void} pick
 */
function areaTable(answer, colours, pick) {
  /** @type {Record<string, any>[]} */
  const rows = answer.kind === "counter" ? answer.counters : answer.kind === "flows" ? answer.flows : answer.rows;
  /** @type {(name: string, title: string, tip: string) => Column} */
  const time = (name, title, tip) => {
    // sums have one unit, and what is of one span has one
    const fields = name === "total_ns" ? [name] : ["mean_ns", "p50_ns", "p99_ns", "most_ns"];
    const words = nsAs(rows.flatMap((row) => fields.map((field) => row[field])));
    return { name, title, tip, number: true, width: 96, cell: (row) => words(row[name]) };
  };
  /** @param {Record<string, any>} row */
  const named = (row) => {
    const swatch = h("span", { class: "lp-square" });
    swatch.style.background = row.code === undefined ? "transparent" : colours[row.code];
    return h("span", { class: "lp-key", title: row.name }, swatch, h("span", { text: row.name }));
  };
  /** @type {Column} */
  const name = { name: "name", title: "name", width: 320, cell: named };
  /** @type {Column} */
  const count = { name: "count", title: "count", number: true, width: 76, cell: (row) => formatNumber(row.count) };
  /** @type {(field: string, title: string, tip: string) => Column} */
  const value = (field, title, tip) => ({
    name: field,
    title,
    tip,
    number: true,
    width: 100,
    cell: (row) => (row[field] === null ? "unknown" : formatSample(row[field], row.unit)),
  });
  /** @type {Column} */
  const share = {
    name: "share",
    title: "share of sum",
    tip: "of the summed time of the selection, above",
    number: true,
    width: 100,
    cell: (row) => formatShare(row.share ?? NaN),
  };
  /** @type {Record<string, Column[]>} */
  const columns = {
    counter: [
      name,
      { ...count, title: "samples" },
      value("mean", "mean", "over time"),
      value("least", "least", ""),
      value("most", "most", ""),
      value("first", "at the begin", ""),
      value("last", "at the end", ""),
    ],
    flows: [
      { ...name, title: "launched" },
      count,
      time("mean_ns", "mean delay", "from the begin of the call to that of the kernel or copy"),
      time("p50_ns", "median", "of the delay"),
      time("p99_ns", "p99", "99th percentile of the delay"),
      time("most_ns", "longest", "delay"),
    ],
    spans: [
      name,
      count,
      time("total_ns", "total", "the parts inside the selected range"),
      share,
      time("mean_ns", "mean", "of whole spans"),
      time("p50_ns", "median", "of whole spans"),
      time("p99_ns", "p99", "99th percentile of whole spans"),
    ],
  };
  /** @param {string} sort */
  const sorted = (sort) => {
    const column = sort.replace(/^-/, "");
    /** @param {Record<string, any>} row */
    const key = (row) => (column === "name" ? row.name.toLowerCase() : (row[column] ?? -1));
    const order = [...rows].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
    if (sort.startsWith("-")) order.reverse();
    grid.order(sort);
    grid.show(order.length, order);
  };
  const grid = tableGrid({
    label: "Names in the selection",
    height: 220,
    columns: columns[answer.kind] ?? columns.spans,
    load: () => {},
    sorted,
    pick: (_, row) => pick(row.name),
  });
  sorted(answer.kind === "flows" ? "-count" : answer.kind === "counter" ? "name" : "-total_ns");
  return grid.el;
}
