// Columns of the table of kernels, and its rows as they come over the wire.
import { h } from "../base/js/dom.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import { nameSpan } from "../base/js/names.mjs";
import { tableSparkline } from "../base/js/table.mjs";
import { typed } from "../base/js/wire.mjs";

/** @typedef {import("./messages").Messages["rows"]["answers"]["rows"][number]} Row */
/** @typedef {import("../base/js/table.mjs").Column} Column */

/**
 * Rows with their sparklines: `series` is the row's part of the packed bytes.
 * @param {{rows: Row[]}} msg
 * @param {DataView[]} buffers
 */
export function kernelRows(msg, buffers) {
  const series = buffers.length ? typed(buffers[0], "u1") : new Uint8Array(0);
  const bins = msg.rows.length ? series.length / msg.rows.length : 0;
  return msg.rows.map((row, i) => ({ ...row, series: series.subarray(i * bins, (i + 1) * bins) }));
}

const SLACK_TIP = "How much longer one launch of this kernel can take before it delays a step; 0: any delay does.";

/**
 * How much longer a kernel may take, or why that is unknown; `why` is null until it was looked for.
 * @param {Row} row
 * @param {string | null} why
 */
export function slackCell(row, why) {
  const known = typeof row.slack_ns === "number";
  const text = known ? formatNs(row.slack_ns) : why === null ? "…" : "unknown";
  const said = why || "The recording does not show all that waits for it.";
  return h("span", { class: known ? "" : "lp-muted", text, title: known || why === null ? undefined : said });
}

/**
 * Columns of the table; the limit only where there are hardware metrics. `why` gives why there is no slack.
 * @param {import("./messages").Traits["colours"]} colours
 * @param {boolean} metrics
 * @param {() => string | null} [why]
 * @returns {Column[]}
 */
export function kernelColumns(colours, metrics, why = () => null) {
  /** @param {string} category */
  const shade = (category) => colours.category[category] ?? colours.category.other;
  /** @param {Row} row */
  const dot = (row) => {
    const square = h("span", { class: "lp-square" });
    square.style.background = shade(row.category);
    return h("span", { class: "lp-key" }, square, h("span", { text: row.category }));
  };
  /** @param {Row} row */
  const share = (row) => {
    const el = h("span", { class: "lp-share", text: formatShare(row.share ?? NaN) });
    el.style.setProperty("--share", `${100 * (row.share ?? 0)}%`);
    return el;
  };
  /**
   * @param {string} name
   * @param {string} title
   * @param {string} [tip]
   * @returns {Column}
   */
  const time = (name, title, tip) => ({
    name,
    title,
    tip,
    number: true,
    width: 76,
    cell: (row) => formatNs(row[name]),
  });
  /**
   * @param {string} name
   * @param {number} width
   * @returns {Column}
   */
  const place = (name, width) => ({ name, title: name, width, cell: (row) => String(row[name] ?? "") });
  const shareTip = "of the time of all rows; overlapping kernels count in full";
  const limitTip = "what bounds it, and the share of its roof that it reaches";
  /** @type {Column} */
  const limit = { name: "limit", title: "limit", tip: limitTip, width: 116, cell: (row) => row.limit ?? "" };
  return [
    {
      name: "name",
      title: "kernel",
      width: 250,
      of: (row) => row.label,
      cell: (row, shown) => nameSpan(row.label, shown, row.name),
    },
    time("total_ns", "total"),
    { name: "share", title: "share", tip: shareTip, number: true, width: 74, cell: share },
    { name: "count", title: "launches", number: true, width: 82, cell: (row) => formatNumber(row.count) },
    time("mean_ns", "mean"),
    time("p99_ns", "p99", "99th percentile"),
    {
      name: "slack_ns",
      title: "slack",
      tip: SLACK_TIP,
      number: true,
      width: 82,
      cell: (row) => slackCell(row, why()),
    },
    {
      name: "series",
      title: "over time",
      sortable: false,
      width: 128,
      cell: (row) => tableSparkline(row.series, shade(row.category), 112),
    },
    ...(metrics ? [limit] : []),
    { name: "category", title: "category", width: 122, cell: dot },
    place("phase", 92),
    place("layer", 72),
    place("stage", 124),
    place("stream", 72),
  ];
}
