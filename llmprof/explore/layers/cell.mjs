// What is inside a cell of the heat map: its stages beside the typical layer, its kernels and operators.
import { textWidth } from "../base/js/canvas.mjs";
import { fill, h } from "../base/js/dom.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import {
  PLOT_TEXT,
  plotLabel,
  plotLine,
  plotLinear,
  plotPanel,
  plotPart,
  plotTable,
  plotText,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";

/**
 * @typedef {import("./messages").Messages["cell"]["answers"]} Inside
 * @typedef {Inside["stages"][number]} Stage
 */
/** @typedef {{fills: Record<string, string>, slackless: string | null, chosen: () => string | null, pick: (stage: string) => void,
 *   colours: () => import("../base/js/theme.mjs").Colours}} Options */

/** @type {import("../base/js/plot.mjs").TableColumn[]} */
const CELL_COLUMNS = [
  { name: "readable", title: "kernel", names: true },
  { name: "total_ns", title: "time", number: true, format: (value) => formatNs(value) },
  { name: "share", title: "share", number: true, format: formatShare },
  { name: "count", title: "runs", number: true, format: (value) => formatNumber(value) },
  {
    name: "slack_ns",
    title: "slack",
    tip: "How much longer one of these launches can take before it delays a step.",
    number: true,
    format: (value) => (value === undefined ? "…" : value === null ? "unknown" : formatNs(value)),
  },
  { name: "stage", title: "stage" },
  { name: "op", title: "operator", format: (value) => value ?? "unknown" },
];

/**
 * Heading of a cell: what it is, how long it takes, and how that is beside the typical layer.
 * @param {Pick<Inside, "step" | "layer" | "rank" | "stage" | "slack_ns"> & {cell: NonNullable<Inside["cell"]>}} msg
 */
export function cellTitle(msg) {
  const { cell } = msg;
  const share = cell.typical_ns ? cell.gap_ns / cell.typical_ns : null;
  const gap = share === null ? "" : `, ${besideTypical(share)}`;
  const what = `${msg.stage ? `${msg.stage} of layer` : "Layer"} ${msg.layer}${cell.kind ? ` (${cell.kind})` : ""}`;
  const exposed = cell.communication_ns
    ? `. Exposed communication ${formatNs(cell.exposed_communication_ns ?? 0)} of ${formatNs(cell.communication_ns)}`
    : "";
  const free = typeof msg.slack_ns === "number" ? `. ${slackWords(msg.slack_ns)}` : "";
  return `${what} in step ${msg.step} (${cell.phase ?? "no phase"}, rank ${msg.rank}): ${formatNs(cell.dur_ns)}${gap}${exposed}${free}`;
}

/**
 * A time beside the typical one, in words; from twice as long on as a multiple.
 * @param {number} share
 */
function besideTypical(share) {
  if (share >= 1) return `${(1 + share).toFixed(1)} times the typical layer`;
  return `${formatShare(Math.abs(share))} ${share < 0 ? "less" : "more"} than the typical layer`;
}

/**
 * What the slack of a cell means.
 * @param {number} ns
 */
export function slackWords(ns) {
  return ns > 0 ? `It could take ${formatNs(ns)} longer without delaying a step` : "Any delay here delays a step";
}

/**
 * Stages of a cell as they are shown: they stay in the page while only what stands beside them changes, so that who
 * uses them by the keyboard stays at a bar.
 * @typedef {object} Kept
 * @property {string} key
 * @property {string | null} stage
 * @property {import("../base/js/plot.mjs").Panel} panel
 * @property {HTMLElement} left
 * @property {HTMLElement} columns
 */

/**
 * @param {Inside} msg
 * @param {Options} options
 * @param {Kept | null} before
 * @returns {Kept}
 */
function keptStages(msg, options, before) {
  const key = JSON.stringify([msg.rank, msg.step, msg.layer, msg.stages]);
  const stage = msg.stage ?? null;
  if (before?.key === key) {
    if (before.stage !== stage) before.panel.redraw();
    return { ...before, stage };
  }
  const panel = cellStages(msg.stages, options);
  const left = plotPart("Stages: bar this layer, line the typical one", panel.el).el;
  return { key, stage, panel, left, columns: h("div", { class: "lp-columns" }) };
}

/**
 * Elements that show a cell, and the stages among them.
 * @param {Inside} msg
 * @param {Options} options
 * @param {Kept | null} [before]  the stages that are in the page
 * @returns {{parts: (HTMLElement | null)[], kept: Kept | null}}
 */
export function cellParts(msg, options, before = null) {
  const { cell } = msg;
  if (!cell) {
    const text = `Rank ${msg.rank} has no layer ${msg.layer} in step ${msg.step}.`;
    return { parts: [h("p", { class: "lp-note", text })], kept: null };
  }
  const kept = keptStages(msg, options, before);
  const unknown = options.slackless || "The recording does not show all that waits for it.";
  const note =
    options.slackless !== null && typeof msg.slack_ns !== "number"
      ? h("p", { class: "lp-note", text: `How much longer it may take is unknown: ${unknown}` })
      : null;
  const table = plotTable(CELL_COLUMNS, msg.kernels, { caption: "Kernels and operators of the cell" });
  const shown = msg.kernels.length;
  const cut = msg.more ? ` (the longest ${shown} of ${shown + msg.more})` : "";
  fill(kept.columns, kept.left, plotPart(`Kernels and operators${cut}`, table).el);
  return { parts: [plotPart(cellTitle({ ...msg, cell })).el, note, kept.columns], kept };
}

/**
 * @param {Stage[]} rows
 * @param {Options} options
 */
function cellStages(rows, { fills, chosen, colours, pick }) {
  const most = Math.max(1, ...rows.map((row) => Math.max(row.dur_ns, row.typical_ns ?? 0)));
  const unit = plotUnit(most);
  const line = 22;
  return plotPanel({
    label: "Time of each stage of the cell beside the typical layer. Enter looks at one stage only.",
    height: rows.length * line + 44,
    colours,
    draw: (context, width, _height, now) => {
      const left = Math.max(...rows.map((row) => textWidth(context, row.stage, PLOT_TEXT)), 20) + 12;
      const scale = plotLinear([0, most / unit.ns], [left, Math.max(left + 40, width - 66)]);
      for (const tick of plotTicks(0, most / unit.ns, Math.max(2, width / 130))) {
        const x = Math.round(scale.to(tick)) + 0.5;
        plotLine(context, [x, 0], [x, rows.length * line], now.faint);
        plotText(context, plotLabel(tick), x, rows.length * line + 4, now.muted, { align: "center", base: "top" });
      }
      plotText(context, `time (${unit.symbol})`, (left + width - 66) / 2, rows.length * line + 22, now.muted, {
        align: "center",
        base: "top",
      });
      return rows.map((row, i) => {
        const y = i * line;
        const end = scale.to(row.dur_ns / unit.ns);
        const bold = chosen() === row.stage;
        plotText(context, row.stage, left - 8, y + line / 2, bold ? now.accent : now.ink, { align: "right", bold });
        context.fillStyle = fills[row.stage] ?? fills.other;
        context.fillRect(left, y + 4, Math.max(1, end - left), line - 8);
        context.lineWidth = 1;
        context.strokeStyle = now.rule;
        context.strokeRect(left + 0.5, y + 4.5, Math.max(1, end - left - 1), line - 9);
        let text = end;
        if (row.typical_ns !== null) {
          const x = scale.to(row.typical_ns / unit.ns);
          plotLine(context, [x, y + 1], [x, y + line - 1], now.ink, { width: 2 });
          text = Math.max(end, x);
        }
        plotText(context, formatNs(row.dur_ns), text + 5, y + line / 2, now.ink);
        return { x: 0, y, w: width, h: line, data: row };
      });
    },
    describe: (row) => [
      row.stage,
      ["time", formatNs(row.dur_ns)],
      ["busy", formatNs(row.busy_ns)],
      ["typical layer", formatNs(row.typical_ns)],
      ["kernels and copies", formatNumber(row.kernels)],
    ],
    pick: (row) => pick(row.stage),
  });
}
