// Charts of who waits for whom: arrivals by rank, calls over time, and the ranks of one call, as options of plotPanel.
import { textWidth } from "../base/js/canvas.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import { PLOT_TEXT, plotAxes, plotLine, plotLinear, plotText, plotTicks, plotUnit } from "../base/js/plot.mjs";
import { callNothing } from "./charts.mjs";

/**
 * @typedef {import("./charts.mjs").View} View
 * @typedef {import("./messages").Messages["call"]["answers"]} Call
 * @typedef {import("./messages").Messages["spread"]["answers"]} Spread
 * @typedef {import("./messages").Bin} Bin
 * @typedef {import("../base/js/plot.mjs").Mark} Mark
 * @typedef {import("../base/js/plot.mjs").Pair} Pair
 */
/** @typedef {import("./charts.mjs").Options & {rank: () => number | null}} Options */
/**
 * @template D
 * @typedef {import("../base/js/plot.mjs").Chart<D>} Chart
 */

/**
 * Words for a row: a rank, or several where there are many; then the row is that of the latest of them.
 * @param {{rank?: number, label?: string | null}} row
 */
const named = (row) => row.label ?? `rank ${row.rank}`;
/**
 * @param {{rank?: number, label?: string | null}} row
 * @returns {[string, string][]}
 */
const latest = (row) => (row.label ? [["the latest of them", `rank ${row.rank}`]] : []);

/**
 * How late each rank starts, and how often it is the last.
 * @param {Options & {pick: (rank: number) => void}} options
 * @returns {Chart<View["arrivals"][number]>}
 */
export function callArrivals({ view, colour, rank, pick }) {
  return {
    label: "How late each rank arrives at the calls.",
    height: () => Math.max(110, (view()?.arrivals.length ?? 0) * 26 + 72),
    draw: (context, width, tall, now) => {
      const rows = view()?.arrivals ?? [];
      if (!rows.length) return callNothing(context, width, tall, now, "calls could not be matched over the ranks");
      const left = Math.max(...rows.map((row) => textWidth(context, named(row), PLOT_TEXT))) + 14;
      const area = { left, right: width - 104, top: 22, bottom: 22 + rows.length * 26 };
      const most = Math.max(1, ...rows.map((row) => row.late_p90_ns));
      const unit = plotUnit(most);
      const x = plotLinear([0, most / unit.ns], [area.left, area.right]);
      plotAxes(context, area, now, {
        x: {
          scale: x,
          ticks: plotTicks(0, most / unit.ns, Math.max(2, (area.right - left) / 80)),
          title: `start after the first rank (${unit.symbol})`,
        },
      });
      plotText(context, "last to arrive", area.right + 96, 11, now.muted, { align: "right" });
      return rows.map((row, i) => {
        const y = area.top + i * 26;
        const [median, p90] = [x.to(row.late_median_ns / unit.ns), x.to(row.late_p90_ns / unit.ns)];
        plotText(context, named(row), left - 8, y + 13, now.ink, { align: "right", bold: rank() === row.rank });
        context.fillStyle = colour("late");
        context.fillRect(left, y + 5, Math.max(1, median - left), 16);
        plotLine(context, [median, y + 13], [p90, y + 13], now.ink, { width: 1.5 });
        plotLine(context, [p90, y + 8], [p90, y + 18], now.ink, { width: 1.5 });
        plotText(context, formatShare(row.last_share), area.right + 96, y + 13, now.ink, {
          align: "right",
          bold: row.last_share > 1.5 / rows.length,
        });
        return { x: 0, y, w: width, h: 26, data: row };
      });
    },
    describe: (row) => [
      named(row),
      ...latest(row),
      ["last to arrive", `${formatNumber(row.last)} of ${formatNumber(row.count)} calls`],
      ["late, median", formatNs(row.late_median_ns)],
      ["late, 90th percentile", formatNs(row.late_p90_ns)],
      ["late, at most", formatNs(row.late_max_ns)],
      ["waits in all", formatNs(row.wait_ns)],
      ["transfers in all", formatNs(row.transfer_ns)],
    ],
    pick: (row) => pick(row.rank),
  };
}

/**
 * How many ranks there are in each bin of a value; a bin that is picked has the colour of what is picked.
 * @param {{shown: () => Spread | null, title: () => string, colour: () => string, picked: () => number[],
 *   toggle: (ranks: number[]) => void, take: (ranks: number[]) => void, keys: Record<string, () => void>}} options
 * @returns {Chart<Bin>}
 */
export function ranksSpread({ shown, title, colour, picked, toggle, take, keys }) {
  /** @type {import("../base/js/plot.mjs").Mark<Bin>[]} */
  let marks = [];
  return {
    label:
      "How many ranks have which value. Arrow keys move, Enter picks the ranks of a bar, drag picks those of several.",
    height: 210,
    draw: (context, width, tall, now) => {
      marks = [];
      const bins = shown()?.bins ?? [];
      if (!bins.length) return callNothing(context, width, tall, now, "calls could not be matched over the ranks");
      const area = { left: 46, right: width - 14, top: 26, bottom: tall - 44 };
      const [low, high] = [bins[0].low_ns, bins[bins.length - 1].high_ns];
      const unit = plotUnit(Math.max(Math.abs(low), high));
      const most = Math.max(...bins.map((bin) => bin.ranks.length));
      const x = plotLinear([low / unit.ns, high / unit.ns], [area.left, area.right]);
      const y = plotLinear([0, most], [area.bottom, area.top]);
      plotAxes(context, area, now, {
        x: {
          scale: x,
          ticks: plotTicks(...x.domain, Math.max(2, (area.right - area.left) / 90)),
          title: `${title()} (${unit.symbol})`,
        },
        y: { scale: y, ticks: plotTicks(0, most, 4).filter(Number.isInteger), title: "ranks" },
      });
      const chosen = new Set(picked());
      for (const bin of bins) {
        if (!bin.ranks.length) continue;
        const [from, to] = [x.to(bin.low_ns / unit.ns), x.to(bin.high_ns / unit.ns)];
        const [w, h] = [Math.max(2, to - from - 1), Math.max(4, area.bottom - y.to(bin.ranks.length))];
        context.fillStyle = colour();
        context.fillRect(from, area.bottom - h, w, h);
        const own = bin.ranks.filter((rank) => chosen.has(rank)).length;
        if (own) {
          const part = Math.max(4, (h * own) / bin.ranks.length);
          context.fillStyle = now.ink;
          context.fillRect(from, area.bottom - part, w, part);
          context.fillRect(from, area.bottom + 1, w, 3);
        }
        marks.push({ x: from, y: area.top, w, h: area.bottom - area.top, data: bin });
      }
      return marks;
    },
    describe: (bin) => [
      `${formatNumber(bin.ranks.length)} ${bin.ranks.length === 1 ? "rank" : "ranks"}`,
      `${bin.ranks.length === 1 ? "rank" : "ranks"} ${bin.words}`,
      ["from", formatNs(bin.low_ns)],
      ["to", formatNs(bin.high_ns)],
      ["one of them last to arrive", `${formatNumber(bin.last)} times`],
    ],
    pick: (bin) => toggle(bin.ranks),
    drag: (from, to) => take(spreadWithin(marks, from, to)),
    keys,
  };
}

/**
 * Ranks of the bars that a drag from one x to another touches.
 * @param {import("../base/js/plot.mjs").Mark<{ranks: number[]}>[]} marks
 * @param {number} from
 * @param {number} to
 */
export function spreadWithin(marks, from, to) {
  return marks.filter(({ x, w }) => x <= to && x + w >= from).flatMap(({ data }) => data.ranks);
}

/**
 * Ranks that are picked after those of a bar were: without them if all were picked, else with them.
 * @param {number[]} picked
 * @param {number[]} ranks
 */
export function spreadToggled(picked, ranks) {
  const was = new Set(picked);
  const all = ranks.every((rank) => was.has(rank));
  for (const rank of ranks)
    if (all) was.delete(rank);
    else was.add(rank);
  return [...was].sort((a, b) => a - b);
}

/**
 * Wait and transfer over time.
 * @param {Options & {window: () => Pair | null, light: () => boolean, pick: (call: number | null) => void,
 *   setWindow: (window: Pair) => void}} options
 * @returns {Chart<View["over_time"][number]>}
 */
export function callsOverTime({ view, colour, rank, window, light, pick, setWindow }) {
  /** @type {{x: import("../base/js/plot.mjs").Scale, unit: {ns: number}} | null} */
  let axis = null; // the scale of time and its unit
  return {
    label: "Wait and transfer over time. Enter picks the longest call of a bar; drag sets the window.",
    height: 250,
    draw: (context, width, tall, now) => {
      const { over_time: rows = [], matched = 0 } = view() ?? {};
      if (!rows.length) return callNothing(context, width, tall, now, "no calls");
      /** @type {("wait" | "transfer" | "dur")[]} */
      const names = matched ? ["wait", "transfer"] : ["dur"];
      const [first, last] = [rows[0].first_ns, Math.max(...rows.map((row) => row.last_ns))];
      const unit = plotUnit(last);
      const x = plotLinear([first / unit.ns, Math.max(last, first + 1) / unit.ns], [52, width - 14]);
      axis = { x, unit };
      const each = (tall - 46) / names.length;
      const w = Math.max(1.5, Math.min(9, (width - 66) / rows.length - 1));
      /** @type {Mark[]} */
      const marks = [];
      names.forEach((name, i) => {
        const area = { left: 52, right: width - 14, top: i * each + 26, bottom: (i + 1) * each - 2 };
        const values = rows.map((row) => row[`${name}_ns`]);
        const most = Math.max(1, ...values.map((value) => value ?? 0));
        const per = plotUnit(most);
        const y = plotLinear([0, most / per.ns], [area.bottom, area.top]);
        const words = { wait: "waiting for ranks", transfer: "transfer", dur: "duration" }[name];
        const lower = i === names.length - 1;
        const xAxis = lower
          ? {
              scale: x,
              ticks: plotTicks(...x.domain, Math.max(2, width / 120)),
              title: `time from the start of the trace (${unit.symbol})`,
            }
          : undefined;
        const title = `${words}, mean of ${rank() === null ? "all ranks" : `rank ${rank()}`} (${per.symbol})`;
        plotAxes(context, area, now, { y: { scale: y, ticks: plotTicks(0, most / per.ns, 3), title }, x: xAxis });
        rows.forEach((row, k) => {
          const at = x.to(row.first_ns / unit.ns);
          if (values[k] !== null) {
            const top = y.to(values[k] / per.ns);
            context.fillStyle = colour(name === "dur" ? "duration" : name);
            context.fillRect(at, top, w, Math.max(0.8, area.bottom - top));
            if (name === "wait" && light()) plotLine(context, [at, top], [at + w, top], colour("transfer"));
          }
          marks.push({ x: at, y: area.top, w, h: area.bottom - area.top, data: row });
        });
        const shade = window();
        if (shade) {
          const [a, b] = shade.map((ns) => Math.min(area.right, Math.max(area.left, x.to(ns / unit.ns))));
          context.fillStyle = now.shade;
          context.fillRect(a, area.top, Math.max(2, b - a), area.bottom - area.top);
        }
      });
      return marks;
    },
    describe: (row) => [
      row.kernels > 1
        ? `${formatNumber(row.kernels)} kernels from ${formatNs(row.first_ns, 6)}`
        : `at ${formatNs(row.first_ns, 6)}`,
      ["wait, mean", formatNs(row.wait_ns)],
      ["transfer, mean", formatNs(row.transfer_ns)],
      ["duration, mean", formatNs(row.dur_ns)],
      ["longest in call", row.call === null ? "not matched" : formatNumber(row.call)],
    ],
    pick: (row) => pick(row.call),
    drag: (from, to) => {
      if (!axis) return;
      const { x, unit } = axis;
      /** @param {number} px */
      const at = (px) => Math.max(0, x.from(Math.min(Math.max(px, x.range[0]), x.range[1])) * unit.ns);
      setWindow([at(from), at(to)]);
    },
  };
}

/**
 * Ranks of a call, aligned at the start of the first one.
 * @param {{call: () => Call | null, close: () => boolean, colour: (name: string) => string}} options
 * @returns {Chart<Call["rows"][number]>}
 */
export function callRanks({ call, close, colour }) {
  return {
    label: "Ranks of the picked call, aligned at the start of the first one.",
    height: () => Math.max(70, (call()?.rows.length ?? 0) * 28 + 60),
    draw: (context, width, tall, now) => {
      const rows = call()?.rows ?? [];
      if (!rows.length)
        return callNothing(context, width, tall, now, "Pick a call: a bar over time, or a row of the list.");
      const left = Math.max(...rows.map((row) => textWidth(context, named(row), PLOT_TEXT))) + 14;
      const area = { left, right: width - 78, top: 8, bottom: 8 + rows.length * 28 };
      const most = Math.max(1, ...rows.map((row) => row.aligned_ns + row.dur_ns));
      const unit = plotUnit(most);
      const last = rows.find((row) => row.rank === row.last_rank);
      const transfer = last ? most - last.aligned_ns : most;
      const low = close() && last ? Math.max(0, last.aligned_ns - transfer) : 0;
      const x = plotLinear([low / unit.ns, most / unit.ns], [area.left, area.right]);
      plotAxes(context, area, now, {
        x: {
          scale: x,
          ticks: plotTicks(...x.domain, Math.max(2, (area.right - left) / 80)),
          title: `time from the first rank's start (${unit.symbol})`,
        },
      });
      if (last) {
        const at = x.to(last.aligned_ns / unit.ns);
        plotLine(context, [at, area.top], [at, area.bottom], now.ink, { dash: [4, 3] });
      }
      return rows.map((row, i) => {
        const y = area.top + i * 28;
        const [from, middle, to] = [
          row.aligned_ns,
          row.aligned_ns + (row.wait_ns ?? 0),
          row.aligned_ns + row.dur_ns,
        ].map((ns) => Math.max(area.left, x.to(ns / unit.ns)));
        plotText(context, named(row), left - 8, y + 14, now.ink, {
          align: "right",
          bold: row.rank === row.last_rank,
        });
        context.fillStyle = colour("wait");
        context.fillRect(from, y + 5, middle - from, 18);
        context.fillStyle = colour(row.wait_ns === null ? "duration" : "transfer");
        context.fillRect(middle, y + 5, Math.max(1.5, to - middle), 18);
        context.lineWidth = 1;
        context.strokeStyle = now.rule;
        context.strokeRect(from + 0.5, y + 5.5, Math.max(1, to - from - 1), 17);
        plotText(
          context,
          row.rank === row.last_rank ? `${formatNs(row.dur_ns)}, last` : formatNs(row.dur_ns),
          to + 6,
          y + 14,
          now.ink,
        );
        return { x: from, y, w: Math.max(2, to - from), h: 28, data: row };
      });
    },
    describe: (row) => [
      named(row),
      ...latest(row),
      ["late by", formatNs(row.aligned_ns)],
      ["waits", formatNs(row.wait_ns)],
      ["transfer", formatNs(row.transfer_ns)],
      ["bus bandwidth", row.bus_gbps === null ? "unknown" : `${formatNumber(row.bus_gbps)} GB/s`],
      ["kernel", row.name],
    ],
  };
}
