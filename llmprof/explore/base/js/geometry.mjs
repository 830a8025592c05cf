// Windows on the time axis: [start, end] in ns. Pure functions.

/** @typedef {[number, number]} Window */

const LEAST_NS = 10;

/**
 * Pixel of a time, and time of a pixel.
 * @param {number} ns
 * @param {Window} window
 * @param {number} width
 */
export function toPx(ns, window, width) {
  return ((ns - window[0]) / (window[1] - window[0])) * width;
}

/**
 * @param {number} px
 * @param {Window} window
 * @param {number} width
 */
export function toNs(px, window, width) {
  return window[0] + (px / width) * (window[1] - window[0]);
}

/**
 * Window moved and shortened as little as needed to lie inside the whole.
 * @param {Window} window
 * @param {Window} whole
 * @returns {Window}
 */
export function clampWindow(window, whole) {
  const most = Math.max(whole[1] - whole[0], LEAST_NS);
  const span = Math.min(Math.max(window[1] - window[0], LEAST_NS), most);
  const middle = (window[0] + window[1]) / 2;
  const start = Math.min(Math.max(middle - span / 2, whole[0]), whole[0] + most - span);
  return [start, start + span];
}

/**
 * Window zoomed by a factor (< 1: closer) so that the time under a share of the width (0..1) stays where it is.
 * @param {Window} window
 * @param {number} factor
 * @param {number} at
 * @param {Window} whole
 * @returns {Window}
 */
export function zoomWindow(window, factor, at, whole) {
  const span = window[1] - window[0];
  const most = Math.max(whole[1] - whole[0], LEAST_NS);
  const wanted = Math.min(Math.max(span * factor, LEAST_NS), most);
  const fixed = window[0] + at * span;
  const start = fixed - at * wanted;
  return clampWindow([start, start + wanted], whole);
}

/**
 * Window moved by a share of its length.
 * @param {Window} window
 * @param {number} share
 * @param {Window} whole
 * @returns {Window}
 */
export function panWindow(window, share, whole) {
  const by = share * (window[1] - window[0]);
  return clampWindow([window[0] + by, window[1] + by], whole);
}

/**
 * Window around a span with a margin (a share of it on each side).
 * @param {number} start
 * @param {number} end
 * @param {Window} whole
 * @param {number} [margin]
 * @returns {Window}
 */
export function aroundSpan(start, end, whole, margin = 0.2) {
  const extra = Math.max(end - start, LEAST_NS) * margin;
  return clampWindow([start - extra, end + extra], whole);
}

/**
 * Distance between ticks: 1, 2 or 5 times a power of ten, so that each has at least `room` pixels.
 * @param {number} span
 * @param {number} width
 * @param {number} [room]
 */
export function tickStep(span, width, room = 90) {
  const least = (span * room) / Math.max(width, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least * 0.999999) ?? 10 * power;
}

/**
 * Times of the ticks of a window.
 * @param {Window} window
 * @param {number} width
 * @param {number} [room]
 */
export function ticks(window, width, room = 90) {
  const step = tickStep(window[1] - window[0], width, room);
  const first = Math.ceil(window[0] / step);
  const last = Math.floor(window[1] / step);
  return { step, at: Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step) };
}

/**
 * Row that covers a height: the last of sorted tops that is at or above y, if y is inside its height.
 * @param {number} y
 * @param {number[]} tops
 * @param {number[]} heights
 */
export function rowAt(y, tops, heights) {
  let lo = 0;
  let hi = tops.length - 1;
  while (lo <= hi) {
    const middle = (lo + hi) >> 1;
    if (tops[middle] > y) hi = middle - 1;
    else if (y < tops[middle] + heights[middle]) return middle;
    else lo = middle + 1;
  }
  return -1;
}
