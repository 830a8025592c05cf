// Drawing the timeline: methods of it.
import { fitCanvas } from "../base/js/canvas.mjs";
import { fill, h } from "../base/js/dom.mjs";
import { formatNs } from "../base/js/format.mjs";
import { toPx } from "../base/js/geometry.mjs";
import { binImage, drawArrows, drawMinimap, drawOutline, drawPane, drawRuler, hatchOf } from "./draw.mjs";
import { drawFlags, drawMarks } from "./marks.mjs";
import { levelOf, visibleItems } from "./rows.mjs";

export const MAP_HEIGHT = 38;
export const RULER_HEIGHT = 22;

/**
 * @satisfies {ThisType<import("./timeline.mjs").Timeline>}
 */
export const drawing = {
  draw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paint());
  },

  paint() {
    this.frame = 0;
    if (!this.described || !this.window || !this.width || this.stopped) return;
    const began = performance.now();
    if (this.stale && this.view) binImage(this.view, this.paints, this.binCanvas);
    this.stale = false;
    /** @type {import("./types").Scene} */
    const scene = {
      view: this.view,
      bins: this.binCanvas,
      window: this.window,
      whole: this.whole,
      width: this.width,
      theme: this.theme.now(),
      paints: this.paints,
      names: this.names,
      dimmed: this.dimmed,
      span: this.dragged ?? this.span,
      spanRows: this.dragged ? this.draggedRows : this.spanRows,
      dragging: Boolean(this.dragged),
      hatch: hatchOf(this.theme.now()),
    };
    const head = fitCanvas(this.head, this.width, MAP_HEIGHT + RULER_HEIGHT + this.marksRoom());
    drawMinimap(head, MAP_HEIGHT, scene, this.overview);
    drawRuler(head, MAP_HEIGHT, RULER_HEIGHT, scene);
    if (this.marksRoom()) drawFlags(head, MAP_HEIGHT + RULER_HEIGHT, this.marksRoom(), this.marksNow(), scene);
    for (const pane of [this.pinnedPane, this.mainPane]) if (pane.height) this.paintPane(pane, scene);
    this.edge.textContent = `${formatNs(this.window[1] - this.window[0])}${this.width < 400 ? "" : " shown"}`;
    this.host.dataset.shown = JSON.stringify(this.window.map(Math.round));
    this.host.dataset.exact = String(this.view?.asked === this.asked);
    this.measure(began);
  },

  /**
   * @param {import("./timeline.mjs").Pane} pane
   * @param {import("./types").Scene} scene
   */
  paintPane(pane, scene) {
    const scroll = pane.el.scrollTop;
    const context = fitCanvas(pane.canvas, this.width, pane.height);
    const items = visibleItems(pane.items, scroll, pane.height);
    drawPane(context, items, scroll, pane.height, scene);
    drawMarks(context, this.marksNow(), pane.height, scene);
    for (const hit of [this.hit, this.target]) {
      const found = hit ? levelOf(items, hit.row, hit.level) : null;
      if (hit && found?.place) drawOutline(context, hit, { item: found.item, place: found.place }, scroll, scene);
    }
    if (this.flows.length) {
      const arrows = this.flows.flatMap(([from, to]) => {
        const [a, b] = [this.placeOf(pane, from, scroll), this.placeOf(pane, to, scroll)];
        return a && b ? [/** @type {[import("./types").Point, import("./types").Point]} */ ([a, b])] : [];
      });
      drawArrows(context, arrows, scene.theme);
    }
  },

  /**
   * @param {import("./timeline.mjs").Pane} pane
   * @param {import("./messages").ArrowEnd} end
   * @param {number} scroll
   * @returns {import("./types").Point | null}
   */
  placeOf(pane, { row, level, time }, scroll) {
    const found = levelOf(pane.items, row, level);
    if (!found) return null;
    const at = found.place ?? found.item.levels[found.item.levels.length - 1];
    return { x: toPx(time, this.window, this.width), y: found.item.top - scroll + at.y + at.height / 2 };
  },

  showLegend() {
    if (!this.described) return;
    const { present } = this.described;
    /** @param {number} code */
    const named = (code) => {
      const { kind, name } = this.described.keys[code];
      return `${kind === "cause" ? "idle: " : ""}${name.replaceAll("_", " ")}`;
    };
    // a colour stands once: what two names share is one entry with both
    /** @type {Map<string, string[]>} */
    const names = new Map();
    for (const code of [...(present[this.colourBy] ?? []), ...present.lost]) {
      const colour = this.paints.colour[code];
      names.set(colour, [...new Set([...(names.get(colour) ?? []), named(code)])]);
    }
    /** @param {[string, string[]]} entry */
    const chip = ([colour, shared]) => {
      const swatch = h("i", { class: "lpt-swatch" });
      swatch.style.background = colour;
      return h("span", { class: "lpt-chip" }, swatch, shared.join(", "));
    };
    const path = this.state.path ? (present.path ?? []) : [];
    const parts = path.map((code) => chip([this.paints.colour[code], [this.described.keys[code].name]]));
    fill(
      this.legend,
      parts.length ? h("span", { class: "lpt-parts" }, h("b", { text: "critical path" }), ...parts) : null,
      [...names].map(chip),
      this.hatches()
        ? h("span", { class: "lpt-chip" }, h("i", { class: "lpt-swatch lpt-hatch" }), "hatched: waits for another rank")
        : null,
    );
  },

  /** Whether ranks wait for each other here. */
  hatches() {
    return this.described.groups.filter((group) => group.waits !== null).length > 1;
  },

  /**
   * Note how long drawing took, and how long after it was asked for the picture has all its detail.
   * @param {number} began
   */
  measure(began) {
    const now = performance.now();
    const { timings } = this;
    timings.draw.push(now - began);
    if (this.view?.asked?.window === this.window) {
      timings.first ||= performance.timeOrigin + now;
      if (this.movedAt) timings.exact.push(now - this.movedAt);
      this.movedAt = null;
    }
    for (const list of [timings.draw, timings.exact]) if (list.length > 2000) list.splice(0, 1000);
  },
};
