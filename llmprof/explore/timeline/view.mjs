// One answered view: events and bins of the rows, as they came over the wire. Pure functions.
import { typed } from "../base/js/wire.mjs";

/** @typedef {import("./types").View} View */
/** @typedef {import("./types").Lane} Lane */

/** @type {[string, string][]} */
const FIELDS = [
  ["start", "f4"],
  ["dur", "f4"],
  ["code", "u1"],
  ["name", "u4"],
  ["id", "u4"],
  ["busy", "u1"],
  ["main", "u1"],
  ["samples", "f4"],
  ["waits", "u1"],
  ["held", "u1"],
];

/**
 * A view from an answer: {window, columns, lanes: Map of "row/level" to {first, count, bins}, start, dur, …}.
 * @param {import("./messages").Messages["view"]["answers"]} msg
 * @param {DataView[]} buffers
 * @returns {View}
 */
export function readView(msg, buffers) {
  const { window, columns } = msg;
  const fields =
    /** @type {Pick<View, "start" | "dur" | "code" | "name" | "id" | "busy" | "main" | "samples" | "waits" | "held">} */ (
      Object.fromEntries(FIELDS.map(([name, dtype], i) => [name, typed(buffers[i], dtype)]))
    );
  /** @type {View["lanes"]} */
  const lanes = new Map();
  for (const [row, level, first, count, bins] of msg.lanes) {
    lanes.set(laneKey(row, level), { row, level, first, count, bins });
  }
  return { window, columns, lanes, binned: fields.busy.length / Math.max(1, columns), ...fields };
}

/**
 * @param {number} row
 * @param {number} level
 */
export function laneKey(row, level) {
  return `${row}/${level}`;
}

/**
 * Event of a lane at a time, or one within `reach` ns of it: its index in the view, or -1.
 * @param {Pick<View, "window" | "start" | "dur">} view
 * @param {Pick<Lane, "first" | "count">} lane
 * @param {number} time
 * @param {number} reach
 */
export function eventAt(view, lane, time, reach) {
  const t = time - view.window[0];
  let lo = lane.first;
  let hi = lane.first + lane.count;
  while (lo < hi) {
    const middle = (lo + hi) >> 1;
    if (view.start[middle] <= t) lo = middle + 1;
    else hi = middle;
  }
  let best = -1;
  let distance = reach;
  for (const i of [lo - 1, lo, lo - 2]) {
    if (i < lane.first || i >= lane.first + lane.count) continue;
    const off = Math.max(view.start[i] - t, t - view.start[i] - view.dur[i], 0);
    if (off === 0) return i;
    if (off <= distance) [best, distance] = [i, off];
  }
  return best;
}

/**
 * How busy (0..1) a lane is in the column at a time, and its colour; null where it has no bins or nothing ran.
 * @param {Pick<View, "window" | "columns" | "busy" | "main">} view
 * @param {Pick<Lane, "bins">} lane
 * @param {number} time
 */
export function binAt(view, lane, time) {
  if (lane.bins < 0) return null;
  const span = view.window[1] - view.window[0];
  const column = Math.floor(((time - view.window[0]) / span) * view.columns);
  if (column < 0 || column >= view.columns) return null;
  const i = lane.bins * view.columns + column;
  return view.busy[i] ? { busy: view.busy[i] / 255, code: view.main[i] } : null;
}

/**
 * Names that events of the view have and a map of known ones has not.
 * @param {Pick<View, "name">} view
 * @param {Map<number, string>} known
 * @returns {number[]}
 */
export function unknownNames(view, known) {
  const missing = new Set();
  for (const number of view.name) if (!known.has(number)) missing.add(number);
  return [...missing];
}

/**
 * Colour (#rrggbb) as a number in the order of ImageData on little-endian machines.
 * @param {string} colour
 */
export function packColour(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/**
 * Pixels of all bins, `height` rows for each lane: a column is as high as it was busy, and hatched where it mostly waits.
 * @param {Pick<View, "columns" | "binned" | "busy" | "main"> & {held?: ArrayLike<number>}} view
 * @param {Uint32Array} pixels
 * @param {number} height
 * @param {ArrayLike<number>} colours
 */
export function paintBins(view, pixels, height, colours) {
  const { columns, binned } = view;
  pixels.fill(0);
  for (let lane = 0; lane < binned; lane += 1) {
    const from = lane * columns;
    const top = lane * height * columns;
    for (let column = 0; column < columns; column += 1) {
      const busy = view.busy[from + column];
      if (busy === 0) continue;
      const colour = colours[view.main[from + column]];
      const filled = Math.max(1, Math.round((busy / 255) * height));
      const waits = 2 * (view.held?.[from + column] ?? 0) > busy;
      for (let y = height - filled; y < height; y += 1)
        if (!waits || (column + y) % 6 > 1) pixels[top + y * columns + column] = colour;
    }
  }
}
