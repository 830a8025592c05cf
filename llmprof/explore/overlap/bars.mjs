// Bars of steps: how the time of each parts.
import { textWidth } from "../base/js/canvas.mjs";
import { formatNs, formatShare } from "../base/js/format.mjs";
import {
  PLOT_TEXT,
  plotAxes,
  plotEvery,
  plotLinear,
  plotPanel,
  plotText,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";

/**
 * @typedef {import("../base/js/plot.mjs").Area} Area
 * @typedef {import("../base/js/plot.mjs").Context} Context
 * @typedef {import("../base/js/plot.mjs").Colours} Colours
 */
/** @typedef {{label: string, rank: number, rows: import("../base/js/wire.mjs").Table}} Side */
/** @typedef {{sides: Side[], parts: string[], share: boolean, window: [number, number] | null}} Shown */
/** @typedef {(part: string, colours: Colours) => string} Fill */
/** @typedef {{side: Side, row: number}} Bar */

const BARS_TALL = 150;

/**
 * Heights (px, bottom to top) of the parts of a bar, as times or as shares of its total.
 * @param {number[]} values
 * @param {number} total
 * @param {boolean} share
 * @param {Pick<import("../base/js/plot.mjs").Scale, "to">} scale
 */
export function overlapStack(values, total, share, scale) {
  let sum = 0;
  return values.map((value) => {
    const part = share ? (total > 0 ? (100 * value) / total : 0) : value;
    const [from, to] = [scale.to(sum), scale.to(sum + part)];
    sum += part;
    return { y: to, h: Math.max(0, from - to) };
  });
}

/**
 * Panel of one or two sides. shown() is {sides: [{label, rank, rows}], parts, share, window}; fill(part, colours) the
 * colour of a part; pick(first, last) what choosing steps does.
 * @param {{shown: () => Shown, colours: () => Colours, fill: Fill, pick: (first: number, last: number) => void}} options
 */
export function overlapBars({ shown, colours, fill, pick }) {
  /** @type {Area[]} */
  let areas = [];
  /** @param {number} x */
  const columnAt = (x) => {
    const { rows } = shown().sides[0];
    const share = (x - areas[0].left) / (areas[0].right - areas[0].left);
    return Math.min(rows.length - 1, Math.max(0, Math.floor(share * rows.length)));
  };
  return plotPanel({
    label: "Parts of the time of each step. Arrow keys move, Enter shows a step below.",
    height: () => Math.max(1, shown().sides.length) * BARS_TALL + 26,
    colours,
    draw: (context, width, _height, now) => {
      const view = overlapScale(shown());
      areas = view.sides.map((_, i) => {
        const top = i * BARS_TALL + 26;
        return { left: 52, top, right: width - 14, bottom: top + 104 };
      });
      return view.sides.flatMap((side, i) => drawBarsOf(context, now, view, side, areas[i], fill));
    },
    describe: ({ side, row }) => {
      /** @param {string} name */
      const get = (name) => side.rows.get(name, row);
      const [first, last, total] = [get("first"), get("last"), get("total_ns")];
      const some = first === last ? `step ${first}` : `steps ${first} to ${last} (means)`;
      const where = first < 0 ? "the whole recording, which has no steps" : some;
      const head = `${side.label ? `${side.label}: ` : ""}${where}, rank ${side.rank}`;
      /** @type {(part: string) => [string, string]} */
      const line = (part) => [part, `${formatNs(get(part))} (${formatShare(get(part) / total)})`];
      return [head, ["phase", get("phase") ?? "unknown"], ["total", formatNs(total)], ...shown().parts.map(line)];
    },
    pick: ({ side, row }) => pick(side.rows.get("first", row), side.rows.get("last", row)),
    drag: (from, to) => {
      const rows = shown().sides[0]?.rows;
      if (rows?.length) pick(rows.get("first", columnAt(from)), rows.get("last", columnAt(to)));
    },
    reach: 1,
  });
}

/**
 * The longest bar and why: by how much each of its parts differs from the median of the other steps of its phase, or of
 * all other steps where the phase has no other; null where there is nothing to compare with.
 * @param {import("../base/js/wire.mjs").Table} rows
 * @param {string[]} parts
 */
export function overlapLongest(rows, parts) {
  const all = Array.from({ length: rows.length }, (_, row) => row);
  if (all.length < 2) return null;
  /** @param {string} name @param {number} row */
  const get = (name, row) => rows.get(name, row);
  const longest = all.reduce((best, row) => (get("total_ns", row) > get("total_ns", best) ? row : best), 0);
  const others = all.filter((row) => row !== longest);
  const alike = others.filter((row) => get("phase", row) === get("phase", longest));
  const beside = alike.length ? alike : others;
  /** @param {string} name */
  const more = (name) => get(name, longest) - median(beside.map((row) => get(name, row)));
  return {
    first: get("first", longest),
    last: get("last", longest),
    phase: /** @type {string | null} */ (get("phase", longest) ?? null),
    total: /** @type {number} */ (get("total_ns", longest)),
    alike: alike.length > 0,
    more: more("total_ns"),
    parts: parts
      .map((part) => ({ part, more: more(part) }))
      .filter((one) => one.more)
      .sort((a, b) => Math.abs(b.more) - Math.abs(a.more)),
  };
}

/** A step of more than this many times the median is shortened in the chart if few are as long. */
const LONG = 5;

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/**
 * What is shown with the unit and end of the axis of all sides, and the number of bars of the longest.
 * @param {Shown} view
 */
function overlapScale(view) {
  const lengths = view.sides.map((side) => side.rows.length);
  const totals = view.sides.flatMap((side, i) =>
    Array.from({ length: lengths[i] }, (_, row) => side.rows.get("total_ns", row)),
  );
  // the few steps of a start-up would flatten all others
  const usual = totals.filter((ns) => ns <= LONG * median(totals));
  const few = usual.length >= totals.length * 0.9 && usual.length < totals.length;
  const longest = Math.max(1, ...(few ? usual : totals));
  const unit = view.share ? { symbol: "%", ns: 1 } : plotUnit(longest);
  return { ...view, unit, most: view.share ? 100 : longest / unit.ns, count: Math.max(1, ...lengths) };
}

/**
 * @param {Context} context
 * @param {Colours} now
 * @param {ReturnType<typeof overlapScale>} view
 * @param {Side} side
 * @param {Area} area
 * @param {Fill} fill
 */
function drawBarsOf(context, now, view, side, area, fill) {
  const { unit, most, window, parts, share } = view;
  const n = side.rows.length;
  const y = plotLinear([0, most], [area.bottom, area.top]);
  const whole = n > 0 && side.rows.get("first", 0) < 0;
  const totals = Array.from({ length: share ? 0 : n }, (_, row) => side.rows.get("total_ns", row));
  /** @param {number} ns */
  const beyond = (ns) => ns > most * unit.ns * 1.0001;
  const cut = totals.filter(beyond);
  const longer = cut.length ? `; ${cut.length} shortened, up to ${formatNs(Math.max(...cut))}` : "";
  /** @param {string} what */
  const titled = (what) => `${side.label ? `${side.label}: ` : ""}rank ${side.rank}, ${what}${longer}`;
  const long = `time of ${whole ? "the recording" : "a step"} (${unit.symbol})`;
  let title = titled(share ? "share of the time (%)" : long);
  if (!share && textWidth(context, title, PLOT_TEXT) > area.right - area.left) title = titled(`step (${unit.symbol})`);
  plotAxes(context, area, now, { y: { scale: y, ticks: plotTicks(0, most, 4), title } });
  if (!n) {
    plotText(context, "no steps", (area.left + area.right) / 2, (area.top + area.bottom) / 2, now.muted, {
      align: "center",
    });
    return [];
  }
  const slot = Math.min(92, (area.right - area.left) / view.count);
  area.right = area.left + slot * n;
  const gap = slot > 5 ? Math.min(6, slot * 0.2) : 0;
  const wide = Math.max(0.6, slot - gap);
  const every = plotEvery(n, slot, textWidth(context, String(side.rows.get("last", n - 1)), PLOT_TEXT) + 14);
  /** @type {import("../base/js/plot.mjs").Mark<Bar>[]} */
  const marks = [];
  for (let row = 0; row < n; row += 1) {
    /** @param {string} name */
    const get = (name) => side.rows.get(name, row);
    const x = area.left + row * slot;
    const shortened = !share && beyond(totals[row]);
    const ns = shortened ? totals[row] / most : unit.ns; // all its parts are, so that each keeps its share
    const values = parts.map((part) => get(part) / (share ? 1 : ns));
    overlapStack(values, get("total_ns"), share, y).forEach((part, k) => {
      context.fillStyle = fill(parts[k], now);
      context.fillRect(x + gap / 2, part.y, wide, part.h);
    });
    if (shortened) {
      context.fillStyle = now.background;
      context.fillRect(x + gap / 2, area.top + 6, wide, 3); // a break
    }
    if (side === view.sides[0] && overlapInside(get("start_ns"), get("end_ns"), window)) {
      context.fillStyle = now.accent;
      context.fillRect(x + gap / 2, area.bottom + 1, wide, 3);
    }
    if (row % every === 0)
      plotText(context, whole ? "all" : String(get("first")), x + slot / 2, area.bottom + 6, now.muted, {
        align: "center",
        base: "top",
      });
    marks.push({ x, y: area.top, w: slot, h: area.bottom - area.top, data: { side, row } });
  }
  if (side === view.sides[view.sides.length - 1] && !whole) {
    plotText(context, "step", (area.left + area.right) / 2, area.bottom + 23, now.muted, {
      align: "center",
      base: "top",
    });
  }
  return marks;
}

/**
 * Whether a step lies in a window, or the window in it, but for its edges.
 * @param {number} start
 * @param {number} end
 * @param {[number, number] | null} window
 */
export function overlapInside(start, end, window) {
  if (!window) return false;
  return Math.min(end, window[1]) - Math.max(start, window[0]) > 0.2 * Math.min(end - start, window[1] - window[0]);
}
