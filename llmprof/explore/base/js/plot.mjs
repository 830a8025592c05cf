// Axes, marks that can be pointed at, tables and legends of the explorers. Names begin with "plot".
import { FONT, fitCanvas, textWidth } from "./canvas.mjs";
import { h } from "./dom.mjs";
import { distinct, fitsInto, nameSpan } from "./names.mjs";

export const PLOT_TEXT = 12;
const NAME_ROOM = 164; // of a cell in base.css

/**
 * @typedef {[number, number]} Pair
 * @typedef {{log: boolean, domain: Pair, range: Pair, to: (value: number) => number, from: (px: number) => number}} Scale
 * @typedef {{left: number, top: number, right: number, bottom: number}} Area
 * @typedef {{scale: Scale, ticks: number[], title: string, format?: (value: number) => string, grid?: boolean,
 *   titleLeft?: number, over?: number}} Axis
 * @typedef {import("./theme.mjs").Colours} Colours
 * @typedef {CanvasRenderingContext2D} Context
 */

/**
 * Something drawn that can be pointed at, and what it stands for.
 * @template [D=any]
 * @typedef {{x: number, y: number, w: number, h: number, data: D}} Mark
 */

/** @typedef {(string | [string, string])[]} Lines  Lines of a card: texts, or names with their values. */

/**
 * Options of a panel but for the colours: {@link plotPanel}.
 * @template [D=any]
 * @typedef {object} Chart
 * @property {string} label
 * @property {number | ((width: number) => number)} height
 * @property {(context: Context, width: number, height: number, colours: Colours) => Mark<D>[] | undefined} draw
 * @property {(data: D) => Lines} describe
 * @property {(data: D, mark: Mark<D>) => void} [pick]
 * @property {(from: number, to: number) => void} [drag]
 * @property {Record<string, (event: KeyboardEvent) => void>} [keys]
 * @property {number} [reach]
 */

/** @typedef {{el: HTMLElement, canvas: HTMLCanvasElement, redraw: () => void, marks: () => Mark[], stop: () => void}} Panel */

/**
 * Linear scale from a domain of values to a range of pixels.
 * @param {Pair} domain
 * @param {Pair} range
 * @returns {Scale}
 */
export function plotLinear(domain, range) {
  const span = domain[1] - domain[0] || 1;
  /** @param {number} value */
  const to = (value) => range[0] + ((value - domain[0]) / span) * (range[1] - range[0]);
  /** @param {number} px */
  const from = (px) => domain[0] + ((px - range[0]) / (range[1] - range[0] || 1)) * span;
  return { log: false, domain, range, to, from };
}

/**
 * Logarithmic scale; values at or below zero lie at its lower end.
 * @param {Pair} domain
 * @param {Pair} range
 * @returns {Scale}
 */
export function plotLog(domain, range) {
  const [low, high] = [Math.log(domain[0]), Math.log(domain[1])];
  const span = high - low || 1;
  /** @param {number} value */
  const to = (value) => {
    const share = value > 0 ? Math.max(0, (Math.log(value) - low) / span) : 0;
    return range[0] + share * (range[1] - range[0]);
  };
  /** @param {number} px */
  const from = (px) => Math.exp(low + ((px - range[0]) / (range[1] - range[0] || 1)) * span);
  return { log: true, domain, range, to, from };
}

/**
 * About `count` round values between two.
 * @param {number} low
 * @param {number} high
 * @param {number} [count]
 */
export function plotTicks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = [0.5, 1, 2, 5, 10].map((m) => m * power);
  const fits = steps.findIndex((s) => s >= rough * 0.999999);
  let [step, first, last] = [0, 0, 0];
  for (let at = fits < 0 ? steps.length - 1 : fits; at >= 0 && last - first < 1; at -= 1) {
    step = steps[at]; // of one value alone nobody can read a scale
    first = Math.ceil(low / step - 1e-9);
    last = Math.floor(high / step + 1e-9);
  }
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/**
 * Powers of ten between two values, with 2 and 5 between them where they are few, and thinned where they are many.
 * @param {number} low
 * @param {number} high
 * @param {number} [most]
 */
export function plotLogTicks(low, high, most = 8) {
  const decades = Math.log10(high / low);
  const steps = decades < 2.2 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) {
      const tick = Number(`${step}e${power}`);
      if (tick >= low * 0.999999 && tick <= high * 1.000001) found.push(tick);
    }
  }
  const every = Math.ceil(found.length / most);
  return found.filter((_, i) => i % every === 0);
}

/**
 * Largest unit of which a duration has at least one; for a whole axis.
 * @param {number | null} ns
 * @returns {{symbol: string, ns: number}}
 */
export function plotUnit(ns) {
  /** @type {[string, number][]} */
  const units = [
    ["s", 1e9],
    ["ms", 1e6],
    ["us", 1e3],
  ];
  const [symbol, size] = units.find(([, one]) => Math.abs(ns || 0) >= one) ?? ["ns", 1];
  return { symbol, ns: size };
}

/**
 * Tick label without needless digits.
 * @param {number} value
 */
export function plotLabel(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7))
    return value.toExponential().replace("e+", "e");
  return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
}

/**
 * First and last place whose labels fit: every n-th of `count` places that are `step` px apart.
 * @param {number} count
 * @param {number} step
 * @param {number} room
 */
export function plotEvery(count, step, room) {
  const least = Math.max(1, Math.ceil(room / Math.max(step, 1e-6)));
  const power = 10 ** Math.floor(Math.log10(least));
  return Math.min(Math.max(count, 1), [1, 2, 5, 10].map((m) => m * power).find((n) => n >= least) ?? 10 * power);
}

/**
 * Colour of a share (0..1) of a ramp of [r, g, b] stops.
 * @param {number[][]} stops
 * @param {number} share
 */
export function plotRamp(stops, share) {
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(at));
  return [0, 1, 2].map((c) => Math.round(stops[i][c] + (at - i) * (stops[i + 1][c] - stops[i][c])));
}

/**
 * Mark under a point: the last drawn one that holds it, else the nearest within `reach` px; null if there is none.
 * @template D
 * @param {Mark<D>[]} marks
 * @param {number} x
 * @param {number} y
 * @param {number} [reach]
 */
export function plotHit(marks, x, y, reach = 6) {
  /** @type {Mark<D> | null} */
  let best = null;
  let least = reach;
  for (let i = marks.length - 1; i >= 0; i -= 1) {
    const mark = marks[i];
    const dx = Math.max(mark.x - x, 0, x - (mark.x + mark.w));
    const dy = Math.max(mark.y - y, 0, y - (mark.y + mark.h));
    if (dx === 0 && dy === 0) return mark;
    const away = Math.hypot(dx, dy);
    if (away < least) [best, least] = [mark, away];
  }
  return best;
}

/**
 * The next mark from one in the direction of an arrow key; the first one from none.
 * @template D
 * @param {Mark<D>[]} marks
 * @param {Mark<D> | null} from
 * @param {string} key
 */
export function plotStep(marks, from, key) {
  if (!marks.length) return null;
  if (!from) return marks[0];
  /** @param {Mark} mark */
  const middle = (mark) => [mark.x + mark.w / 2, mark.y + mark.h / 2];
  const [x, y] = middle(from);
  const axis = key === "ArrowLeft" || key === "ArrowRight" ? 0 : 1;
  const sign = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
  /** @type {Mark<D> | null} */
  let best = null;
  let least = Infinity;
  for (const mark of marks) {
    const away = [middle(mark)[0] - x, middle(mark)[1] - y];
    if (away[axis] * sign <= 0.01) continue;
    const cost = Math.abs(away[axis]) + 4 * Math.abs(away[1 - axis]);
    if (cost < least) [best, least] = [mark, cost];
  }
  return best ?? from;
}

/**
 * Lines, ticks, labels and titles of two axes around an area; either may be left out.
 * @param {Context} context
 * @param {Area} area
 * @param {Colours} colours
 * @param {{x?: Axis, y?: Axis}} axes
 */
export function plotAxes(context, area, colours, { x, y }) {
  context.font = `${PLOT_TEXT}px ${FONT}`;
  context.lineWidth = 1;
  if (y) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of y.ticks) {
      const at = Math.round(y.scale.to(tick)) + 0.5;
      if (y.grid !== false) plotLine(context, [area.left, at], [area.right, at], colours.faint);
      context.fillStyle = colours.muted;
      context.fillText((y.format ?? plotLabel)(tick), area.left - 6, at);
    }
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillStyle = colours.muted;
    context.fillText(y.title, y.titleLeft ?? 2, area.top - 9);
  }
  if (x) {
    const base = Math.round(area.bottom) + 0.5;
    plotLine(context, [area.left, base], [area.right, base], colours.rule);
    context.textBaseline = "top";
    let free = -Infinity;
    for (const tick of x.ticks) {
      const at = x.scale.to(tick);
      const text = (x.format ?? plotLabel)(tick);
      const half = textWidth(context, text, PLOT_TEXT) / 2;
      plotLine(context, [Math.round(at) + 0.5, base], [Math.round(at) + 0.5, base + 4], colours.rule);
      const middle = Math.min(at, area.right + (x.over ?? 8) - half);
      if (middle - half < free) continue;
      free = middle + half + 8;
      context.textAlign = "center";
      context.fillStyle = colours.muted;
      context.fillText(text, middle, base + 6);
    }
    context.textAlign = "center";
    context.fillStyle = colours.muted;
    context.fillText(x.title, (area.left + area.right) / 2, base + 23);
  }
}

/**
 * A line between two points.
 * @param {Context} context
 * @param {Pair} from
 * @param {Pair} to
 * @param {string} colour
 * @param {{width?: number, dash?: number[]}} [style]
 */
export function plotLine(context, from, to, colour, { width = 1, dash = [] } = {}) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
  context.setLineDash([]);
}

/**
 * Text at a point.
 * @param {Context} context
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {string} colour
 * @param {{size?: number, align?: CanvasTextAlign, base?: CanvasTextBaseline, bold?: boolean}} [style]
 */
export function plotText(
  context,
  text,
  x,
  y,
  colour,
  { size = PLOT_TEXT, align = "left", base = "middle", bold = false } = {},
) {
  context.font = `${bold ? "bold " : ""}${size}px ${FONT}`;
  context.textAlign = align;
  context.textBaseline = base;
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

/**
 * A chart on a canvas whose marks can be pointed at, reached with the arrow keys and picked (click, Enter).
 *
 * `draw` returns the marks; `describe` the lines of the card: texts, or [name, value] pairs; `pick` is what a click and
 * Enter do, `drag` what dragging from one x to another does; `keys` maps further keys to functions.
 *
 * @template D
 * @param {Chart<D> & {colours: () => Colours}} options
 */
export function plotPanel({ label, height, colours, draw, describe, pick, drag, keys = {}, reach = 6 }) {
  const canvas = h("canvas", { class: "lp-plot", tabindex: "0", role: "application", "aria-label": label });
  const tip = h("div", { class: "lp-tip", hidden: true });
  const said = h("span", { class: "lp-hidden", "aria-live": "polite" });
  const el = h("div", { class: "lp-panel" }, canvas, tip, said);
  /** @type {{marks: Mark<D>[], at: Mark<D> | null, from: number | null, to: number | null}} */
  const state = { marks: [], at: null, from: null, to: null };

  const paint = () => {
    const width = Math.floor(el.clientWidth);
    if (!width) return;
    const tall = typeof height === "function" ? height(width) : height;
    const context = fitCanvas(canvas, width, tall);
    const now = colours();
    context.fillStyle = now.background;
    context.fillRect(0, 0, width, tall);
    const [index, count] = [state.at ? state.marks.indexOf(state.at) : -1, state.marks.length];
    state.marks = draw(context, width, tall, now) ?? [];
    state.at = state.marks.length === count ? (state.marks[index] ?? null) : null; // arrow keys go on from there
    if (state.at && !tip.hidden) {
      const { x, y, w, h: high } = state.at;
      context.strokeStyle = now.select;
      context.lineWidth = 1.5;
      context.strokeRect(x - 0.5, y - 0.5, w + 1, high + 1);
    }
    if (state.from !== null && state.to !== null) {
      context.fillStyle = now.shade;
      context.fillRect(Math.min(state.from, state.to), 0, Math.abs(state.to - state.from), tall);
    }
  };
  /** @param {Mark<D> | null} mark */
  const show = (mark) => {
    state.at = mark;
    tip.hidden = !mark;
    if (mark) {
      const lines = describe(mark.data).map((line) =>
        Array.isArray(line)
          ? h("div", { class: "lp-pair" }, h("span", { text: line[0] }), h("b", { text: line[1] }))
          : h("div", { class: "lp-head", text: line }),
      );
      tip.replaceChildren(...lines);
      const room = el.clientWidth;
      const right = mark.x + mark.w + 10;
      const left = right + tip.offsetWidth <= room ? right : Math.max(0, mark.x - tip.offsetWidth - 10);
      tip.style.left = `${Math.min(left, Math.max(0, room - tip.offsetWidth))}px`;
      tip.style.top = `${Math.max(0, mark.y - 6)}px`;
    }
    paint();
  };
  /** @param {MouseEvent} event */
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const [x, y] = place(event);
    if (state.from !== null && Math.abs(x - state.from) > 4) {
      state.to = x;
      tip.hidden = true;
      paint();
      return;
    }
    const mark = plotHit(state.marks, x, y, reach);
    canvas.style.cursor = mark && pick ? "pointer" : "default";
    if (mark !== state.at || tip.hidden === Boolean(mark)) show(mark);
  });
  canvas.addEventListener("pointerleave", () => {
    if (state.from === null && state.at) show(null);
  });
  canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0) return;
    const [x] = place(event);
    if (drag) {
      state.from = x;
      canvas.setPointerCapture(event.pointerId);
    }
  });
  canvas.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const [x, y] = place(event);
    const { from, to } = state;
    state.from = null;
    state.to = null;
    if (drag && from !== null && to !== null && Math.abs(to - from) > 4) {
      drag(Math.min(from, x), Math.max(from, x));
      return paint();
    }
    const mark = event.button === 0 ? plotHit(state.marks, x, y, reach) : null;
    if (mark && pick) pick(mark.data, mark);
    return paint();
  });
  canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key.startsWith("Arrow") && !event.shiftKey) {
      show(plotStep(state.marks, state.at, event.key));
      said.textContent = state.at ? describe(state.at.data).flat().join(" ") : "";
    } else if (event.key === "Enter" && state.at && pick) pick(state.at.data, state.at);
    else if (event.key === "Escape") show(null);
    else if (keys[event.key]) keys[event.key](event);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  canvas.addEventListener("blur", () => show(null));
  const watch = new ResizeObserver(() => paint());
  watch.observe(el);
  const redraw = () => {
    tip.hidden = true;
    paint();
  };
  return { el, canvas, redraw, marks: () => state.marks, stop: () => watch.disconnect() };
}

/**
 * Keys of a panel over time: + = w zoom in, - s zoom out, a d move, 0 shows all.
 * @param {{zoom: (factor: number) => void, pan?: (share: number) => void, all: () => void}} does
 * @returns {Record<string, () => void>}
 */
export function plotKeys({ zoom, pan, all }) {
  const [closer, wider] = [() => zoom(0.5), () => zoom(2)];
  /** @type {Record<string, () => void>} */
  const sideways = pan ? { a: () => pan(-0.25), d: () => pan(0.25) } : {};
  return { "+": closer, "=": closer, w: closer, "-": wider, s: wider, ...sideways, 0: all };
}

/**
 * Heading of a part of a widget, and the part.
 * @param {string} title
 * @param {...any} children
 */
export function plotPart(title, ...children) {
  const head = h("h4", { class: "lp-title", text: title });
  return { el: h("section", { class: "lp-part" }, head, ...children), head };
}

/**
 * Squares of colours with their names.
 * @param {[string, string][]} entries
 */
export function plotLegend(entries) {
  /** @param {[string, string]} entry */
  const one = ([name, colour]) => {
    const square = h("span", { class: "lp-square" });
    square.style.background = colour;
    return h("span", { class: "lp-key" }, square, h("span", { text: name }));
  };
  return h("div", { class: "lp-legend" }, entries.map(one));
}

/**
 * @typedef {{name: string, title: string, tip?: string, number?: boolean, names?: boolean,
 *   format?: (value: any, row: any) => string}} TableColumn  `names`: where names would read alike, they are told apart
 */

/**
 * Table of rows (objects); columns are {name, title, number, format(value, row)}. With pick, the first cell of a
 * row is a button; the row whose `chosen(row)` is true is marked.
 *
 * @param {TableColumn[]} columns
 * @param {Record<string, any>[]} rows
 * @param {{caption?: string, pick?: (row: any) => void, chosen?: (row: any) => boolean, empty?: string}} [options]
 */
export function plotTable(columns, rows, { caption, pick, chosen = () => false, empty = "none" } = {}) {
  /** @type {(column: TableColumn, row: Record<string, any>) => string} */
  const textOf = (column, row) =>
    column.format ? column.format(row[column.name], row) : String(row[column.name] ?? "");
  /** @type {Map<TableColumn, Map<string, string>>} */
  const told = new Map();
  for (const column of columns.filter((one) => one.names)) {
    const names = rows.map((row) => textOf(column, row));
    told.set(column, distinct(names, fitsInto(NAME_ROOM)));
  }
  /**
   * @param {TableColumn} column
   * @param {Record<string, any>} row
   * @param {boolean} first
   */
  const cell = (column, row, first) => {
    const text = textOf(column, row);
    const props = { class: column.number ? "lp-number" : undefined, title: text.length > 30 ? text : undefined };
    if (told.has(column)) return h("td", props, nameSpan(text, told.get(column)?.get(text)));
    if (!first || !pick) return h("td", { ...props, text });
    return h("td", props, h("button", { class: "lp-link", type: "button", text, onclick: () => pick(row) }));
  };
  /** @param {Record<string, any>} row */
  const line = (row) => {
    const cells = columns.map((column, i) => cell(column, row, i === 0));
    const el = h("tr", { "aria-selected": pick ? String(chosen(row)) : undefined }, cells);
    if (pick)
      el.addEventListener("click", (/** @type {any} */ event) => event.target.tagName !== "BUTTON" && pick(row));
    return el;
  };
  const head = h(
    "tr",
    {},
    columns.map((c) =>
      h("th", { class: c.number ? "lp-number" : undefined, scope: "col", text: c.title, title: c.tip }),
    ),
  );
  const nothing = h("tr", {}, h("td", { colspan: columns.length, text: empty }));
  const body = h("tbody", {}, rows.length ? rows.map(line) : nothing);
  const made = h("table", {}, h("caption", { class: "lp-hidden", text: caption ?? "" }), h("thead", {}, head), body);
  return h("div", { class: "lp-scroll", tabindex: "0", role: "region", "aria-label": caption ?? "table" }, made);
}
