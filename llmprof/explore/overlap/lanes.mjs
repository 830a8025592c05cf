// Lanes of a window: classes of events, idle time and streams, of one side or of two.
import { fitText } from "../base/js/canvas.mjs";
import { formatNs, formatShare } from "../base/js/format.mjs";
import { aroundSpan, panWindow, zoomWindow } from "../base/js/geometry.mjs";
import {
  PLOT_TEXT,
  plotAxes,
  plotKeys,
  plotLinear,
  plotPanel,
  plotText,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";
import { inkOn } from "../base/js/theme.mjs";
import { typed } from "../base/js/wire.mjs";

/**
 * @typedef {import("../base/js/plot.mjs").Area} Area
 * @typedef {import("../base/js/plot.mjs").Context} Context
 * @typedef {import("../base/js/plot.mjs").Colours} Colours
 * @typedef {import("../base/js/geometry.mjs").Window} Window
 * @typedef {import("./messages").OverlapLane} Lane
 * @typedef {import("./bars.mjs").Fill} Fill
 */
/** @typedef {import("./messages").Messages["lanes"]["answers"] & {buffers: DataView[], window: Window}} Lanes */
/** @typedef {{title: string, name?: string, share?: number, start: number, dur: number, shift: number}} Interval */
/** @typedef {import("../base/js/plot.mjs").Mark<Interval>} Mark */

const LANE_CLASSES = ["compute", "communication", "copy"];
const LANE = 24;

/**
 * Rows of the lanes of one side: {lane, y} with the streams set apart, and the height of all.
 * @template {Pick<Lane, "stream">} L
 * @param {L[]} lanes
 */
export function overlapRows(lanes) {
  const rows = [];
  let y = 0;
  let streams = false;
  for (const lane of lanes) {
    if (lane.stream && !streams) y += 8;
    streams = lane.stream;
    rows.push({ lane, y });
    y += LANE;
  }
  return { rows, height: y };
}

/**
 * Room for the names of the lanes (px).
 * @param {number} width
 */
export function overlapGutter(width) {
  return width < 640 ? 104 : 168;
}

/**
 * Panel of the lanes. shown() is {sides, buffers, window, whole} or null; asked() is the window that is asked for, whose
 * picture may be on its way; go(window) is what zooming, moving and dragging do (null: everything). Returns the panel with zoom(factor) and pan(share).
 * @param {{shown: () => Lanes | null, asked: () => Window, colours: () => Colours, fill: Fill,
 *   go: (window: Window | null) => void}} options
 */
export function overlapLanes({ shown, asked, colours, fill, go }) {
  /** @type {Area | null} */
  let area = null; // where the lanes of the first side lie
  /** @param {Window} window */
  const move = (window) => {
    if (window[1] - window[0] >= 1) go(window);
  };
  const zoom = (/** @type {number} */ factor, at = 0.5) => {
    const whole = shown()?.whole;
    if (whole) move(zoomWindow(asked(), factor, at, whole));
  };
  const pan = (/** @type {number} */ share) => {
    const whole = shown()?.whole;
    if (whole) move(panWindow(asked(), share, whole));
  };
  /** @param {number} x */
  const nsAt = (x) => {
    const window = shown()?.window ?? [0, 1];
    if (!area) return window[0];
    const inside = Math.min(area.right, Math.max(area.left, x)) - area.left;
    return window[0] + inside * ((window[1] - window[0]) / (area.right - area.left));
  };
  /**
   * @param {Lanes} lanes
   * @param {Context} context
   * @param {number} width
   * @param {Colours} now
   */
  const draw = (lanes, context, width, now) => {
    /** @type {Mark[]} */
    const marks = [];
    let first = { left: 0, top: 0, right: width, bottom: 0 };
    let top = 6;
    lanes.sides.forEach((side, i) => {
      const name = `${side.of ? `${side.of}, ` : ""}rank ${side.rank}`;
      plotText(context, lanes.sides.length > 1 ? `${"AB"[i]}: ${name}` : name, 2, top + 10, now.ink, { bold: true });
      top += 24;
      const { rows, height } = overlapRows(side.lanes);
      const place = { left: overlapGutter(width), top, right: width - 14, bottom: top + height };
      if (i === 0) area = first = place;
      for (const { lane, y } of rows) drawLane(context, place, top + y, lane, side, i, now, marks, lanes, fill);
      top += height + 10;
    });
    const unit = plotUnit(lanes.window[1]);
    const scale = plotLinear([lanes.window[0] / unit.ns, lanes.window[1] / unit.ns], [first.left, first.right]);
    const ticks = plotTicks(...scale.domain, Math.max(2, (first.right - first.left) / 110));
    const title = `time from the start of the trace (${unit.symbol})${lanes.sides[1]?.of ? ", of A" : ""}`;
    plotAxes(context, { ...first, bottom: top - 6 }, now, { x: { scale, ticks, title } });
    return marks;
  };
  const panel = plotPanel({
    label:
      "Lanes of the window. Drag to look closer; + and - zoom, a and d move, 0 shows all, Enter goes to an interval.",
    height: () => (shown()?.sides ?? []).reduce((sum, side) => sum + overlapRows(side.lanes).height + 34, 46),
    colours,
    draw: (context, width, _height, now) => {
      const lanes = shown();
      if (lanes?.sides.length) return draw(lanes, context, width, now);
      if (lanes) plotText(context, "Nothing ran on this rank.", 8, 24, now.muted);
      return [];
    },
    describe: (data) => {
      /** @type {import("../base/js/plot.mjs").Lines} */
      const lines = data.name ? [data.title, data.name] : [data.title];
      if (data.share !== undefined) return [...lines, ["covered", formatShare(data.share)]];
      return [...lines, ["start", formatNs(data.start, 6)], ["duration", formatNs(data.dur)]];
    },
    pick: ({ share, start, shift, dur }) => {
      const whole = shown()?.whole;
      if (share === undefined && whole) move(aroundSpan(start - shift, start - shift + dur, whole, 1.5));
    },
    drag: (from, to) => area && move([nsAt(from), nsAt(to)]),
    keys: plotKeys({ zoom, pan, all: () => go(null) }),
    reach: 2,
  });
  /** @param {WheelEvent} event */
  const wheel = (event) => {
    if (!shown()?.whole || !area || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const at = (event.offsetX - area.left) / (area.right - area.left);
    zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.01), Math.min(1, Math.max(0, at)));
  };
  panel.canvas.addEventListener("wheel", wheel, { passive: false });
  return { ...panel, zoom, pan };
}

/**
 * @param {Context} context
 * @param {Area} area
 * @param {number} y
 * @param {Lane} lane
 * @param {Lanes["sides"][number]} side
 * @param {number} i
 * @param {Colours} now
 * @param {Mark[]} marks
 * @param {Lanes} lanes
 * @param {Fill} fill
 */
function drawLane(context, area, y, lane, side, i, now, marks, lanes, fill) {
  const [top, tall] = [y + 2, LANE - 5];
  const words = area.left < 140 ? lane.name.replace("communication", "comm.") : lane.name;
  plotText(context, fitText(context, words, PLOT_TEXT, area.left - 10), area.left - 8, y + LANE / 2, now.muted, {
    align: "right",
  });
  context.fillStyle = now.lane;
  context.fillRect(area.left, top, area.right - area.left, tall);
  const window = side.window;
  /**
   * @param {number} n
   * @param {string} dtype
   */
  const part = (n, dtype) => typed(lanes.buffers[side.first + lane.buffers[n]], dtype);
  const width = area.right - area.left;
  const per = width / (window[1] - window[0]);
  const title = lanes.sides.length > 1 ? `${"AB"[i]}: ${lane.name}` : lane.name;
  if (lane.kind === "bins") {
    marks.push(...drawLaneBins(context, { left: area.left, width, top, tall }, lane, part(0, "f4"), title, now, fill));
    return;
  }
  const pairs = part(0, "f8");
  const which = lane.stream ? part(1, "u4") : null;
  const kinds = lane.stream ? part(2, "u1") : null;
  for (let k = 0; k < pairs.length / 2; k += 1) {
    const [from, to] = [pairs[2 * k], pairs[2 * k + 1]];
    const x = area.left + from * per;
    const w = Math.max(0.7, (to - from) * per);
    const kind = kinds ? LANE_CLASSES[kinds[k]] : lane.name;
    context.fillStyle = kind === "idle" ? now.rule : fill(kind, now);
    context.fillRect(x, top, w > 3 ? w - 0.5 : w, tall);
    const text = which ? side.names[which[k]] : "";
    if (text && w > 60)
      plotText(context, fitText(context, text, PLOT_TEXT, w - 8), x + 4, y + LANE / 2, inkOn(fill(kind, now)));
    const data = {
      title: which ? `${title}, ${kind}` : title,
      name: text,
      start: window[0] + from,
      dur: to - from,
      shift: window[0] - lanes.window[0],
    };
    marks.push({ x, y: top, w, h: tall, data });
  }
}

/**
 * A lane with more intervals than pixels: for each pixel the share that is covered, from the bottom.
 * @param {Context} context
 * @param {{left: number, width: number, top: number, tall: number}} place
 * @param {Lane} lane
 * @param {ArrayLike<number>} covered
 * @param {string} title
 * @param {Colours} now
 * @param {Fill} fill
 */
function drawLaneBins(context, { left, width, top, tall }, lane, covered, title, now, fill) {
  const classes = lane.classes ?? [];
  const bins = covered.length / classes.length;
  /** @type {Mark[]} */
  const marks = [];
  for (let bin = 0; bin < bins; bin += 1) {
    const [x, next] = [bin, bin + 1].map((n) => Math.round(left + (n * width) / bins));
    let sum = 0;
    classes.forEach((part, k) => {
      const share = Math.min(1 - sum, covered[k * bins + bin]);
      context.fillStyle = part === "idle" ? now.rule : fill(part, now);
      context.fillRect(x, top + (1 - sum - share) * tall, next - x, share * tall);
      sum += share;
    });
    if (sum > 0)
      marks.push({ x, y: top, w: next - x, h: tall, data: { title, share: sum, start: 0, dur: 0, shift: 0 } });
  }
  return marks;
}
