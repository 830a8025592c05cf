import assert from "node:assert/strict";
import test from "node:test";
import { layerArea, layerMarks, layerNext, layerRamp, layerShare } from "../../../llmprof/explore/base/js/heat.mjs";
import { plotLinear } from "../../../llmprof/explore/base/js/plot.mjs";
import { callDomain, callSize } from "../../../llmprof/explore/collectives/charts.mjs";
import { spreadToggled, spreadWithin } from "../../../llmprof/explore/collectives/ranks.mjs";
import { overlapInside, overlapLongest, overlapStack } from "../../../llmprof/explore/overlap/bars.mjs";
import { overlapRows } from "../../../llmprof/explore/overlap/lanes.mjs";

test("the share of a colour scale, linear and logarithmic", () => {
  assert.equal(layerShare(15, { low: 10, high: 20, log: false }), 0.5);
  assert.ok(Math.abs(layerShare(100, { low: 10, high: 1000, log: true }) - 0.5) < 1e-9);
  assert.equal(layerShare(3, { low: 10, high: 1000, log: true }), 0);
  assert.equal(layerShare(7, { low: 7, high: 7, log: false }), 0.5);
});

test("what is long stands out in either theme", () => {
  const brightness = (rgb) => rgb.reduce((a, b) => a + b);
  const ends = (ramp) => [ramp[0], ramp[ramp.length - 1]].map(brightness);
  const [lightLow, lightHigh] = ends(layerRamp(false, "light"));
  const [darkLow, darkHigh] = ends(layerRamp(false, "dark"));
  assert.ok(lightHigh < lightLow && darkHigh > darkLow);
});

test("the heat map fits into a narrow cell and does not stretch a few steps", () => {
  const narrow = layerArea(320, 80, 1000);
  assert.ok(narrow.right <= 320 && narrow.right > narrow.left);
  const few = layerArea(1200, 28, 2);
  assert.ok(few.right - few.left < 400);
  assert.ok(layerArea(1200, 200, 10).bottom < 720);
  assert.equal(layerArea(1200, 28, 10, 3).top - layerArea(1200, 28, 10, 1).top, 32);
});

test("parts of a bar lie on each other and add up", () => {
  const scale = plotLinear([0, 100], [200, 0]);
  assert.deepEqual(overlapStack([10, 20, 20], 50, false, scale), [
    { y: 180, h: 20 },
    { y: 140, h: 40 },
    { y: 100, h: 40 },
  ]);
  assert.deepEqual(overlapStack([10, 40], 50, true, scale), [
    { y: 160, h: 40 },
    { y: 0, h: 160 },
  ]);
  assert.deepEqual(overlapStack([0], 0, true, scale), [{ y: 200, h: 0 }]);
});

test("streams are set apart from the classes", () => {
  const { rows, height } = overlapRows([{ stream: false }, { stream: false }, { stream: true }, { stream: true }]);
  assert.deepEqual(
    rows.map((row) => row.y),
    [0, 24, 56, 80],
  );
  assert.equal(height, 104);
});

test("domains of logarithmic axes, and sizes that are not known", () => {
  assert.deepEqual(callDomain([null, 0, 5, 20], 2), [2.5, 40]);
  assert.deepEqual(callDomain([null, 0]), [1, 10]);
  assert.equal(callSize({ bytes: null }), "unknown");
  assert.equal(callSize({ bytes: 28672 }), "28.0 KiB");
});

test("a mark for each cell, column after column", () => {
  const marks = layerMarks({ left: 10, right: 50, top: 0, bottom: 60 }, 2, 3);
  assert.deepEqual(
    marks.map((mark) => [mark.data.column, mark.data.row]),
    [
      [0, 0],
      [0, 1],
      [0, 2],
      [1, 0],
      [1, 1],
      [1, 2],
    ],
  );
  assert.deepEqual([marks[4].x, marks[4].y, marks[4].w, marks[4].h], [30, 20, 20, 20]);
});

test("a step is marked by the window that shows it, not by one that ends where it begins", () => {
  assert.equal(overlapInside(100, 200, [120, 140]), true);
  assert.equal(overlapInside(100, 200, [0, 1000]), true);
  assert.equal(overlapInside(100, 200, [0, 105]), false);
  assert.equal(overlapInside(100, 200, null), false);
});

test("the longest step is compared with the others of its phase, part by part", () => {
  /** @param {any[][]} steps */
  const rowsOf = (steps) => {
    const names = ["first", "last", "phase", "total_ns", "compute", "idle"];
    return { length: steps.length, names, get: (name, row) => steps[row][names.indexOf(name)] };
  };
  const decode = [10, 12, 14].map((idle, step) => [step, step, "decode", 40 + idle, 40, idle]);
  const found = overlapLongest(rowsOf([...decode, [3, 3, "decode", 90, 45, 45]]), ["compute", "idle"]);
  assert.deepEqual([found.first, found.total, found.alike, found.more], [3, 90, true, 38]);
  assert.deepEqual(found.parts, [
    { part: "idle", more: 33 },
    { part: "compute", more: 5 },
  ]);
  const mixed = overlapLongest(rowsOf([...decode, [3, 3, "mixed", 60, 48, 12]]), ["compute", "idle"]);
  assert.deepEqual([mixed.alike, mixed.more, mixed.parts], [false, 8, [{ part: "compute", more: 8 }]]);
  assert.equal(overlapLongest(rowsOf(decode.slice(0, 1)), ["idle"]), null);
});

test("the next outlier, and the first one after the last", () => {
  const outliers = Uint8Array.from([0, 1, 0, 0, 1, 0]);
  assert.deepEqual(
    [-1, 1, 3, 4].map((at) => layerNext(outliers, at)),
    [1, 4, 4, 1],
  );
  assert.equal(layerNext(Uint8Array.from([0, 0]), -1), -1);
});

test("bars of ranks are picked one by one and by dragging", () => {
  assert.deepEqual(spreadToggled([], [4, 2]), [2, 4]);
  assert.deepEqual(spreadToggled([2, 4, 9], [4, 2]), [9]);
  assert.deepEqual(spreadToggled([2], [2, 4]), [2, 4]);
  const mark = (x, ranks) => ({ x, y: 0, w: 10, h: 1, data: { ranks } });
  const marks = [mark(0, [5]), mark(20, [1, 2]), mark(40, [3])];
  assert.deepEqual(spreadWithin(marks, 8, 21), [5, 1, 2]);
  assert.deepEqual(spreadWithin(marks, 11, 19), []);
});
