// One kernel of the explorer of kernels: launches over time, shapes, grids. Names begin with "detail".
import { h } from "../base/js/dom.mjs";
import { formatBytes, formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import {
  plotAxes,
  plotLabel,
  plotLinear,
  plotPanel,
  plotPart,
  plotTable,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";
import { table } from "../base/js/wire.mjs";
import { metricRoofline } from "./metrics.mjs";

/** @typedef {import("./messages").Messages["kernel"]["answers"]} Kernel */
/** @typedef {import("../base/js/wire.mjs").Table} Table */
/** @typedef {import("../base/js/plot.mjs").TableColumn} Column */
/** @typedef {import("../base/js/plot.mjs").Chart<number>} Chart */

const DETAIL_HEIGHT = 210;

/**
 * Least and most duration to show, with room above.
 * @param {Pick<Table, "length" | "get">} rows
 * @param {boolean} condensed
 * @returns {[number, number]}
 */
export function detailRange(rows, condensed) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < rows.length; i += 1) {
    low = Math.min(low, rows.get(condensed ? "least_ns" : "dur_ns", i));
    high = Math.max(high, rows.get(condensed ? "most_ns" : "dur_ns", i));
  }
  if (!Number.isFinite(low)) return [0, 1];
  const from = low > 0.6 * high ? low - 0.25 * (high - low || low) : 0;
  return [Math.max(0, from), high + 0.08 * (high - from || 1)];
}

/**
 * Launches over time: a dot each, or the range of each part of the time where they are many.
 * @param {Kernel} msg
 * @param {DataView[]} buffers
 * @param {{colours: () => import("../base/js/theme.mjs").Colours, colour: () => string, chosen: () => number | null,
 *   pick: (event: number) => void, alike: () => {name: string, value: any}[]}} options alike() are the labels of what is picked
 */
export function detailLaunches(msg, buffers, { colours, colour, chosen, pick, alike }) {
  const rows = table(msg.columns, buffers);
  /** @type {Chart["draw"]} */
  const draw = (context, width, height, now) => {
    const area = { left: 56, top: 26, right: width - 12, bottom: height - 44 };
    const [low, high] = detailRange(rows, msg.condensed);
    const span = msg.span ?? [0, 1];
    const [tall, long] = [plotUnit(high), plotUnit(span[1])];
    const x = plotLinear(span, [area.left + 4, area.right - 4]);
    const y = plotLinear([low, high], [area.bottom, area.top]);
    /**
     * @param {[number, number]} domain
     * @param {{ns: number}} unit
     * @param {number} count
     */
    const scaled = (domain, unit, count) =>
      plotTicks(domain[0] / unit.ns, domain[1] / unit.ns, count).map((t) => t * unit.ns);
    plotAxes(context, area, now, {
      x: {
        scale: x,
        ticks: scaled(span, long, width / 110),
        format: (t) => plotLabel(t / long.ns),
        title: `time in the trace (${long.symbol})`,
      },
      y: {
        scale: y,
        ticks: scaled([low, high], tall, 4),
        format: (t) => plotLabel(t / tall.ns),
        title: `duration (${tall.symbol})`,
      },
    });
    /** @type {import("../base/js/plot.mjs").Mark<number>[]} */
    const marks = [];
    context.fillStyle = colour();
    const [strong, labels] = [rows.length > 2000 ? 0.55 : 0.8, msg.condensed ? [] : alike()];
    for (let i = 0; i < rows.length; i += 1) {
      context.globalAlpha = labels.every(({ name, value }) => rows.get(name, i) === value) ? strong : 0.2;
      const at = x.to(rows.get("start_ns", i));
      if (msg.condensed) {
        const [top, bottom] = [y.to(rows.get("most_ns", i)), y.to(rows.get("least_ns", i))];
        const wide = Math.max(1, x.to(rows.get("end_ns", i)) - at);
        context.fillRect(at, top, wide, Math.max(1.5, bottom - top));
        marks.push({ x: at, y: top, w: wide, h: Math.max(1.5, bottom - top), data: i });
      } else {
        const middle = y.to(rows.get("dur_ns", i));
        context.beginPath();
        context.arc(at, middle, 2.6, 0, 7);
        context.fill();
        marks.push({ x: at - 3, y: middle - 3, w: 6, h: 6, data: i });
      }
    }
    context.globalAlpha = 1;
    const mark = msg.condensed ? null : marks.find((m) => rows.get("event", m.data) === chosen());
    if (mark) {
      context.strokeStyle = now.select;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(mark.x + 3, mark.y + 3, 6, 0, 7);
      context.stroke();
    }
    return marks;
  };
  /** @type {Chart["describe"]} */
  const describe = (i) => {
    /** @type {[string, string]} */
    const at = ["start", formatNs(rows.get("start_ns", i), 6)];
    if (msg.condensed) {
      /** @type {(word: string) => [string, string]} */
      const range = (word) => [word, formatNs(rows.get(`${word}_ns`, i))];
      return [`${rows.get("count", i)} launches`, at, range("least"), range("middle"), range("most")];
    }
    const places = ["rank", "step", "layer", "stage"].filter((name) => rows.get(name, i) !== null);
    /** @type {(name: string) => [string, string]} */
    const pair = (name) => [name, String(rows.get(name, i))];
    return [formatNs(rows.get("dur_ns", i)), at, ...places.map(pair)];
  };
  const label = "Launches over time; arrow keys move, Enter picks a launch";
  const picked = msg.condensed ? undefined : (/** @type {number} */ i) => pick(rows.get("event", i));
  return plotPanel({ label, height: DETAIL_HEIGHT, colours, draw, describe, pick: picked, reach: 10 });
}

/**
 * Operators and the shapes that they were called with, and all operators under the roofs of the device.
 * @param {import("./messages").Messages["shapes"]["answers"]} found
 * @param {{colours: () => import("../base/js/theme.mjs").Colours, kernel: string, row: () => number | null,
 *   pick: (kernel: string, event: number) => void}} options  `row`: the operator of the picked launch
 */
export function detailShapes({ rows, why, total, roofline }, { colours, kernel, row, pick }) {
  /** @type {Column[]} */
  const columns = [
    { name: "op", title: "operator", format: (v) => v ?? "not recorded" },
    { name: "shapes", title: "shapes of the inputs", format: (v) => v ?? "not recorded" },
    { name: "count", title: "launches", number: true, format: (v) => formatNumber(v) },
    { name: "mean_ns", title: "mean", number: true, format: (v) => formatNs(v) },
    { name: "total_ns", title: "total", number: true, format: (v) => formatNs(v) },
  ];
  const more =
    total && total > rows.length ? h("p", { class: "lp-note", text: `${rows.length} of ${total} are shown.` }) : null;
  const shown = rows.length
    ? plotTable(columns, rows, { caption: "Operators and shapes" })
    : h("p", { class: "lp-note", text: why || "No shapes were recorded." });
  const shapes = plotPart("Shapes", shown, more).el;
  if (!roofline) return { el: shapes, panels: [] };
  const most = Math.max(...roofline.points.map((point) => point.ns));
  const own = roofline.points.filter((point) => point.kernel === kernel);
  const panel = metricRoofline(roofline, {
    colours,
    label:
      "Roofline of all operators, by their time; the picked one stands out; Enter picks one and its longest launch",
    mine: (point) => point.kernel === kernel && (!own.some((one) => one.row === row()) || point.row === row()),
    radius: (point) => 3 + 11 * Math.sqrt(point.ns / most),
    facts: (point) => [
      point.function,
      ["shapes", point.shapes],
      ["time", formatNs(point.ns)],
      ["of its bound", formatShare(point.bound_share)],
      ["bound by", point.bound_by],
    ],
    pick: (point) => pick(point.kernel, point.event),
  });
  const title = `Operators under the roofs of ${roofline.device}`;
  return { el: h("div", {}, shapes, plotPart(title, panel.el).el), panels: [panel] };
}

/**
 * Grids and blocks.
 * @param {Kernel["grids"]} rows
 */
export function detailGrids(rows) {
  if (!rows.length) return plotPart("Grids", h("p", { class: "lp-note", text: "No grids were recorded." })).el;
  /** @type {Column[]} */
  const columns = [
    { name: "grid", title: "grid" },
    { name: "block", title: "block" },
    { name: "registers", title: "registers", number: true, format: (v) => (v === null ? "" : formatNumber(v)) },
    { name: "shared_bytes", title: "shared memory", number: true, format: (v) => (v === null ? "" : formatBytes(v)) },
    { name: "count", title: "launches", number: true, format: (v) => formatNumber(v) },
    { name: "mean_ns", title: "mean", number: true, format: (v) => formatNs(v) },
  ];
  return plotPart("Grids", plotTable(columns, rows, { caption: "Grids and blocks" })).el;
}
