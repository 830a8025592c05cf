// Timelines of two runs under each other, aligned at a step or a layer.
import { fitText, textWidth } from "../base/js/canvas.mjs";
import { formatNs } from "../base/js/format.mjs";
import { clampWindow, panWindow, zoomWindow } from "../base/js/geometry.mjs";
import {
  plotAxes,
  plotKeys,
  plotLabel,
  plotLine,
  plotLinear,
  plotPanel,
  plotText,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";
import { inkOn } from "../base/js/theme.mjs";
import { apart } from "./waterfall.mjs";

/**
 * @typedef {import("../base/js/geometry.mjs").Window} Window
 * @typedef {import("../base/js/theme.mjs").Colours} Colours
 */
/** @typedef {Pick<import("./messages").Track, "name" | "step" | "rank" | "note"> & {rows: import("../base/js/wire.mjs").Table}} Side */
/** @typedef {{sides: Side[], lanes: string[], skipped: number, window: Window, whole: Window, origin: string}} Tracks */
/** @typedef {{side: string, lane: string, label: string | null, name: string, start: number, dur: number}} Span */

const LANE = 22;
const HEAD = 24;
const GAP = 10;

/**
 * Heights of the sides: a head and its lanes each, or one line where there is nothing.
 * @param {Pick<Side, "note">[]} sides
 * @param {string[]} lanes
 */
export function tracksRows(sides, lanes) {
  let y = 4;
  return sides.map((side) => {
    const top = y;
    y += HEAD + (side.note ? LANE : lanes.length * LANE) + GAP;
    return top;
  });
}

/**
 * Words in a span: the number of a layer, the cause of idle time, else what its colour stands for.
 * @param {string} lane
 * @param {string | null} label
 * @param {string} name
 */
export function tracksText(lane, label, name) {
  if (lane === "layers") return name.replace("layer ", "");
  if (lane === "idle") return name.replace(/^idle \((.*)\)$/, "$1");
  return label ?? "";
}

/**
 * Height of the panel (px).
 * @param {Pick<Side, "note">[]} sides
 * @param {string[]} lanes
 */
export function tracksHeight(sides, lanes) {
  return sides.reduce((sum, side) => sum + HEAD + (side.note ? LANE : lanes.length * LANE) + GAP, 4) + 42;
}

/**
 * Panel of the timelines. shown() is {sides: [{name, step, rank, note, rows}], lanes, window, whole, origin} or null;
 * go(window) is what zooming, moving and dragging do (null: all).
 * @param {{shown: () => Tracks | null, colours: () => Colours, go: (window: Window | null) => void,
 *   fill: (lane: string, label: string, name: string, colours: Colours) => string}} options
 */
export function tracksPanel({ shown, colours, fill, go }) {
  /** @type {import("../base/js/plot.mjs").Area | null} */
  let area = null;
  /** @param {(tracks: Tracks) => Window} to */
  const move = (to) => {
    const tracks = shown();
    if (tracks) go(clampWindow(to(tracks), tracks.whole));
  };
  const zoom = (/** @type {number} */ factor, at = 0.5) =>
    move(({ window, whole }) => zoomWindow(window, factor, at, whole));
  const pan = (/** @type {number} */ share) => move(({ window, whole }) => panWindow(window, share, whole));
  /**
   * @param {number} x
   * @param {Window} window
   */
  const nsAt = (x, window) => {
    if (!area) return window[0];
    const inside = Math.min(area.right, Math.max(area.left, x)) - area.left;
    return window[0] + inside * ((window[1] - window[0]) / (area.right - area.left));
  };
  /** @type {import("../base/js/plot.mjs").Chart<Span>["draw"]} */
  const draw = (context, width, height, now) => {
    const tracks = shown();
    if (!tracks) return [];
    const { sides, lanes, window, origin, skipped } = tracks;
    const left = width < 640 ? 88 : 124;
    const place = { left, top: 4, right: width - 14, bottom: height - 40 };
    area = place;
    const scale = plotLinear(window, [place.left, place.right]);
    const unit = plotUnit(Math.max(Math.abs(window[0]), Math.abs(window[1])));
    const ticks = plotTicks(window[0] / unit.ns, window[1] / unit.ns, Math.max(2, (place.right - left) / 110));
    /** @type {import("../base/js/plot.mjs").Mark<Span>[]} */
    const marks = [];
    const wheres = sides.map(({ step, rank }) =>
      [step === null ? "" : `, step ${step}`, rank === null ? "" : `, rank ${rank}`].join(""),
    );
    const room = (width - 16) / 1.1 - Math.max(...wheres.map((where) => textWidth(context, where, 12)));
    const names = apart(
      sides.map((side) => side.name),
      (name) => fitText(context, name, 12, room),
    );
    tracksRows(sides, lanes).forEach((top, i) => {
      const side = sides[i];
      plotText(context, names[i] + wheres[i], 8, top + HEAD / 2, now.ink, { bold: true });
      if (side.note) {
        plotText(context, side.note, 8, top + HEAD + LANE / 2, now.muted);
        return;
      }
      lanes.forEach((lane, row) => {
        const y = top + HEAD + row * LANE;
        const words = left < 120 ? lane.replace("communication", "comm.") : lane;
        plotText(context, words, left - 8, y + LANE / 2, now.muted, { align: "right" });
        context.fillStyle = now.lane;
        context.fillRect(left, y + 1, place.right - left, LANE - 3);
      });
      const zero = scale.to(0);
      const foot = top + HEAD + lanes.length * LANE;
      for (let k = 0; k < side.rows.length; k += 1) {
        const [start, dur] = [side.rows.get("start_ns", k), side.rows.get("dur_ns", k)];
        const [from, to] = [Math.max(left, scale.to(start)), Math.min(place.right, scale.to(start + dur))];
        if (to < left || from > place.right) continue;
        const lane = side.rows.get("lane", k) - skipped;
        const label = side.rows.get("label", k);
        const colour = fill(lanes[lane], label, side.rows.get("name", k), now);
        const y = top + HEAD + lane * LANE + 1;
        const w = Math.max(0.7, to - from);
        context.fillStyle = colour;
        context.fillRect(from, y, w > 3 ? w - 0.6 : w, LANE - 3);
        const text = tracksText(lanes[lane], label, side.rows.get("name", k));
        const fitted = w > (lanes[lane] === "layers" ? 16 : 34) ? fitText(context, text, 12, w - 6) : "";
        if (fitted && /^#/.test(colour))
          plotText(context, fitted, from + w / 2, y + (LANE - 3) / 2, inkOn(colour), { align: "center" });
        const data = { side: side.name, lane: lanes[lane], label, name: side.rows.get("name", k), start, dur };
        marks.push({ x: from, y, w, h: LANE - 3, data });
      }
      if (zero >= left && zero <= place.right)
        plotLine(context, [zero, top + HEAD], [zero, foot], now.accent, { width: 1.5, dash: [4, 3] });
    });
    const title = `time from the start of ${origin} (${unit.symbol})`;
    /** @param {number} t */
    const format = (t) => plotLabel(Number((t / unit.ns).toPrecision(9)));
    plotAxes(context, place, now, { x: { scale, ticks: ticks.map((t) => t * unit.ns), format, title } });
    return marks;
  };
  const panel = plotPanel({
    label:
      "Timelines of both runs, aligned. Drag to look closer; + and - zoom, a and d move, 0 shows all, Enter goes to an event.",
    height: () => {
      const tracks = shown();
      return tracks ? tracksHeight(tracks.sides, tracks.lanes) : 120;
    },
    colours,
    draw,
    describe: (data) => [
      `${data.side}: ${data.name}`,
      [data.lane, data.label ?? ""],
      ["from the start", formatNs(data.start, 5)],
      ["duration", formatNs(data.dur)],
    ],
    pick: ({ start, dur }) => move(() => [start - dur, start + 2 * dur]),
    drag: (from, to) => move(({ window }) => [nsAt(from, window), nsAt(to, window)]),
    keys: plotKeys({ zoom, pan, all: () => go(null) }),
    reach: 2,
  });
  /** @param {WheelEvent} event */
  const wheel = (event) => {
    if (!shown() || !area || !(event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    if (event.shiftKey) {
      pan((event.deltaY || event.deltaX) / 1000);
      return;
    }
    const at = (event.offsetX - area.left) / (area.right - area.left);
    zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.01), Math.min(1, Math.max(0, at)));
  };
  panel.canvas.addEventListener("wheel", wheel, { passive: false });
  return { ...panel, zoom, pan };
}
