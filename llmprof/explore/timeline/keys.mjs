// What keys and the wheel do. Pure functions.
import { wayOf } from "../base/js/press.mjs";

/** Keys of the timeline and what they do, for the help. */
export const KEYS = [
  ["Ctrl + wheel", "zoom at the pointer (also pinch)"],
  ["Shift + wheel", "move in time (also a sideways wheel)"],
  ["Wheel", "scroll the rows, then the page"],
  ["W  S", "zoom in, out"],
  ["A  D  ←  →", "move in time"],
  ["↑  ↓", "scroll the rows"],
  ["Click", "select an event"],
  ["Drag", "select an area: a range of time in the rows that it covers"],
  ["Shift + drag", "move in time"],
  ["Double-click", "zoom to the event"],
  ["F", "zoom to the selection"],
  ["0", "the whole trace"],
  ["Ctrl + Z  Backspace", "undo a zoom or move; Ctrl + Shift + Z does it again"],
  ["Alt + ←  →", "back, forward through the views (also the side buttons of a mouse)"],
  ["[  ]", "previous, next event of the row"],
  ["J  K", "next, previous row (selects what is in its middle)"],
  ["P", "pin or unpin the row of the selection"],
  ["C", "fold or unfold the row of the selection"],
  ["Alt + ↑  ↓", "move the row of the selection, or the row or rank whose name has the focus"],
  ["Drag a name", "move the row among those of its rank, or the rank"],
  ["G", "go to the launch of a selected kernel, the kernel of a call, the event of a part of the critical path"],
  ["M", "set a mark at the pointer, else at the selection"],
  ["/", "search; Enter and Shift + Enter go through the hits"],
  ["L", "list all hits of the search"],
  ["T", "flame graph of the selection, by stage, module or Python function"],
  ["Q", "query the tables in SQL (Ctrl + Enter runs it, Ctrl + Space completes)"],
  ["X", "critical path: show or hide it"],
  ["Esc", "clear the selection, close this help"],
  ["?", "this help"],
];

/** @type {Record<string, string>} */
const ACTIONS = {
  w: "in",
  s: "out",
  a: "left",
  d: "right",
  arrowleft: "left",
  arrowright: "right",
  arrowup: "up",
  arrowdown: "down",
  "+": "in",
  "=": "in",
  "-": "out",
  f: "fit",
  0: "whole",
  home: "whole",
  "[": "previous",
  "]": "next",
  p: "pin",
  c: "fold",
  "/": "search",
  escape: "clear",
  "?": "help",
  g: "across",
  m: "mark",
  l: "list",
  t: "flame",
  x: "path",
  backspace: "undo",
  q: "query",
  j: "rowdown",
  k: "rowup",
};

/**
 * Action of a key event, or null; other keys with Ctrl, Alt or Meta are the browser's.
 * @param {Pick<KeyboardEvent, "key"> & Partial<Pick<KeyboardEvent, "ctrlKey" | "altKey" | "metaKey" | "shiftKey">>} event
 * @returns {string | null}
 */
export function actionOf(event) {
  const key = String(event.key).toLowerCase();
  const way = wayOf({ ...event, key: event.key, altKey: event.altKey, ctrlKey: event.ctrlKey, type: "keydown" });
  if (way) return way < 0 ? "undo" : "redo";
  if ((event.ctrlKey || event.metaKey) && !event.altKey) {
    if (key === "z") return event.shiftKey ? "redo" : "undo";
    return key === "y" ? "redo" : null;
  }
  if (event.ctrlKey || event.altKey || event.metaKey) return null;
  return ACTIONS[key] ?? null;
}

/**
 * What a wheel event does: {zoom: factor} with Ctrl, {pan: share of the window}, or null: it scrolls.
 * @param {Pick<WheelEvent, "deltaX" | "deltaY" | "deltaMode" | "ctrlKey" | "metaKey" | "shiftKey">} event
 * @param {number} width
 */
export function wheelAction(event, width) {
  const lines = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 200 : 1;
  const [dx, dy] = [event.deltaX * lines, event.deltaY * lines];
  if (event.ctrlKey || event.metaKey) return { zoom: Math.exp(Math.sign(dy) * Math.min(Math.abs(dy) * 0.008, 0.3)) };
  if (event.shiftKey) return { pan: (dy || dx) / width };
  if (Math.abs(dx) > Math.abs(dy)) return { pan: dx / width };
  return null;
}
