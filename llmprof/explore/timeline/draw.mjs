// Drawing the lanes of a pane, the ruler and the minimap.
import { FONT, fitText, textWidth } from "../base/js/canvas.mjs";
import { formatBytes, formatNs, formatNumber } from "../base/js/format.mjs";
import { ticks, toPx } from "../base/js/geometry.mjs";
import { inkOn } from "../base/js/theme.mjs";
import { laneKey, packColour, paintBins } from "./view.mjs";

const BIN_HEIGHT = 24;
const TEXT = 12;
const LABEL_LEAST = 26;
const HATCH_LEAST = 3;

/** @type {Map<string, CanvasPattern | string>} */
const hatches = new Map();

/**
 * Lines of the ground's colour over what waits.
 * @param {import("../base/js/theme.mjs").Colours} theme
 */
export function hatchOf(theme) {
  const known = hatches.get(theme.background);
  if (known) return known;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 6;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.strokeStyle = theme.background;
  context.globalAlpha = 0.6;
  context.lineWidth = 1.6;
  for (const x of [-6, 0, 6]) {
    context.moveTo(x, 6);
    context.lineTo(x + 6, 0);
  }
  context.stroke();
  const made = context.createPattern(canvas, "repeat") ?? theme.shade;
  hatches.set(theme.background, made);
  return made;
}

/**
 * Colours and inks of the keys in a theme; on dark ground the darkest ones are lightened.
 * @param {Pick<import("./messages").Key, "colour">[]} keys
 * @param {string} [theme]
 * @returns {import("./types").Paints}
 */
export function makePaints(keys, theme = "light") {
  const colour = keys.map((key) => (theme === "dark" ? lightened(key.colour) : key.colour));
  return { colour, ink: colour.map(inkOn), packed: Uint32Array.from(colour, packColour) };
}

/**
 * A colour, mixed with white where it would hardly show on a dark ground.
 * @param {string} colour
 */
export function lightened(colour) {
  const channels = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const light = (0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]) / 255;
  const share = Math.max(0, 0.36 - light);
  return `#${channels
    .map((c) =>
      Math.round(c + (255 - c) * share)
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}

/**
 * Image of all bins of a view; an earlier canvas is used again.
 * @param {import("./types").View} view
 * @param {import("./types").Paints} paints
 * @param {import("./types").Bins} canvas
 */
export function binImage(view, paints, canvas) {
  if (!view.binned) return canvas;
  const height = view.binned * BIN_HEIGHT;
  if (canvas.width !== view.columns || canvas.height !== height) {
    canvas.width = view.columns;
    canvas.height = height;
    canvas.image = null;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  canvas.image ??= context.createImageData(view.columns, height);
  paintBins(view, new Uint32Array(canvas.image.data.buffer), BIN_HEIGHT, paints.packed);
  context.putImageData(canvas.image, 0, 0);
  return canvas;
}

/**
 * Draw the items of a pane. scene: {view, bins, window, width, theme, paints, names, dimmed, selected, span}.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./types").Item[]} items
 * @param {number} scroll
 * @param {number} height
 * @param {import("./types").Scene} scene
 */
export function drawPane(context, items, scroll, height, scene) {
  const { theme, width } = scene;
  context.fillStyle = theme.background;
  context.fillRect(0, 0, width, height);
  drawGrid(context, scene, height);
  context.font = `${TEXT}px ${FONT}`;
  context.textBaseline = "middle";
  for (const item of items) {
    const top = item.top - scroll;
    if (item.type === "group") {
      context.fillStyle = theme.faint;
      context.fillRect(0, top + item.height - 2, width, 1);
      if (item.levels.length) drawRow(context, item, top, scene);
      continue;
    }
    drawRow(context, item, top, scene);
  }
  if (scene.span) drawSpan(context, items, scroll, height, { ...scene, span: scene.span });
}

/**
 * The selected range over the rows that it is of, and its length while it is dragged.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./types").Item[]} items
 * @param {number} scroll
 * @param {number} height
 * @param {import("./types").Scene & {span: import("./types").Window}} scene
 */
function drawSpan(context, items, scroll, height, { span, spanRows, window, width, theme, dragging }) {
  const [a, b] = span.map((ns) => toPx(ns, window, width));
  const parts = spanRows
    ? items
        .filter((item) => item.levels.some((place) => spanRows.includes(place.row)))
        .map((item) => [item.top - scroll, item.height])
    : [[0, height]];
  for (const [top, tall] of parts) {
    context.fillStyle = theme.shade;
    context.fillRect(a, top, b - a, tall);
    context.fillStyle = theme.accent;
    context.fillRect(a - 0.5, top, 1, tall);
    context.fillRect(b - 0.5, top, 1, tall);
  }
  if (!dragging || !parts.length) return;
  const text = formatNs(span[1] - span[0]);
  const wide = textWidth(context, text, TEXT) + 12;
  const x = Math.max(2, Math.min(width - wide - 2, (a + b) / 2 - wide / 2));
  const y = Math.max(2, parts[0][0] + 2);
  context.fillStyle = theme.accent;
  context.fillRect(x, y, wide, 18);
  context.fillStyle = theme.background;
  context.fillText(text, x + 6, y + 9.5);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./types").Scene} scene
 * @param {number} height
 */
function drawGrid(context, { theme, window, width }, height) {
  context.fillStyle = theme.faint;
  for (const at of ticks(window, width).at) context.fillRect(Math.round(toPx(at, window, width)), 0, 1, height);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./types").Item} item
 * @param {number} top
 * @param {import("./types").Scene} scene
 */
function drawRow(context, item, top, scene) {
  const { theme, width, view } = scene;
  let ground = -1; // levels of one height share it: waits and idle time of a closed rank
  for (const place of item.levels) {
    const y = top + place.y;
    if (place.y !== ground) {
      context.fillStyle = theme.lane;
      context.fillRect(0, y, width, place.height);
      ground = place.y;
    }
    const lane = view?.lanes.get(laneKey(place.row, place.level));
    if (!view || !lane) continue;
    const row = item.type === "row" ? item : null;
    if (row?.kind === "counter") drawSamples(context, row, lane, y, place.height, scene, view);
    else drawLane(context, lane, y, place.height, Boolean(row?.folded), scene, view);
  }
  if (item.type === "row" && item.note) {
    context.fillStyle = theme.muted;
    context.fillText(item.note === "…" ? "is being found …" : item.note, 6, top + item.levels[0].height / 2 + 0.5);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./types").Lane} lane
 * @param {number} y
 * @param {number} height
 * @param {boolean} folded
 * @param {import("./types").Scene} scene
 * @param {import("./types").View} view
 */
function drawLane(context, lane, y, height, folded, scene, view) {
  const { window, width, paints, names, dimmed } = scene;
  const scale = width / (window[1] - window[0]);
  const from = (view.window[0] - window[0]) * scale;
  if (lane.bins >= 0) {
    context.imageSmoothingEnabled = false;
    context.globalAlpha = dimmed ? 0.3 : 1;
    const span = (view.window[1] - view.window[0]) * scale;
    context.drawImage(scene.bins, 0, lane.bins * BIN_HEIGHT, view.columns, BIN_HEIGHT, from, y, span, height);
    context.globalAlpha = 1;
  }
  const { start, dur, code, name, waits } = view;
  /** @type {number[]} */
  const labels = [];
  /** @type {number[]} */
  const hatched = [];
  let style = -1;
  let lastPixel = -1;
  let alpha = 1;
  for (let i = lane.first, stop = lane.first + lane.count; i < stop; i += 1) {
    const left = from + start[i] * scale;
    if (left > width) break;
    let wide = dur[i] * scale;
    if (left + wide < 0) continue;
    const wanted = dimmed && !dimmed.has(name[i]) ? 0.22 : 1;
    if (wide < 1) {
      const pixel = Math.floor(left);
      if (pixel === lastPixel && code[i] === style && wanted === alpha) continue;
      lastPixel = pixel;
      wide = 1;
    }
    if (wanted !== alpha) context.globalAlpha = alpha = wanted;
    if (code[i] !== style) {
      style = code[i];
      context.fillStyle = paints.colour[style];
    }
    const a = Math.max(left, -2);
    const b = Math.min(left + wide, width + 2);
    context.fillRect(a, y, wide > 4 ? b - a - 0.75 : b - a, height);
    const waited = Math.min(left + (wide * waits[i]) / 255, b);
    if (waits[i] && waited - a > HATCH_LEAST) hatched.push(a, waited);
    const from_ = waits[i] && b - waited > 2 * LABEL_LEAST ? waited : a; // beside the lines where there is room
    if (!folded && height >= 14 && b - from_ > LABEL_LEAST && wanted === 1) labels.push(i, from_, b);
  }
  context.globalAlpha = 1;
  if (hatched.length) {
    context.fillStyle = scene.hatch;
    for (let k = 0; k < hatched.length; k += 2) context.fillRect(hatched[k], y, hatched[k + 1] - hatched[k], height);
  }
  for (let k = 0; k < labels.length; k += 3) {
    const [i, a, b] = [labels[k], Math.max(labels[k + 1], 0), labels[k + 2]];
    const full = names.get(name[i]) ?? "";
    const text = labelOf(full, (one) => fitText(context, one, TEXT, b - a - 7));
    if (!text) continue;
    context.fillStyle = paints.ink[code[i]];
    context.fillText(text, a + 3.5, y + height / 2 + 0.5);
  }
}

/**
 * A label as far as there is room: of a layer, a step or a request its number, where the words do not fit; of a
 * function of Python its file without folders, where the whole path does not.
 * @param {string} full
 * @param {(text: string) => string} fit
 */
export function labelOf(full, fit) {
  const numbered = /^(?:layer|step|request|rank) (\d+)/.exec(full);
  const text = fit(full);
  if (!numbered) {
    const file = text === full ? full : full.replace(/^\S*\/(?=[^/]+\(\d+\): )/, "");
    return file === full ? text : fit(file);
  }
  if (text.startsWith(numbered[0])) return text;
  const number = fit(numbered[1]);
  return number === numbered[1] ? number : "";
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./types").RowItem} item
 * @param {import("./types").Lane} lane
 * @param {number} y
 * @param {number} height
 * @param {import("./types").Scene} scene
 * @param {import("./types").View} view
 */
function drawSamples(context, item, lane, y, height, scene, view) {
  const { window, width, theme } = scene;
  const { columns, samples } = view;
  const [least, most] = item.range ?? [0, 1];
  const offset = lane.bins * 2 * columns;
  const scale = width / (window[1] - window[0]);
  const from = (view.window[0] - window[0]) * scale;
  const step = ((view.window[1] - view.window[0]) * scale) / columns;
  /** @param {number} value */
  const place = (value) => y + height - 1 - ((value - least) / Math.max(most - least, 1e-12)) * (height - 2);
  context.fillStyle = theme.accent;
  for (let column = 0; column < columns; column += 1) {
    const high = samples[offset + columns + column];
    if (Number.isNaN(high)) continue;
    const x = from + column * step;
    if (x + step < 0 || x > width) continue;
    const low = samples[offset + column];
    context.globalAlpha = 0.25;
    context.fillRect(x, place(high), step + 0.5, y + height - place(high));
    context.globalAlpha = 1;
    context.fillRect(x, place(high), step + 0.5, Math.max(1, place(low) - place(high)));
  }
  context.fillStyle = theme.muted;
  context.fillText(formatSample(most, item.unit), 4, y + 8);
}

/**
 * Value of a counter with its unit.
 * @param {number} value
 * @param {string} unit
 */
export function formatSample(value, unit) {
  return unit === "B" ? formatBytes(value) : `${formatNumber(value)} ${unit}`;
}

/**
 * Outline of a span in a pane.
 * @param {CanvasRenderingContext2D} context
 * @param {Pick<import("./messages").Hit, "start" | "end">} hit
 * @param {{item: import("./types").Item, place: import("./types").Level}} found
 * @param {number} scroll
 * @param {import("./types").Scene} scene
 */
export function drawOutline(context, hit, { item, place: level }, scroll, scene) {
  const [a, b] = [hit.start, hit.end].map((ns) => toPx(ns, scene.window, scene.width));
  if (b < -4 || a > scene.width + 4) return;
  const y = item.top - scroll + level.y;
  const [left, right] = [Math.max(a, -4), Math.min(Math.max(b, a + 2), scene.width + 4)];
  context.lineWidth = 2;
  context.strokeStyle = scene.theme.select;
  context.strokeRect(left - 0.5, y - 0.5, right - left + 1, level.height + 1);
  if (right - left < 8) {
    context.fillStyle = scene.theme.select; // a flag that shows where a very short one is
    context.beginPath();
    context.moveTo(left + 1, y - 1);
    context.lineTo(left - 3, y - 6);
    context.lineTo(left + 5, y - 6);
    context.fill();
  }
}

/**
 * Arrows from host calls to what they launched; ends are {x, y}.
 * @param {CanvasRenderingContext2D} context
 * @param {[import("./types").Point, import("./types").Point][]} arrows
 * @param {import("../base/js/theme.mjs").Colours} theme
 */
export function drawArrows(context, arrows, theme) {
  context.lineWidth = 1.5;
  context.strokeStyle = theme.accent;
  context.fillStyle = theme.accent;
  for (const [from, to] of arrows) {
    const bend = Math.max(24, Math.abs(to.x - from.x) * 0.4);
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.bezierCurveTo(from.x + bend, from.y, to.x - bend, to.y, to.x - 5, to.y);
    context.stroke();
    context.beginPath();
    context.moveTo(to.x, to.y);
    context.lineTo(to.x - 7, to.y - 4);
    context.lineTo(to.x - 7, to.y + 4);
    context.fill();
    context.beginPath();
    context.arc(from.x, from.y, 2.5, 0, 7);
    context.fill();
  }
}

/**
 * Time axis: offsets from the first tick in the unit of the distance between ticks, the first one absolute.
 * @param {CanvasRenderingContext2D} context
 * @param {number} y
 * @param {number} height
 * @param {import("./types").Scene} scene
 */
export function drawRuler(context, y, height, { theme, window, width }) {
  context.fillStyle = theme.raised;
  context.fillRect(0, y, width, height);
  context.fillStyle = theme.rule;
  context.fillRect(0, y + height - 1, width, 1);
  const { step, at } = ticks(window, width);
  context.font = `${TEXT}px ${FONT}`;
  context.textBaseline = "middle";
  for (const time of at) {
    const x = Math.round(toPx(time, window, width));
    context.fillStyle = theme.rule;
    context.fillRect(x, y + height - 7, 1, 6);
    context.fillStyle = theme.muted;
    const text = tickLabel(time, step, at[at.length - 1]);
    if (x + 6 + textWidth(context, text, TEXT) < width) context.fillText(text, x + 4, y + height / 2);
  }
}

/**
 * Time of a tick with as many decimals as the distance of ticks needs, in the unit that the last tick has.
 * @param {number} time
 * @param {number} step
 * @param {number} [last]
 */
export function tickLabel(time, step, last = time) {
  if (time === 0) return "0";
  const [unit, ns] = last >= 1e9 ? ["s", 1e9] : last >= 1e6 ? ["ms", 1e6] : last >= 1e3 ? ["us", 1e3] : ["ns", 1];
  const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / ns) - 1e-9)));
  return `${(time / ns).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} ${unit}`;
}

/**
 * The whole trace, a line a rank, with the window that is shown.
 * @param {CanvasRenderingContext2D} context
 * @param {number} height
 * @param {import("./types").Scene} scene
 * @param {import("./types").View | null} overview
 */
export function drawMinimap(context, height, scene, overview) {
  const { theme, width, window, whole, paints } = scene;
  context.fillStyle = theme.background;
  context.fillRect(0, 0, width, height);
  const lines = overview ? [...overview.lanes.values()] : [];
  const { columns, busy, main } = overview ?? { columns: 1, busy: [], main: [] };
  const each = (height - 6) / Math.max(1, lines.length);
  for (const [n, lane] of lines.entries()) {
    const y = 3 + n * each;
    const step = width / columns;
    for (let column = 0; column < columns; column += 1) {
      const i = lane.bins * columns + column;
      if (!busy[i]) continue;
      context.globalAlpha = 0.25 + (0.75 * busy[i]) / 255;
      context.fillStyle = paints.colour[main[i]];
      context.fillRect(column * step, y, step + 0.3, Math.max(1, each - 1));
    }
  }
  context.globalAlpha = 1;
  const [a, b] = windowOnMap(window, whole, width);
  context.fillStyle = theme.background;
  context.globalAlpha = 0.62;
  context.fillRect(0, 0, a, height);
  context.fillRect(b, 0, width - b, height);
  context.globalAlpha = 1;
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  context.strokeRect(a + 0.75, 0.75, Math.max(b - a - 1.5, 1), height - 1.5);
  context.fillStyle = theme.accent;
  for (const x of [a, b]) context.fillRect(x - 2, height / 2 - 7, 4, 14);
}

/**
 * Pixels of the shown window on the minimap, at least some wide.
 * @param {import("./types").Window} window
 * @param {import("./types").Window} whole
 * @param {number} width
 * @returns {import("./types").Window}
 */
export function windowOnMap(window, whole, width) {
  const [a, b] = window.map((ns) => toPx(ns, whole, width));
  if (b - a >= 6) return [a, b];
  const middle = (a + b) / 2;
  return [middle - 3, middle + 3];
}
