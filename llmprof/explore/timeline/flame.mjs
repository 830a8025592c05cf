// The flame graph of the selection: by stage, module or Python function. Names begin with "flame".
import { fitText, textWidth } from "../base/js/canvas.mjs";
import { h, labelled, saveFile } from "../base/js/dom.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import { PLOT_TEXT, plotPanel, plotText } from "../base/js/plot.mjs";
import { inkOn } from "../base/js/theme.mjs";

const ROW = 20;
const MOST_TALL = 360;
const TONES = ["#F3D9B1", "#F0C48A", "#EDB873", "#E9A86B", "#F2CFA0", "#E8B98F"];
/** @typedef {import("./messages").Messages["flame"]["answers"]} Answer */
/** @typedef {Answer["kinds"][number]} By */
/** @typedef {{name: string, level: number, start: number, end: number, place: number, parent: number}} Frame */

/** @type {Record<By, string>} */
const WORDS = { host: "what the host ran", stage: "stage", module: "module", python: "Python function" };

/**
 * Frames of a flame graph from its columns: {name, level, start, end, parent, place}, each after its parent.
 * @param {Pick<Answer, "names" | "name" | "level" | "start" | "value">} answer
 * @returns {Frame[]}
 */
export function flameFrames({ names, name, level, start, value }) {
  const frames = name.map((/** @type {number} */ number, /** @type {number} */ i) => ({
    name: names[number],
    level: level[i],
    start: start[i],
    end: start[i] + value[i],
    place: i,
    parent: -1,
  }));
  /** @type {Map<number, Frame[]>} */
  const at = new Map();
  for (const frame of frames) at.set(frame.level, [...(at.get(frame.level) ?? []), frame]);
  for (const [depth, row] of at) {
    const above = at.get(depth - 1) ?? [];
    let k = 0;
    for (const frame of row.sort((a, b) => a.start - b.start)) {
      while (k < above.length - 1 && above[k].end <= frame.start) k += 1;
      if (above[k] && above[k].start <= frame.start && frame.end <= above[k].end) frame.parent = above[k].place;
    }
  }
  return frames;
}

/**
 * Boxes of the frames below a root (null: all), and its ancestors as whole lines: {frame, x, y, w, h}. Frames narrower
 * than half a pixel are left out.
 * @param {Frame[]} frames
 * @param {Frame | null} root
 * @param {number} total
 * @param {number} width
 */
export function flameBoxes(frames, root, total, width) {
  const [from, to] = root ? [root.start, root.end] : [0, total];
  const boxes = [];
  for (const frame of frames) {
    if (frame.end <= from || frame.start >= to) continue;
    const around = root !== null && frame.level <= root.level;
    if (around && (frame.start > from || frame.end < to)) continue;
    const x = around ? 0 : ((frame.start - from) / (to - from)) * width;
    const w = around ? width : ((frame.end - frame.start) / (to - from)) * width;
    if (w >= 0.5) boxes.push({ frame, x, y: frame.level * ROW, w, h: ROW - 1 });
  }
  return boxes;
}

/**
 * The last parts of a path are what tells functions apart; of a C++ function its own name, not what it returns and where it is.
 * @param {string} name
 */
export function flameLabel(name) {
  const cpp = /^(?:void |std::\S+ )?(?:(?:\w+|\(anonymous namespace\))::)*(\w+[<(].*)$/.exec(name);
  if (cpp && !name.includes("/")) return cpp[1];
  return name.startsWith("nn.Module: ") ? name.slice(11) : (name.split("/").pop() ?? name);
}

/** @param {string} name */
const tone = (name) => {
  let sum = 7;
  for (let i = 0; i < name.length; i += 1) sum = (sum * 31 + name.charCodeAt(i)) % 9973;
  return TONES[sum % TONES.length];
};

/**
 * The panel: {el, toggle(open), update(), recolour(), stop()}; update asks anew if what is selected has changed.
 * @param {import("./timeline.mjs").Timeline} timeline
 */
export function makeFlame(timeline) {
  /** @type {Frame[]} */
  let frames = [];
  /** @type {Answer | null} */
  let answer = null;
  /** @type {Frame | null} */
  let root = null;
  let asked = "";
  const words = h("strong", { "aria-live": "polite" });
  const by = labelled("By", [["stage", "stage"]], "stage", () => load());
  const out = h("button", { type: "button", text: "Whole", title: "All frames (0)", onclick: () => zoom(null) });
  const save = h("button", {
    type: "button",
    text: "Save for speedscope",
    title: "A file for speedscope, which shows it in a browser",
    onclick: () => download(),
  });
  const close = h("button", { type: "button", text: "Close", title: "Key: T", onclick: () => toggle(false) });
  const note = h("p", { class: "lpt-hint" });
  const colours = () => {
    /** @type {Map<string, string>} */
    const now = new Map();
    const keys = timeline.described?.keys ?? [];
    keys.forEach((key, i) => {
      if (key.kind === "stage" || key.kind === "phase") now.set(key.name, timeline.paints.colour[i]);
    });
    return now;
  };
  /**
   * @param {Frame} frame
   * @param {Map<string, string>} known
   */
  const paint = (frame, known) => {
    if (by.select.value !== "stage") return tone(frame.name);
    /** @type {Frame | undefined} */
    let one = frame;
    while (one && !known.has(one.name)) one = frames[one.parent];
    return (one && known.get(one.name)) ?? tone(frame.name);
  };
  const panel = plotPanel({
    label: "Flame graph. Arrow keys move, Enter looks closer, Backspace goes back, 0 shows all.",
    height: () => (Math.max(-1, ...frames.map((frame) => frame.level)) + 1) * ROW + 2,
    colours: () => timeline.theme.now(),
    draw: (context, width, _height, now) => {
      const known = colours();
      return flameBoxes(frames, root, answer?.total ?? 1, width).map(({ frame, x, y, w, h: tall }) => {
        const colour = paint(frame, known);
        context.globalAlpha = root && frame.level < root.level ? 0.55 : 1;
        context.fillStyle = colour;
        context.fillRect(x, y, w > 3 ? w - 1 : w, tall);
        context.globalAlpha = 1;
        const label = flameLabel(frame.name);
        if (w > 30 && textWidth(context, label.slice(0, 3), PLOT_TEXT) < w - 8) {
          const ink = root && frame.level < root.level ? now.ink : inkOn(colour);
          plotText(context, fitText(context, label, PLOT_TEXT, w - 8), x + 4, y + tall / 2, ink);
        }
        return { x, y, w, h: tall, data: frame };
      });
    },
    describe: (frame) => [
      frame.name.slice(0, 300),
      ["time", formatNs(frame.end - frame.start)],
      ["share", formatShare((frame.end - frame.start) / (answer?.total ?? 1))],
    ],
    pick: (frame) => zoom(frame === root ? (frames[frame.parent] ?? null) : frame),
    keys: { Backspace: () => zoom(root ? (frames[root.parent] ?? null) : null), 0: () => zoom(null) },
    reach: 0,
  });
  const box = h("div", { class: "lpt-flamebox" }, panel.el);
  box.style.maxHeight = `${MOST_TALL}px`;
  const el = h(
    "div",
    { class: "lpt-hits lpt-flame", role: "group", "aria-label": "Flame graph of the selection", hidden: true },
    h("div", { class: "lpt-title" }, words, by.el, h("span", { class: "lpt-actions" }, out, save, close)),
    box,
    note,
  );
  /** @param {Frame | null} frame */
  const zoom = (frame) => {
    root = frame;
    out.disabled = !root;
    el.dataset.root = root ? root.name : "";
    panel.redraw();
  };
  const download = async () => {
    const made = await timeline.get("speedscope", { by: by.select.value });
    if (made) saveFile(made.msg.file, made.msg.content, "application/json");
  };
  const load = async () => {
    if (el.hidden) return;
    el.dataset.of = "";
    if (!timeline.described?.found) {
      asked = ""; // once steps and layers are found
      return;
    }
    const selected = asked;
    const wanted = by.select.value;
    const made = await timeline.get("flame", { by: wanted });
    if (!made || wanted !== by.select.value) return;
    const answered = made.msg;
    answer = answered;
    frames = flameFrames(answered);
    by.update(
      answered.kinds.map((kind) => [kind, WORDS[kind]]),
      answered.by,
    );
    const [one, many] =
      answered.by === "host" ? ["span", "spans of the host"] : ["kernel or copy", "kernels and copies"];
    save.disabled = !answered.total;
    words.textContent = answered.total
      ? `${formatNs(answered.total)} of ${answered.events === 1 ? `1 ${one}` : `${formatNumber(answered.events)} ${many}`} in ${answered.of}`
      : answered.problem || `No ${one} in ${answered.of}`;
    const trunk = answered.trunk.length
      ? `All stacks begin with ${formatNumber(answered.trunk.length)} frame${answered.trunk.length > 1 ? "s" : ""}, down to ${answered.trunk[answered.trunk.length - 1].slice(-80)}. `
      : "";
    const narrow = answered.left_out
      ? `${formatShare(answered.left_out / answered.total)} are in frames too narrow to draw. `
      : "";
    note.textContent = answered.total
      ? `${trunk}${narrow}${answered.by === "host" ? "Times inside the selection; threads count beside each other." : "Times of whole kernels and copies, added up; work on two streams at once counts twice."}`
      : "";
    zoom(null);
    el.dataset.of = JSON.stringify({ by: answered.by, selected });
  };
  const now = () =>
    JSON.stringify([
      timeline.model.get("span_kind"),
      timeline.span,
      timeline.spanRows,
      timeline.hit && [timeline.hit.row, timeline.hit.id],
    ]);
  /** Ask anew where the selection is another one, once Python has been told of it. */
  const update = () => {
    if (el.hidden || asked === now()) return;
    asked = now();
    load();
  };
  const toggle = (open = el.hidden) => {
    const had = el.contains(document.activeElement) || el.getRootNode().activeElement === panel.canvas;
    el.hidden = !open;
    timeline.tools.flaming(open);
    if (open) {
      asked = now();
      load();
      panel.canvas.focus({ preventScroll: true });
      el.scrollIntoView({ block: "nearest" });
    } else if (had) timeline.mainPane.canvas.focus({ preventScroll: true });
    timeline.resize();
  };
  return { el, toggle, update, recolour: () => !el.hidden && panel.redraw(), stop: () => panel.stop() };
}
