// Charts of the calls of a collective: latencies, sizes and bandwidths, as options of plotPanel.
import { textWidth } from "../base/js/canvas.mjs";
import { formatBytes, formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import {
  PLOT_TEXT,
  plotAxes,
  plotLine,
  plotLinear,
  plotLog,
  plotLogTicks,
  plotText,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";

/**
 * @typedef {import("./messages").Messages["view"]["answers"]} View
 * @typedef {View["sizes"][number]} Size
 * @typedef {import("../base/js/plot.mjs").Area} Area
 * @typedef {import("../base/js/plot.mjs").Context} Context
 * @typedef {import("../base/js/plot.mjs").Colours} Colours
 */
/** @typedef {{view: () => View | null, colour: (name: string) => string}} Options  What is shown, and the colours. */
/**
 * @template [D=any]
 * @typedef {import("../base/js/plot.mjs").Chart<D>} Chart
 */
/**
 * @template [D=any]
 * @typedef {import("../base/js/plot.mjs").Mark<D>} Mark
 */

/**
 * Domain of a logarithmic axis around positive values, and one decade where there are none.
 * @param {(number | null)[]} values
 * @param {number} [least]
 * @returns {[number, number]}
 */
export function callDomain(values, least = 1.15) {
  const known = values.flatMap((value) => (value !== null && value > 0 ? [value] : []));
  if (!known.length) return [1, 10];
  return [Math.min(...known) / least, Math.max(...known) * least];
}

/**
 * Name of a group of calls by size.
 * @param {Size} row
 */
export function callSize(row) {
  return row.bytes === null ? "unknown" : formatBytes(row.bytes);
}

/**
 * What a chart without anything to show says.
 * @param {Context} context
 * @param {number} width
 * @param {number} tall
 * @param {Colours} now
 * @param {string} text
 * @returns {never[]}
 */
export function callNothing(context, width, tall, now, text) {
  plotText(context, text, width / 2, tall / 2, now.muted, { align: "center" });
  return [];
}

/**
 * Distribution of durations and of transfers.
 * @param {Options} options
 * @returns {Chart<{words: string, from: number, to: number, count: number}>}
 */
export function callLatency({ view, colour }) {
  return {
    label: "Distribution of the latencies of the kernels.",
    height: 230,
    draw: (context, width, tall, now) => {
      const shown = view();
      const rows = [
        ["duration", "duration, waiting included"],
        ["transfer", "transfer alone"],
      ].filter(([name]) => shown?.histogram[name].length);
      if (!shown || !rows.length) return callNothing(context, width, tall, now, "no call has a duration");
      const unit = plotUnit(
        Math.sqrt(
          callDomain(rows.flatMap(([name]) => shown.histogram[name].map((bin) => bin[0]))).reduce((a, b) => a * b),
        ),
      );
      const domain = callDomain(
        rows.flatMap(([name]) => shown.histogram[name].flatMap((bin) => [bin[0] / unit.ns, bin[1] / unit.ns])),
        1.05,
      );
      const x = plotLog(domain, [46, width - 14]);
      /** @type {Mark<{words: string, from: number, to: number, count: number}>[]} */
      const marks = [];
      const each = (tall - 44) / rows.length;
      rows.forEach(([name, words], i) => {
        const bins = shown.histogram[name];
        const area = { left: 46, right: width - 14, top: i * each + 26, bottom: (i + 1) * each - 2 };
        const most = Math.max(...bins.map((bin) => bin[2]));
        const y = plotLinear([0, most], [area.bottom, area.top]);
        const last = i === rows.length - 1;
        const xAxis = last
          ? { scale: x, ticks: plotLogTicks(...domain), title: `time of a call on a rank (${unit.symbol}, log scale)` }
          : undefined;
        plotAxes(context, area, now, {
          y: {
            scale: y,
            ticks: plotTicks(0, most, 2),
            title: `kernels: ${words}, median ${formatNs(shown.medians[name])}`,
          },
          x: xAxis,
        });
        for (const [from, to, count] of bins) {
          const [x0, x1, top] = [x.to(from / unit.ns), x.to(to / unit.ns), y.to(count)];
          context.fillStyle = colour(name);
          context.fillRect(x0, top, Math.max(1, x1 - x0 - 0.6), area.bottom - top);
          marks.push({ x: x0, y: area.top, w: x1 - x0, h: area.bottom - area.top, data: { words, from, to, count } });
        }
        const median = shown.medians[name];
        if (median !== null && median > 0) {
          const at = x.to(median / unit.ns);
          plotLine(context, [at, area.top - 4], [at, area.bottom], now.ink, { width: 1.5, dash: [4, 2] });
        }
      });
      return marks;
    },
    describe: ({ words, from, to, count }) => [
      words,
      ["from", formatNs(from)],
      ["to", formatNs(to)],
      ["kernels", formatNumber(count)],
    ],
  };
}

/**
 * @param {number} count
 * @param {number} width
 * @param {number} left
 */
function callSlots(count, width, left) {
  const n = Math.max(1, count);
  const slot = Math.min(150, (width - left - 14) / n);
  return { slot, at: (/** @type {number} */ i) => left + (i + 0.5) * slot };
}

/**
 * @param {Context} context
 * @param {Size[]} sizes
 * @param {Area} area
 * @param {Colours} now
 * @param {ReturnType<typeof callSlots>} place
 */
function callSizeLabels(context, sizes, area, now, { slot, at }) {
  const several = new Set(sizes.map((row) => row.algorithm)).size > 1;
  sizes.forEach((row, i) => {
    const lines = [callSize(row), several ? (row.algorithm ?? "") : ""];
    lines.forEach((text, k) => {
      const half = textWidth(context, text, PLOT_TEXT) / 2;
      if (2 * half <= slot - 4 || (k === 0 && i % Math.ceil((2 * half + 6) / slot) === 0))
        plotText(context, text, at(i), area.bottom + 6 + 14 * k, now.muted, { align: "center", base: "top" });
    });
  });
  const base = Math.round(area.bottom) + 0.5;
  plotLine(context, [area.left, base], [area.right, base], now.rule);
  plotText(
    context,
    "message size of a call",
    (area.left + area.right) / 2,
    area.bottom + (several ? 36 : 24),
    now.muted,
    { align: "center", base: "top" },
  );
}

/**
 * Time by message size.
 * @param {Options} options
 * @returns {Chart<{row: Size, name: string, key: string}>}
 */
export function callSizes({ view, colour }) {
  return {
    label: "Time by message size: median, and 10th to 90th percentile.",
    height: 230,
    draw: (context, width, tall, now) => {
      const sizes = view()?.sizes ?? [];
      if (!sizes.length) return callNothing(context, width, tall, now, "no calls");
      const kinds = ["duration", "transfer"].map((name, k) => [name, k ? "transfer_" : ""]);
      const every = sizes.flatMap((row) =>
        kinds.flatMap(([, key]) => ["p10", "median", "p90"].map((q) => row[`${key}${q}_ns`])),
      );
      const unit = plotUnit(callDomain(every)[1] / 10);
      const domain = callDomain(
        every.map((ns) => (ns === null ? null : ns / unit.ns)),
        1.4,
      );
      const area = { left: 52, right: width - 14, top: 26, bottom: tall - 58 };
      const y = plotLog(domain, [area.bottom, area.top]);
      plotAxes(context, area, now, {
        y: {
          scale: y,
          ticks: plotLogTicks(...domain, 6),
          title: `time of a call on a rank (${unit.symbol}, log scale)`,
        },
      });
      const place = callSlots(sizes.length, width, area.left);
      callSizeLabels(context, sizes, area, now, place);
      /** @type {Mark<{row: Size, name: string, key: string}>[]} */
      const marks = [];
      sizes.forEach((row, i) => {
        kinds.forEach(([name, key], k) => {
          const median = row[`${key}median_ns`];
          if (median === null || median <= 0) return;
          const x = place.at(i) + (k ? 1 : -1) * Math.min(12, place.slot / 5);
          const [low, middle, high] = ["p10", "median", "p90"].map((q) => y.to(row[`${key}${q}_ns`] / unit.ns));
          plotLine(context, [x, low], [x, high], colour(name), { width: 3 });
          context.fillStyle = colour(name);
          context.beginPath();
          context.arc(x, middle, 5, 0, 2 * Math.PI);
          context.fill();
          marks.push({
            x: x - 6,
            y: Math.min(high, middle - 6),
            w: 12,
            h: Math.max(12, low - high),
            data: { row, name, key },
          });
        });
      });
      return marks;
    },
    describe: ({ row, name, key }) => [
      `${name}, ${callSize(row)}`,
      ["algorithm", row.algorithm ?? "unknown"],
      ["median", formatNs(row[`${key}median_ns`])],
      ["10th to 90th percentile", `${formatNs(row[`${key}p10_ns`])} to ${formatNs(row[`${key}p90_ns`])}`],
      ["kernels", formatNumber(row.count)],
    ],
  };
}

/**
 * Algorithm and bus bandwidth by message size, against the link.
 * @param {Options} options
 * @returns {Chart<{row: Size, name: string, value: number}>}
 */
export function callBandwidth({ view, colour }) {
  return {
    label: "Algorithm and bus bandwidth by message size, against the peak of the link.",
    height: 230,
    draw: (context, width, tall, now) => {
      const { sizes = [], peak_gbps: peak = null } = view() ?? {};
      const known = sizes.filter((row) => row.bus_gbps !== null);
      if (!known.length) return callNothing(context, width, tall, now, "sizes or transfers were not captured");
      const domain = callDomain([...known.flatMap((row) => [row.bus_gbps, row.algorithm_gbps]), peak], 1.5);
      const area = { left: 52, right: width - 14, top: 26, bottom: tall - 58 };
      const y = plotLog(domain, [area.bottom, area.top]);
      plotAxes(context, area, now, {
        y: { scale: y, ticks: plotLogTicks(...domain, 6), title: "bandwidth of the transfer (GB/s, log scale)" },
      });
      const place = callSlots(sizes.length, width, area.left);
      callSizeLabels(context, sizes, area, now, place);
      if (peak) {
        plotLine(context, [area.left, y.to(peak)], [area.right, y.to(peak)], now.ink, {
          dash: [6, 3],
          width: 1.5,
        });
        plotText(
          context,
          `peak of the link, one direction: ${formatNumber(peak)} GB/s`,
          area.right,
          y.to(peak) + 9,
          now.ink,
          { align: "right" },
        );
      }
      /** @type {Mark<{row: Size, name: string, value: number}>[]} */
      const marks = [];
      sizes.forEach((row, i) => {
        ["algorithm", "bus"].forEach((name, k) => {
          const value = row[`${name}_gbps`];
          if (value === null) return;
          const [x, at] = [place.at(i) + (k ? 1 : -1) * Math.min(10, place.slot / 5), y.to(value)];
          context.fillStyle = colour(`${name} bandwidth`);
          context.beginPath();
          context.arc(x, at, 5.5, 0, 2 * Math.PI);
          context.fill();
          marks.push({ x: x - 6, y: at - 6, w: 12, h: 12, data: { row, name, value } });
        });
      });
      return marks;
    },
    describe: ({ row, name, value }) => [
      `${name} bandwidth, ${callSize(row)}`,
      ["algorithm", row.algorithm ?? "unknown"],
      ["median", `${formatNumber(value)} GB/s`],
      ["bus, of the peak", formatShare(row.peak_share)],
      ["kernels", formatNumber(row.count)],
    ],
  };
}
