import assert from "node:assert/strict";
import test from "node:test";
import {
  plotEvery,
  plotHit,
  plotLabel,
  plotLinear,
  plotLog,
  plotLogTicks,
  plotRamp,
  plotStep,
  plotTicks,
  plotUnit,
} from "../../../llmprof/explore/base/js/plot.mjs";

test("scales and their inverses", () => {
  const linear = plotLinear([0, 10], [100, 200]);
  assert.equal(linear.to(2.5), 125);
  assert.equal(linear.from(125), 2.5);
  const log = plotLog([1, 1000], [0, 300]);
  assert.ok(Math.abs(log.to(10) - 100) < 1e-9);
  assert.ok(Math.abs(log.from(200) - 100) < 1e-9);
  assert.equal(log.to(0), 0);
  assert.equal(log.to(-5), 0);
});

test("a domain of one value does not divide by zero", () => {
  assert.equal(plotLinear([5, 5], [0, 100]).to(5), 0);
  assert.equal(plotLog([5, 5], [0, 100]).to(5), 0);
});

test("ticks are round and lie inside", () => {
  assert.deepEqual(plotTicks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(plotTicks(3, 47, 4), [20, 40]);
  assert.deepEqual(plotTicks(7, 7), [7]);
  assert.deepEqual(plotTicks(3, 8, 2), [4, 6, 8]); // with a step of 5 there would be one value
  assert.deepEqual(plotLogTicks(900, 1.1e6), [1e3, 1e4, 1e5, 1e6]);
  assert.deepEqual(plotLogTicks(1, 20), [1, 2, 5, 10, 20]);
  assert.ok(plotLogTicks(1, 1e15).length <= 8);
});

test("labels and units of an axis", () => {
  assert.deepEqual([0, 1234.5, 0.25, 1e-6, 2e9].map(plotLabel), ["0", "1,234.5", "0.25", "1e-6", "2e9"]);
  assert.deepEqual(
    [0, 999, 1500, 2e6, 3e9].map((ns) => plotUnit(ns).symbol),
    ["ns", "ns", "us", "ms", "s"],
  );
});

test("only as many labels as have room", () => {
  assert.equal(plotEvery(10, 50, 20), 1);
  assert.equal(plotEvery(100, 4, 30), 10);
  assert.equal(plotEvery(3, 1, 100), 3);
});

test("a ramp goes through its stops", () => {
  const stops = [
    [0, 0, 0],
    [100, 50, 0],
    [200, 50, 255],
  ];
  assert.deepEqual(plotRamp(stops, 0), [0, 0, 0]);
  assert.deepEqual(plotRamp(stops, 0.25), [50, 25, 0]);
  assert.deepEqual(plotRamp(stops, 1), [200, 50, 255]);
  assert.deepEqual(plotRamp(stops, 7), [200, 50, 255]);
});

const MARKS = [
  { x: 0, y: 0, w: 10, h: 10, data: "a" },
  { x: 20, y: 0, w: 10, h: 10, data: "b" },
  { x: 0, y: 30, w: 10, h: 10, data: "c" },
  { x: 5, y: 5, w: 2, h: 2, data: "on top of a" },
];

test("the mark under the pointer, or the nearest within reach", () => {
  assert.equal(plotHit(MARKS, 6, 6).data, "on top of a");
  assert.equal(plotHit(MARKS, 1, 1).data, "a");
  assert.equal(plotHit(MARKS, 18, 5).data, "b");
  assert.equal(plotHit(MARKS, 100, 100), null);
});

test("arrow keys go to the next mark in their direction and stay at the last", () => {
  const GRID = MARKS.slice(0, 3);
  assert.equal(plotStep(GRID, null, "ArrowRight").data, "a");
  assert.equal(plotStep(GRID, GRID[0], "ArrowRight").data, "b");
  assert.equal(plotStep(GRID, GRID[1], "ArrowRight").data, "b");
  assert.equal(plotStep(GRID, GRID[2], "ArrowUp").data, "a");
  assert.equal(plotStep([], null, "ArrowUp"), null);
});
