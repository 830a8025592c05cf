// Columns of the table of requests, and the bar of what each took.
import { h } from "../base/js/dom.mjs";
import { formatNs, formatNumber } from "../base/js/format.mjs";

/** @typedef {import("./messages").LatencyPart} Part */
/** @typedef {import("./messages").Messages["rows"]["answers"]["rows"][number]} Row */

const REQUEST_BAR = 300;

/**
 * Widths (px) of the parts of a row, in their order, where the longest request fills the bar.
 * @param {Row} row
 * @param {Part[]} parts
 * @param {number} longest
 */
export function requestWidths(row, parts, longest, full = REQUEST_BAR) {
  const scale = longest > 0 ? full / longest : 0;
  return parts.map(({ name, words, colour }) => ({
    words,
    colour,
    ns: row[name] ?? 0,
    width: Math.max(0, row[name] ?? 0) * scale,
  }));
}

/**
 * Columns of the table; `shown` gives the parts and the longest latency.
 * @param {() => {parts: Part[], longest: number}} shown
 * @returns {import("../base/js/table.mjs").Column[]}
 */
export function requestColumns(shown) {
  /**
   * @param {string} name
   * @param {string} title
   * @param {string} [tip]
   * @returns {import("../base/js/table.mjs").Column}
   */
  const time = (name, title, tip) => ({
    name,
    title,
    tip,
    number: true,
    width: 100,
    cell: (row) => (row[name] === null ? "" : formatNs(row[name])),
  });
  /**
   * @param {string} name
   * @param {string} title
   * @returns {import("../base/js/table.mjs").Column}
   */
  const count = (name, title, width = 74) => ({
    name,
    title,
    number: true,
    width,
    cell: (row) => (row[name] === null ? "" : formatNumber(row[name])),
  });
  /** @param {Row} row */
  const bar = (row) => {
    const { parts, longest } = shown();
    const pieces = requestWidths(row, parts, longest).filter((piece) => piece.width > 0);
    const said = pieces.map((piece) => `${piece.words}: ${formatNs(piece.ns)}`).join("\n");
    return h(
      "div",
      { class: "lp-parts", title: said, role: "img", "aria-label": said },
      pieces.map((piece) => {
        const part = h("i");
        part.style.width = `${piece.width}px`;
        part.style.background = piece.colour;
        return part;
      }),
    );
  };
  return [
    count("request", "request"),
    time("start_ns", "arrived", "from the start of the trace"),
    count("prompt_tokens", "tokens in"),
    count("output_tokens", "tokens out", 82),
    time("ttft_ns", "first token"),
    time("e2e_ns", "end to end"),
    time("max_gap_ns", "longest gap", "the longest time from one token to the next"),
    { name: "parts", title: "what it took", width: REQUEST_BAR + 18, sortable: false, cell: bar },
    { name: "reason", title: "mostly", width: 290, cell: (row) => row.reason },
  ];
}
