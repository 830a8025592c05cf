// Columns of the table of kernels, and its rows as they come over the wire.
import { h } from "../base/js/dom.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import { tableSparkline } from "../base/js/table.mjs";
import { typed } from "../base/js/wire.mjs";

/** Rows with their sparklines: `series` is the row's part of the packed bytes. */
export function kernelRows(msg, buffers) {
  const series = buffers.length ? typed(buffers[0], "u1") : new Uint8Array(0);
  const bins = msg.rows.length ? series.length / msg.rows.length : 0;
  return msg.rows.map((row, i) => ({ ...row, series: series.subarray(i * bins, (i + 1) * bins) }));
}

/** Columns of the table; the limit only where there are hardware metrics. */
export function kernelColumns(colours, metrics) {
  const shade = (category) => colours.category[category] ?? colours.category.other;
  const dot = (row) => {
    const square = h("span", { class: "lp-square" });
    square.style.background = shade(row.category);
    return h("span", { class: "lp-key" }, square, h("span", { text: row.category }));
  };
  const share = (row) => {
    const el = h("span", { class: "lp-share", text: formatShare(row.share ?? NaN) });
    el.style.setProperty("--share", `${100 * (row.share ?? 0)}%`);
    return el;
  };
  const time = (name, title, tip) => ({
    name,
    title,
    tip,
    number: true,
    width: 76,
    cell: (row) => formatNs(row[name]),
  });
  const place = (name, width) => ({ name, title: name, width, cell: (row) => String(row[name] ?? "") });
  const shareTip = "of the time of all rows; overlapping kernels count in full";
  const limitTip = "what bounds it, and the share of its roof that it reaches";
  return [
    { name: "name", title: "kernel", width: 250, cell: (row) => h("span", { text: row.label, title: row.name }) },
    time("total_ns", "total"),
    { name: "share", title: "share", tip: shareTip, number: true, width: 74, cell: share },
    { name: "count", title: "launches", number: true, width: 82, cell: (row) => formatNumber(row.count) },
    time("mean_ns", "mean"),
    time("p99_ns", "p99", "99th percentile"),
    {
      name: "series",
      title: "over time",
      sortable: false,
      width: 128,
      cell: (row) => tableSparkline(row.series, shade(row.category), 112),
    },
    ...(metrics ? [{ name: "limit", title: "limit", tip: limitTip, width: 116, cell: (row) => row.limit ?? "" }] : []),
    { name: "category", title: "category", width: 122, cell: dot },
    place("phase", 92),
    place("layer", 72),
    place("stage", 124),
    place("stream", 72),
  ];
}
