// Marks on the axis of time: their flags, their distances, and a list with notes. Names begin with "mark".
import { textWidth } from "../base/js/canvas.mjs";
import { fill, h } from "../base/js/dom.mjs";
import { formatNs } from "../base/js/format.mjs";
import { toPx } from "../base/js/geometry.mjs";
import { setTraits } from "../base/js/wire.mjs";

export const MARKS_HEIGHT = 20;
const TEXT = 12;

/**
 * Marks with one more, in the order of time; one at the same time stays one.
 * @param {import("./types").Mark[]} marks
 * @param {number} time
 * @returns {import("./types").Mark[]}
 */
export function marksWith(marks, time) {
  if (marks.some((mark) => Math.abs(mark.time - time) < 0.5)) return marks;
  return [...marks, { time, text: "" }].sort((a, b) => a.time - b.time);
}

/**
 * What lies between neighbouring marks: {from, to, ns}.
 * @param {import("./types").Mark[]} marks
 */
export function marksBetween(marks) {
  return marks.slice(1).map((mark, i) => ({ from: marks[i].time, to: mark.time, ns: mark.time - marks[i].time }));
}

/**
 * Lines of the marks over the rows.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./types").Mark[]} marks
 * @param {number} height
 * @param {import("./types").Scene} scene
 */
export function drawMarks(context, marks, height, { window, width, theme }) {
  context.fillStyle = theme.warning;
  for (const { time } of marks) {
    const x = Math.round(toPx(time, window, width));
    if (x >= 0 && x <= width) context.fillRect(x, 0, 1, height);
  }
}

/**
 * Flags with numbers, and the distance of each two neighbours where there is room for it.
 * @param {CanvasRenderingContext2D} context
 * @param {number} y
 * @param {number} height
 * @param {import("./types").Mark[]} marks
 * @param {import("./types").Scene} scene
 */
export function drawFlags(context, y, height, marks, { window, width, theme }) {
  context.fillStyle = theme.background;
  context.fillRect(0, y, width, height);
  const middle = y + height / 2;
  for (const { from, to, ns } of marksBetween(marks)) {
    const [a, b] = [from, to].map((time) => toPx(time, window, width));
    const text = `Δ ${formatNs(ns)}`;
    const wide = textWidth(context, text, TEXT);
    const [left, right] = [Math.max(a + 18, 0), Math.min(b, width)];
    if (right - left < wide + 12) continue;
    context.fillStyle = theme.rule;
    context.fillRect(left, Math.round(middle), right - left, 1);
    const x = (left + right - wide) / 2;
    context.fillStyle = theme.background;
    context.fillRect(x - 4, y, wide + 8, height);
    context.fillStyle = theme.ink;
    context.fillText(text, x, middle + 0.5);
  }
  marks.forEach(({ time }, i) => {
    const x = Math.round(toPx(time, window, width));
    if (x < -20 || x > width) return;
    const text = String(i + 1);
    context.fillStyle = theme.warning;
    context.fillRect(x, y + 2, textWidth(context, text, TEXT) + 8, height - 4);
    context.fillRect(x, y, 1, height);
    context.fillStyle = theme.background;
    context.fillText(text, x + 4, middle + 0.5);
  });
}

/**
 * Marks of the timeline: methods of it.
 * @satisfies {ThisType<import("./timeline.mjs").Timeline>}
 */
export const marking = {
  /**
   * @returns {import("./types").Mark[]}
   */
  marksNow() {
    return /** @type {import("./types").Mark[]} */ (this.model.get("marks") ?? []);
  },

  marksRoom() {
    return this.marksNow().length ? MARKS_HEIGHT : 0;
  },

  /** Set a mark where the pointer is; else where the selection begins, or in the middle. */
  addMark() {
    const time = this.pointed ?? this.hit?.start ?? this.span?.[0] ?? (this.window[0] + this.window[1]) / 2;
    this.setMarks(marksWith(this.marksNow(), Math.round(time)));
    this.said.textContent = `Mark at ${formatNs(time)}`;
  },

  /**
   * @param {import("./types").Mark[]} marks
   */
  setMarks(marks) {
    setTraits(this.model, { marks });
    this.marksChanged();
  },

  marksChanged() {
    if (!this.described) return;
    this.marks.show(this.marksNow(), this.model.get("notes_problem") ?? "");
    this.resize();
  },
};

/**
 * The list of marks: time, distance to the one before, and a note that can be written.
 * @param {import("./timeline.mjs").Timeline} timeline
 */
export function makeMarks(timeline) {
  const el = h("div", { class: "lpt-marks", role: "group", "aria-label": "Marks and notes", hidden: true });
  // a mark is known by its time: others may have come before it while its line was in hand
  /**
   * @param {number} time
   * @param {string} text
   */
  const change = (time, text) =>
    timeline.setMarks(timeline.marksNow().map((mark) => (mark.time === time ? { ...mark, text } : mark)));
  /** @param {number} time */
  const remove = (time) => timeline.setMarks(timeline.marksNow().filter((mark) => mark.time !== time));
  /** @param {import("./types").Mark} mark */
  const go = (mark) => {
    const half = (timeline.window[1] - timeline.window[0]) / 2;
    timeline.move([mark.time - half, mark.time + half]);
  };
  /**
   * @param {import("./types").Mark} mark
   * @param {number} i
   * @param {import("./types").Mark[]} marks
   */
  const line = (mark, i, marks) => {
    const note = h("input", {
      type: "text",
      value: mark.text,
      placeholder: "note",
      maxlength: "2000",
      "aria-label": `Note of mark ${i + 1}`,
      "data-mark": mark.time,
      onchange: () => change(mark.time, note.value),
    });
    note.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && note.blur());
    return h(
      "tr",
      {},
      h(
        "td",
        {},
        h("button", {
          type: "button",
          text: String(i + 1),
          "aria-label": `Go to mark ${i + 1}`,
          onclick: () => go(mark),
        }),
      ),
      h("td", { class: "lp-number", text: formatNs(mark.time) }),
      h("td", { class: "lp-number", text: i ? `Δ ${formatNs(mark.time - marks[i - 1].time)}` : "" }),
      h("td", {}, note),
      h(
        "td",
        {},
        h("button", {
          type: "button",
          text: "Remove",
          "aria-label": `Remove mark ${i + 1}`,
          onclick: () => remove(mark.time),
        }),
      ),
    );
  };
  let shown = "";
  /**
   * @param {import("./types").Mark[]} marks
   * @param {string} problem
   */
  const show = (marks, problem) => {
    const now = JSON.stringify([marks, problem]);
    if (now === shown) return;
    shown = now;
    const written = /** @type {HTMLElement | null} */ (el.querySelector(":focus"))?.dataset.mark;
    el.hidden = !marks.length && !problem;
    fill(
      el,
      problem ? h("p", { class: "lp-error", role: "alert", text: problem }) : null,
      marks.length
        ? h(
            "table",
            {},
            h("caption", { text: "Marks, kept with the trace" }),
            h("tbody", {}, ...marks.map((mark, i) => line(mark, i, marks))),
          )
        : null,
    );
    /** @type {HTMLElement | null} */ (el.querySelector(`[data-mark="${written}"]`))?.focus();
  };
  return { el, show };
}
