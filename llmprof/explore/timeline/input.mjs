// Pointer gestures on the panes and on the minimap.
import { toNs } from "../base/js/geometry.mjs";
import { windowOnMap } from "./draw.mjs";

const LEAST_DRAG = 4;
/** @type {Record<string, string>} */
const CURSORS = { start: "ew-resize", end: "ew-resize", inside: "grab", axis: "grab" };

/**
 * Hover, click, double-click and dragging on a pane of a timeline.
 * @param {import("./timeline.mjs").Timeline} timeline
 * @param {import("./timeline.mjs").Pane} pane
 */
export function followPointer(timeline, pane) {
  const { canvas } = pane;
  /** @type {{x: number, y: number, window: [number, number], pan: boolean, moved: boolean, id: number} | null} */
  let drag = null;
  /**
   * @param {{clientX: number, clientY: number}} event
   * @returns {[number, number]}
   */
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1 || !timeline.window) return;
    const [x, y] = at(event);
    drag = {
      x,
      y,
      window: timeline.window,
      pan: event.shiftKey || event.button === 1,
      moved: false,
      id: event.pointerId,
    };
    canvas.focus({ preventScroll: true });
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!drag) {
      const { clientX, clientY } = event;
      const hover = () => {
        const box = timeline.body.getBoundingClientRect();
        const found = timeline.hover(pane, ...at({ clientX, clientY }), {
          left: clientX - box.left,
          top: clientY - box.top,
        });
        canvas.style.cursor = found && (found.event >= 0 || found.bin) ? "pointer" : "crosshair";
      };
      timeline.hoverAgain = () => drag || hover(); // for the picture that comes while the pointer rests
      hover();
      return;
    }
    if (!drag.moved && Math.abs(x - drag.x) < LEAST_DRAG) return;
    if (!drag.moved) canvas.setPointerCapture(drag.id);
    drag.moved = true;
    timeline.leave();
    if (drag.pan) {
      const by = ((drag.x - x) / timeline.width) * (drag.window[1] - drag.window[0]);
      timeline.move([drag.window[0] + by, drag.window[1] + by]);
    } else {
      /** @param {number} px */
      const inside = (px) => toNs(Math.max(0, Math.min(timeline.width, px)), timeline.window, timeline.width);
      const [one, other] = [inside(drag.x), inside(x)];
      timeline.dragged = [Math.min(one, other), Math.max(one, other)];
      timeline.draggedRows = timeline.rowsBetween(pane, drag.y, y);
      timeline.draw();
    }
  });
  /** @param {PointerEvent} event */
  const done = (event) => {
    if (!drag) return;
    const ended = drag;
    drag = null;
    const range = timeline.dragged;
    const rows = timeline.draggedRows;
    timeline.dragged = null;
    timeline.draggedRows = null;
    if (!ended.moved && event.type === "pointerup") timeline.click(pane, ended.x, ended.y);
    else if (range) timeline.select(range[0], range[1], rows);
  };
  canvas.addEventListener("pointerup", done);
  canvas.addEventListener("pointercancel", done);
  canvas.addEventListener("dblclick", (event) => timeline.doubleClick(pane, ...at(event)));
  canvas.addEventListener("pointerleave", () => {
    timeline.hoverAgain = null;
    timeline.leave();
  });
}

/** Dragging a name in a gutter: a rank among the ranks, a row among those of its rank; a line shows where it goes.
 * Gives what ends it.
 * @param {import("./timeline.mjs").Timeline} timeline
 * @param {import("./timeline.mjs").Pane} pane
 */
export function followGutter(timeline, pane) {
  const { gutter } = pane;
  const line = document.createElement("div");
  line.className = "lpt-dropline";
  line.hidden = true;
  pane.inner.append(line);
  /** @type {{item: import("./types").Item, y: number, moved: boolean} | null} */
  let drag = null;
  /** @param {PointerEvent} event */
  const heightAt = (event) => event.clientY - gutter.getBoundingClientRect().top;
  /**
   * @param {import("./types").Item} one
   * @param {import("./types").Item} item
   */
  const alike = (one, item) =>
    item.type === "group" ? one.type === "group" : one.type === "row" && one.rank === item.rank;
  /**
   * Place among its like that a height means, and where the line stands.
   * @param {number} y
   * @param {import("./types").Item} item
   */
  const target = (y, item) => {
    const like = pane.items.filter((one) => alike(one, item));
    const from = like.indexOf(item);
    const ends = like.map((one) => {
      if (one.type !== "group") return one.top + one.height;
      const rows = pane.items.filter((row) => row.rank === one.rank);
      return Math.max(...rows.map((row) => row.top + row.height));
    });
    let to = like.findIndex((one, i) => y < (one.top + ends[i]) / 2);
    if (to < 0) to = like.length;
    return { by: to > from ? to - from - 1 : to - from, top: to < like.length ? like[to].top : ends[ends.length - 1] };
  };
  gutter.addEventListener("pointerdown", (event) => {
    const name = /** @type {Element} */ (event.target).closest(".lpt-name, .lpt-group");
    if (event.button || !name || !timeline.window) return;
    const y = heightAt(event);
    const item = pane.items.find((one) => y >= one.top && y < one.top + one.height);
    if (item) drag = { item, y, moved: false };
  });
  /** @param {PointerEvent} event */
  const move = (event) => {
    if (!drag) return;
    const y = heightAt(event);
    if (!drag.moved && Math.abs(y - drag.y) < LEAST_DRAG) return;
    drag.moved = true;
    line.hidden = false;
    line.style.top = `${target(y, drag.item).top - 2}px`;
    gutter.classList.add("lpt-moving");
  };
  /** @param {PointerEvent} event */
  const done = (event) => {
    if (!drag) return;
    const { item, moved } = drag;
    const by = moved && event.type === "pointerup" ? target(heightAt(event), item).by : 0;
    drag = null;
    line.hidden = true;
    gutter.classList.remove("lpt-moving");
    if (!moved) return;
    /** @param {MouseEvent} click */
    const swallow = (click) => click.stopPropagation(); // the release is no click on a name
    window.addEventListener("click", swallow, { capture: true });
    setTimeout(() => {
      window.removeEventListener("click", swallow, { capture: true });
      if (by) timeline.moveItem(item, by);
    });
  };
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", done);
  window.addEventListener("pointercancel", done);
  return () => {
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", done);
    window.removeEventListener("pointercancel", done);
  };
}

/**
 * Dragging the window, its ends or a new one on the minimap; the axis below it pans.
 * @param {import("./timeline.mjs").Timeline} timeline
 * @param {HTMLCanvasElement} canvas
 * @param {number} height
 */
export function followMinimap(timeline, canvas, height) {
  /** @type {{x: number, window: [number, number], part: string} | null} */
  let drag = null;
  /** @param {PointerEvent} event */
  const px = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !timeline.window) return;
    const x = px(event);
    const onMap = event.clientY - canvas.getBoundingClientRect().top < height;
    drag = { x, window: timeline.window, part: onMap ? mapPart(timeline, x) : "axis" };
    canvas.setPointerCapture(event.pointerId);
    if (drag.part === "beside") {
      const half = (timeline.window[1] - timeline.window[0]) / 2;
      const middle = toNs(x, timeline.whole, timeline.width);
      timeline.move([middle - half, middle + half]);
      drag = { x, window: timeline.window, part: "inside" };
    }
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) timeline.move(draggedWindow(drag, px(event), timeline.whole, timeline.width));
    else {
      const onMap = event.clientY - canvas.getBoundingClientRect().top < height;
      const part = onMap ? mapPart(timeline, px(event)) : "axis";
      canvas.style.cursor = CURSORS[part] ?? "pointer";
    }
  });
  for (const type of ["pointerup", "pointercancel"]) canvas.addEventListener(type, () => (drag = null));
  canvas.addEventListener("dblclick", () => timeline.move(timeline.whole));
}

/**
 * @param {import("./timeline.mjs").Timeline} timeline
 * @param {number} x
 */
function mapPart(timeline, x) {
  const [a, b] = windowOnMap(timeline.window, timeline.whole, timeline.width);
  if (Math.abs(x - a) <= 5 && b - a > 12) return "start";
  if (Math.abs(x - b) <= 5 && b - a > 12) return "end";
  return x >= a - 4 && x <= b + 4 ? "inside" : "beside";
}

/**
 * Window after a drag to x on the minimap or the axis.
 * @param {{x: number, window: import("./types").Window, part: string}} drag
 * @param {number} x
 * @param {import("./types").Window} whole
 * @param {number} width
 * @returns {import("./types").Window}
 */
export function draggedWindow({ x: from, window, part }, x, whole, width) {
  const scale = part === "axis" ? window[1] - window[0] : whole[1] - whole[0];
  const by = ((x - from) / width) * scale * (part === "axis" ? -1 : 1);
  if (part === "start") return [Math.min(window[0] + by, window[1]), window[1]];
  if (part === "end") return [window[0], Math.max(window[1] + by, window[0])];
  return [window[0] + by, window[1] + by];
}
