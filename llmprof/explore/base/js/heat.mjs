// A heat map over steps, of layers or of ranks: its scale of colours, its cells and what surrounds them.
import { textWidth } from "./canvas.mjs";
import { formatNs } from "./format.mjs";
import { PLOT_TEXT, plotEvery, plotLine, plotPanel, plotRamp, plotText } from "./plot.mjs";
import { inkOn } from "./theme.mjs";

/**
 * @typedef {import("./plot.mjs").Area} Area
 * @typedef {import("./plot.mjs").Context} Context
 * @typedef {import("./plot.mjs").Colours} Colours
 * @typedef {import("./plot.mjs").Mark<{column: number, row: number}>} Cell
 */
/** @typedef {{phase: string | null, low: number, high: number, most: number, log: boolean}} Scale  As in messages. */
/**
 * What is shown: columns (first and last step, place of their scale), first layer or rank of each row, and scales.
 * @typedef {{title: string, diverging: boolean, columns: [number, number, number][], layers: number[],
 *   scales: Scale[]}} Head
 */
/** @typedef {ArrayLike<number> & {indexOf: (value: number, from?: number) => number}} Flags */
/**
 * @template {Head} [H=Head]
 * @typedef {{head: H, values: ArrayLike<number>, outliers: Flags}} Shown
 */

// viridis (van der Walt and Smith) from dark to bright, and blue - white - red for gaps
const VIRIDIS = [
  [68, 1, 84],
  [71, 45, 123],
  [59, 82, 139],
  [44, 114, 142],
  [33, 145, 140],
  [40, 174, 128],
  [94, 201, 98],
  [173, 220, 48],
  [253, 231, 37],
];
const GAPS = [
  [33, 102, 172],
  [103, 169, 207],
  [209, 229, 240],
  [247, 247, 247],
  [253, 219, 199],
  [239, 138, 98],
  [178, 24, 43],
];
const GAPS_DARK = [
  [103, 169, 207],
  [58, 110, 160],
  [38, 58, 82],
  [30, 36, 43],
  [86, 46, 42],
  [178, 86, 60],
  [244, 165, 130],
];

/**
 * Ramp of a picture: what is long stands out from the page in either theme.
 * @param {boolean} diverging
 * @param {string} theme
 */
export function layerRamp(diverging, theme) {
  if (diverging) return theme === "dark" ? GAPS_DARK : GAPS;
  return theme === "dark" ? VIRIDIS : [...VIRIDIS].reverse();
}

/**
 * Share (0..1) of the scale of colours at which a value lies.
 * @param {number} value
 * @param {Pick<Scale, "low" | "high" | "log">} scale
 */
export function layerShare(value, { low, high, log }) {
  if (high <= low) return 0.5;
  if (!log) return (value - low) / (high - low);
  return Math.log(Math.max(value, low) / low) / Math.log(high / low);
}

/**
 * Sentence on values beyond the ends of their scales; none where no scale is cut.
 * @param {Pick<Scale, "most" | "high">[]} scales
 */
export function layerCut(scales) {
  const beyond = scales.filter(({ most, high }) => most > high).map(({ most }) => most);
  return beyond.length ? [`≥: the 95th percentile; the greatest value is ${formatNs(Math.max(...beyond))}.`] : [];
}

/**
 * Where the heat map lies on its canvas, under the legend with a line for each scale of colours.
 * @param {number} width
 * @param {number} layers
 * @param {number} steps
 * @param {number} [scales]
 * @returns {Area}
 */
export function layerArea(width, layers, steps, scales = 1) {
  const top = 46 + 16 * scales;
  const row = Math.min(15, Math.max(3, Math.floor(420 / Math.max(1, layers))));
  const tall = Math.max(row * layers, Math.min(60, 15 * layers));
  const left = 38;
  const room = Math.max(40, width - left - 12);
  const across = Math.min(room, Math.max(steps, 4) * 92);
  return { left, top, right: left + across, bottom: top + tall };
}

/**
 * Place of the next outlier after a cell (column after column, then from the start again); -1 if there is none.
 * @param {Flags} outliers
 * @param {number} at
 */
export function layerNext(outliers, at) {
  const after = outliers.indexOf(1, at + 1);
  return after < 0 ? outliers.indexOf(1) : after;
}

/**
 * Marks of the cells, column after column.
 * @param {Area} area
 * @param {number} columns
 * @param {number} layers
 * @returns {Cell[]}
 */
export function layerMarks(area, columns, layers) {
  const [w, tall] = [(area.right - area.left) / columns, (area.bottom - area.top) / layers];
  return Array.from({ length: columns * layers }, (_, at) => {
    const [column, row] = [Math.floor(at / layers), at % layers];
    return { x: area.left + column * w, y: area.top + row * tall, w, h: tall, data: { column, row } };
  });
}

/** @typedef {{one: string, many: string, row: (first: number) => string}} Rows  What a row is, and the words for one. */

/**
 * The heat map as a panel. shown() is {head, values, outliers} or null; chosen() the picked [step, layer];
 * pick(step, layer), steps(first, last) and keys are what gestures do; of says what a row is.
 *
 * @param {object} options
 * @param {() => Shown | null} options.shown
 * @param {() => [number | null, number | null]} options.chosen
 * @param {() => Record<string, string>} options.phases
 * @param {import("./theme.mjs").Theme} options.theme
 * @param {(step: number, layer: number) => void} options.pick
 * @param {(first: number, last: number) => void} options.steps
 * @param {Record<string, () => void>} options.keys
 * @param {Rows} options.of
 */
export function layerHeat({ shown, chosen, phases, theme, pick, steps, keys, of }) {
  /** @type {{canvas: HTMLCanvasElement, of: Shown, theme: string} | null} */
  let image = null; // the cells, a pixel each
  /** @type {{of: Shown, width: number, area: Area, marks: Cell[]} | null} */
  let grid = null; // their marks, made once for a picture
  /**
   * @param {Shown} picture
   * @param {Context} context
   * @param {number} width
   * @param {Colours} now
   */
  const draw = (picture, context, width, now) => {
    const { head, values, outliers } = picture;
    const [n, m] = [head.columns.length, head.layers.length];
    if (!n || !m) return [];
    const area = layerArea(width, m, n, head.scales.length);
    const ramp = layerRamp(head.diverging, theme.name());
    if (!image || image.of !== picture || image.theme !== theme.name()) {
      image = { canvas: layerImage(head, values, ramp, theme.name()), of: picture, theme: theme.name() };
    }
    if (!grid || grid.of !== picture || grid.width !== width)
      grid = { of: picture, width, area, marks: layerMarks(area, n, m) };
    const { marks } = grid;
    context.imageSmoothingEnabled = false;
    context.drawImage(image.canvas, area.left, area.top, area.right - area.left, area.bottom - area.top);
    const [w, t] = [(area.right - area.left) / n, (area.bottom - area.top) / m];
    layerLegend(context, width, now, head, ramp);
    layerPhases(context, area, head, w, phases());
    layerLabels(context, area, head, now, w, t, of.one);
    const radius = Math.max(1.2, Math.min(3.2, w / 3, t / 3));
    marks.forEach((mark, at) => {
      const [x, y] = [mark.x + w / 2, mark.y + t / 2];
      if (outliers[at]) layerOutlier(context, x, y, radius);
      else if (w > 9 && t > 9 && Number.isNaN(values[at])) plotText(context, "×", x, y, now.muted, { align: "center" });
    });
    const [step, layer] = chosen();
    const column = step === null ? -1 : head.columns.findIndex(([first, last]) => first <= step && step <= last);
    const row = layer === null ? -1 : head.layers.indexOf(layer);
    if (column >= 0 && row >= 0) {
      const [x, y] = [area.left + column * w, area.top + row * t];
      context.lineWidth = 2;
      context.strokeStyle = now.select;
      context.strokeRect(x, y, w, t);
      context.lineWidth = 1;
      context.strokeStyle = now.background;
      context.strokeRect(x - 1.5, y - 1.5, w + 3, t + 3);
    }
    return marks;
  };
  /**
   * @param {Shown | null} picture
   * @param {Cell["data"]} cell
   * @returns {import("./plot.mjs").Lines}
   */
  const describe = (picture, { column, row }) => {
    if (!picture) return [];
    const { head, values, outliers } = picture;
    const [first, last, scale] = head.columns[column];
    const { phase } = head.scales[scale];
    const at = column * head.layers.length + row;
    const value = values[at];
    const text = Number.isNaN(value) ? "not captured" : `${head.diverging && value > 0 ? "+" : ""}${formatNs(value)}`;
    const where = first === last ? `step ${first}` : `steps ${first} to ${last}`;
    /** @type {import("./plot.mjs").Lines} */
    const lines = [
      `${of.row(head.layers[row])}, ${where}`,
      ["phase", phase ?? "unknown"],
      [head.title.toLowerCase(), text],
    ];
    return outliers[at] ? [...lines, ["", "outlier of its step"]] : lines;
  };
  /**
   * @param {Head} head
   * @param {number} x
   * @param {Area} area
   */
  const columnAt = (head, x, area) => {
    const count = head.columns.length;
    const share = (x - area.left) / (area.right - area.left);
    return head.columns[Math.min(count - 1, Math.max(0, Math.floor(share * count)))];
  };
  return plotPanel({
    label: `Heat map of ${of.many} over steps. Arrow keys move, Enter opens a cell.`,
    height: () => {
      const head = shown()?.head;
      return head ? layerArea(0, head.layers.length, 1, head.scales.length).bottom + 44 : 60;
    },
    colours: () => theme.now(),
    draw: (context, width, _height, now) => {
      const picture = shown();
      return picture ? draw(picture, context, width, now) : [];
    },
    describe: (cell) => describe(shown(), cell),
    pick: ({ column, row }) => {
      const head = shown()?.head;
      if (head) pick(head.columns[column][0], head.layers[row]);
    },
    drag: (from, to) => {
      const head = shown()?.head;
      if (head && grid) steps(columnAt(head, from, grid.area)[0], columnAt(head, to, grid.area)[1]);
    },
    keys,
    reach: 2,
  });
}

/**
 * @param {Context} context
 * @param {Area} area
 * @param {Head} head
 * @param {Colours} now
 * @param {number} w
 * @param {number} t
 * @param {string} name
 */
function layerLabels(context, area, head, now, w, t, name) {
  const [n, m] = [head.columns.length, head.layers.length];
  const layerStep = plotEvery(m, t, PLOT_TEXT + 3);
  for (let i = 0; i < m; i += layerStep) {
    plotText(context, String(head.layers[i]), area.left - 6, area.top + (i + 0.5) * t, now.muted, { align: "right" });
  }
  const widest = textWidth(context, String(head.columns[n - 1][1]), PLOT_TEXT);
  const stepStep = plotEvery(n, w, widest + 14);
  for (let i = 0; i < n; i += stepStep) {
    const x = area.left + (i + 0.5) * w;
    plotLine(context, [x, area.bottom], [x, area.bottom + 4], now.rule);
    plotText(context, String(head.columns[i][0]), x, area.bottom + 6, now.muted, { align: "center", base: "top" });
  }
  plotText(context, "step", (area.left + area.right) / 2, area.bottom + 23, now.muted, {
    align: "center",
    base: "top",
  });
  plotText(context, name, 2, area.top - 10, now.muted);
}

/**
 * @param {Head} head
 * @param {ArrayLike<number>} values
 * @param {number[][]} ramp
 * @param {string} theme
 */
function layerImage(head, values, ramp, theme) {
  const [n, m] = [head.columns.length, head.layers.length];
  const canvas = document.createElement("canvas");
  canvas.width = n;
  canvas.height = m;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const cells = context.createImageData(n, m);
  const none = theme === "dark" ? [52, 60, 69] : [211, 215, 221];
  for (let column = 0; column < n; column += 1) {
    for (let row = 0; row < m; row += 1) {
      const value = values[column * m + row];
      const colour = Number.isNaN(value)
        ? none
        : plotRamp(ramp, layerShare(value, head.scales[head.columns[column][2]]));
      cells.data.set([...colour, 255], (row * n + column) * 4);
    }
  }
  context.putImageData(cells, 0, 0);
  return canvas;
}

/**
 * The ramp of colours, and under it the ends of the scale of each phase.
 * @param {Context} context
 * @param {number} width
 * @param {Colours} now
 * @param {Head} head
 * @param {number[][]} ramp
 */
function layerLegend(context, width, now, head, ramp) {
  const names = head.scales.map(({ phase, log }) => `${phase ?? "no phase"}${log ? " (log)" : ""}`);
  const left = Math.round(50 + Math.max(...[head.title, ...names].map((text) => textWidth(context, text, PLOT_TEXT))));
  const size = Math.min(260, Math.max(60, width - left - 14));
  for (let i = 0; i < size; i += 1) {
    context.fillStyle = `rgb(${plotRamp(ramp, i / (size - 1)).join(",")})`;
    context.fillRect(left + i, 3, 1, 12);
  }
  plotText(context, head.title, 38, 9, now.ink);
  head.scales.forEach(({ low, high, most }, i) => {
    const y = 25 + 16 * i;
    plotText(context, names[i], 38, y, now.muted);
    plotText(context, `${head.diverging && most > high ? "≤ " : ""}${formatNs(low)}`, left, y, now.muted);
    plotText(context, `${most > high ? "≥ " : ""}${formatNs(high)}`, left + size, y, now.muted, { align: "right" });
  });
}

/**
 * @param {Context} context
 * @param {Area} area
 * @param {Head} head
 * @param {number} w
 * @param {Record<string, string>} colours
 */
function layerPhases(context, area, head, w, colours) {
  let from = 0;
  for (let i = 1; i <= head.columns.length; i += 1) {
    const { phase } = head.scales[head.columns[from][2]];
    if (i < head.columns.length && head.columns[i][2] === head.columns[from][2]) continue;
    const colour = colours[phase ?? ""] ?? "#9AA5B1";
    context.fillStyle = colour;
    context.fillRect(area.left + from * w, area.top - 20, (i - from) * w - (w > 4 ? 1 : 0), 16);
    const text = [phase ?? "", (phase ?? "").slice(0, 1)].find(
      (t) => textWidth(context, t, PLOT_TEXT) + 4 <= (i - from) * w,
    );
    const middle = area.left + ((from + i) / 2) * w;
    if (text) plotText(context, text, middle, area.top - 12, inkOn(colour), { align: "center" });
    from = i;
  }
}

/**
 * @param {Context} context
 * @param {number} x
 * @param {number} y
 * @param {number} radius
 */
function layerOutlier(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = "#ffffff";
  context.fill();
  context.lineWidth = 1;
  context.strokeStyle = "#000000";
  context.stroke();
}
