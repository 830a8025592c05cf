// From one step time to another in bars that add up, and a step of each run in parts.
import { FONT, fitText, textWidth } from "../base/js/canvas.mjs";
import { formatNs } from "../base/js/format.mjs";
import {
  plotAxes,
  plotLabel,
  plotLine,
  plotLinear,
  plotPanel,
  plotText,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";
import { inkOn } from "../base/js/theme.mjs";

/** @typedef {import("../base/js/plot.mjs").Colours} Colours */
/** @typedef {import("./messages").WaterfallBar} Bar */
/** @typedef {import("./messages").StepPart} Part */

/** @typedef {Part & {run: string, from: number, to: number}} Segment */
/** @typedef {Pick<import("./messages").RunBar, "name" | "step_ns" | "parts">} Run */

const ROW = 24;
const AXIS_FROM = 0.7;

/**
 * Change with its sign; a total has none.
 * @param {Pick<Bar, "group" | "delta_ns">} bar
 */
export function waterfallText({ group, delta_ns: delta }) {
  if (group === "total" || !delta) return formatNs(delta);
  return `${delta > 0 ? "+" : "−"}${formatNs(Math.abs(delta))}`;
}

/**
 * Ends of the axis: not from 0 where all changes would be slivers at its end.
 * @param {Pick<Bar, "group" | "from_ns" | "to_ns">[]} bars
 * @returns {[number, number]}
 */
export function waterfallDomain(bars) {
  const most = Math.max(1, ...bars.map((bar) => Math.max(bar.from_ns, bar.to_ns)));
  const inner = bars.filter((bar) => bar.group !== "total").map((bar) => Math.min(bar.from_ns, bar.to_ns));
  const least = Math.min(...inner, bars[bars.length - 1]?.to_ns ?? 0);
  return [least > AXIS_FROM * most && least < most ? Math.max(0, least - 0.5 * (most - least)) : 0, most];
}

/**
 * Colours of less, more, totals and what is unexplained.
 * @param {Colours} now
 */
export function waterfallColours(now) {
  const dark = now.background === "#14181d";
  return {
    less: dark ? "#6cb6f5" : "#2f7fb5",
    more: dark ? "#f4816f" : "#b2182b",
    total: now.muted,
    unexplained: dark ? "#7b8794" : "#9aa5b1",
  };
}

/** @param {Bar} bar */
function way(bar) {
  if (bar.group === "total" || bar.group === "unexplained") return bar.group;
  return bar.delta_ns < 0 ? "less" : "more";
}

/**
 * Waterfall as a panel.
 * @param {{bars: Bar[], domain: [number, number], names: string[], colours: () => Colours, pick: (bar: Bar) => void,
 *   what: string}} options
 */
export function waterfallPanel({ bars, domain, names, colours, pick, what }) {
  /** @type {import("../base/js/plot.mjs").Chart<Bar>["draw"]} */
  const draw = (context, width, height, now) => {
    context.font = `12px ${FONT}`;
    const room = Math.min(width * 0.42, 18 + 1.1 * Math.max(...bars.map((bar) => textWidth(context, bar.label, 12))));
    const texts = bars.map(waterfallText);
    const right = width - 14 - Math.max(...texts.map((text) => textWidth(context, text, 12)));
    const area = { left: room, top: 4, right, bottom: height - 40 };
    const scale = plotLinear(domain, [area.left, area.right]);
    const unit = plotUnit(domain[1]);
    const ticks = plotTicks(domain[0] / unit.ns, domain[1] / unit.ns, Math.max(2, (right - room) / 90));
    const from = domain[0] ? `, from ${formatNs(domain[0])}` : "";
    const whole = `${what} (${unit.symbol})${from}`;
    const fits = textWidth(context, whole, 12) < right - room + 40;
    const title = fits ? whole : `${unit.symbol}${from}`; // the heading says of what
    /** @param {number} t */
    const format = (t) => plotLabel(t / unit.ns);
    const x = { scale, ticks: ticks.map((t) => t * unit.ns), format, title, over: 40 };
    for (const tick of x.ticks) plotLine(context, [scale.to(tick), area.top], [scale.to(tick), area.bottom], now.faint);
    plotAxes(context, area, now, { x });
    const shades = waterfallColours(now);
    /** @type {import("../base/js/plot.mjs").Mark<Bar>[]} */
    const marks = [];
    const totals = bars.filter((bar) => bar.group === "total");
    const fittedTotals = apart(
      totals.map((bar) => bar.label),
      (name) => fitText(context, name, 12, (room - 12) / 1.12),
    );
    bars.forEach((bar, i) => {
      const y = area.top + i * ROW;
      const total = bar.group === "total";
      plotText(
        context,
        total ? fittedTotals[totals.indexOf(bar)] : fitText(context, bar.label, 12, room - 12),
        room - 8,
        y + ROW / 2,
        now.ink,
        {
          align: "right",
          bold: total,
        },
      );
      const ends = [bar.from_ns, bar.to_ns].map((ns) => scale.to(Math.max(domain[0], ns)));
      const [from, to] = [Math.min(...ends), Math.max(...ends)];
      const w = Math.max(2, to - from);
      context.fillStyle = shades[way(bar)];
      context.fillRect(from, y + 4, w, ROW - 8);
      if (i < bars.length - 1) {
        const at = scale.to(Math.max(domain[0], bar.to_ns));
        plotLine(context, [at, y + ROW - 4], [at, y + ROW + 4], now.muted, { dash: [2, 2] });
      }
      const sure = bar.beyond_noise !== false || total;
      plotText(context, texts[i], from + w + 5, y + ROW / 2, sure ? now.ink : now.muted);
      marks.push({ x: 2, y: y + 1, w: width - 4, h: ROW - 2, data: bar });
    });
    return marks;
  };
  /** @type {import("../base/js/plot.mjs").Chart<Bar>["describe"]} */
  const describe = (bar) => {
    if (bar.group === "total") return [bar.label, [what, formatNs(bar.delta_ns)]];
    /** @type {import("../base/js/plot.mjs").Lines} */
    const lines = [bar.label, [names[0], formatNs(bar.a_ns)], [names[1], formatNs(bar.b_ns)]];
    lines.push(["change", waterfallText(bar)]);
    if (bar.beyond_noise === false) lines.push(["", "may be noise"]);
    return lines;
  };
  return plotPanel({
    label: `From ${names[0]} to ${names[1]}, a bar a part; arrow keys move, Enter picks a stage`,
    height: () => bars.length * ROW + 46,
    colours,
    draw,
    describe,
    pick,
    reach: 2,
  });
}

/**
 * Segments of the step of a run: {...part, from, to}.
 * @param {Pick<Run, "name" | "parts">} run
 * @returns {Segment[]}
 */
export function runSegments(run) {
  let at = 0;
  return run.parts.map((part) => {
    const segment = { ...part, run: run.name, from: at, to: at + part.ns };
    at += part.ns;
    return segment;
  });
}

/**
 * Names as they fit; without as much of their common beginning as does not fit, where they would read alike.
 * @param {string[]} names
 * @param {(name: string) => string} fit
 */
export function apart(names, fit) {
  const fitted = names.map(fit);
  if (new Set(fitted).size === new Set(names).size) return fitted;
  let same = 0;
  while (names.every((name) => name[same] && name[same] === names[0][same])) same += 1;
  const ends = Array.from({ length: same + 1 }, (_, from) => names.map((name) => `…${name.slice(from)}`));
  return ends.find((texts) => texts.every((text) => fit(text) === text)) ?? ends[same].map(fit);
}

/**
 * A step of each run as a bar in parts, above each other.
 * @param {{runs: Run[], colours: () => Colours, fill: (part: Part) => string, pick: (part: Part) => void, what: string}} options
 */
export function runsPanel({ runs, colours, fill, pick, what }) {
  const tall = 30;
  /** @type {import("../base/js/plot.mjs").Chart<Segment>["draw"]} */
  const draw = (context, width, height, now) => {
    context.font = `12px ${FONT}`;
    const named = apart(
      runs.map((run) => run.name),
      (name) => fitText(context, name, 12, Math.min(260, width * 0.3)) || name.slice(0, 12),
    );
    const left = 16 + 1.1 * Math.max(...named.map((name) => textWidth(context, name, 12)));
    const most = Math.max(1, ...runs.map((run) => run.step_ns ?? 0));
    const unit = plotUnit(most);
    const area = { left, top: 4, right: width - 76, bottom: height - 40 };
    const scale = plotLinear([0, most], [area.left, area.right]);
    const ticks = plotTicks(0, most / unit.ns, Math.max(2, (area.right - left) / 90)).map((t) => t * unit.ns);
    /** @param {number} t */
    const format = (t) => plotLabel(t / unit.ns);
    plotAxes(context, area, now, { x: { scale, ticks, format, title: `${what} (${unit.symbol})`, over: 60 } });
    /** @type {import("../base/js/plot.mjs").Mark<Segment>[]} */
    const marks = [];
    runs.forEach((run, i) => {
      const y = area.top + i * tall;
      plotText(context, named[i], 8, y + tall / 2, now.ink, { bold: true });
      for (const segment of runSegments(run)) {
        const x = scale.to(segment.from);
        const w = Math.max(0.5, scale.to(segment.to) - x);
        const colour = fill(segment);
        context.fillStyle = colour;
        context.fillRect(x, y + 4, Math.max(0.5, w - 0.5), tall - 8);
        const text = fitText(context, segment.label, 12, w - 8);
        if (text) plotText(context, text, x + w / 2, y + tall / 2, inkOn(colour), { align: "center" });
        marks.push({ x, y: y + 4, w, h: tall - 8, data: segment });
      }
      const said = run.step_ns === null ? "no such step" : formatNs(run.step_ns);
      plotText(context, said, scale.to(run.step_ns ?? 0) + 6, y + tall / 2, now.ink, { bold: true });
    });
    return marks;
  };
  /** @type {import("../base/js/plot.mjs").Chart<Segment>["describe"]} */
  const describe = (part) => [part.label, [part.run, formatNs(part.ns)]];
  return plotPanel({
    label: `${what} of each run in parts; arrow keys move, Enter picks a stage`,
    height: () => runs.length * tall + 46,
    colours,
    draw,
    describe,
    pick,
    reach: 3,
  });
}
