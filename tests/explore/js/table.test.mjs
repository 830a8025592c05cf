import assert from "node:assert/strict";
import test from "node:test";

import {
  TABLE_ROW,
  tableMissing,
  tableRange,
  tableReveal,
  tableSpark,
  tableStep,
  tableTurn,
} from "../../../llmprof/explore/base/js/table.mjs";

test("only the rows in view, and a few around them, are elements", () => {
  assert.deepEqual(tableRange(0, 270, 10_000), [0, 16]);
  assert.deepEqual(tableRange(100 * TABLE_ROW, 270, 10_000), [94, 116]);
  assert.deepEqual(tableRange(9_990 * TABLE_ROW, 270, 10_000), [9_984, 10_000]);
  assert.deepEqual(tableRange(0, 270, 0), [0, 0]);
  assert.deepEqual(tableRange(5_000, 270, 3), [3, 3]); // a table that has become shorter
});

test("blocks that are not known are asked for once each", () => {
  assert.deepEqual(tableMissing([50, 130], new Map([[60, []]])), [0, 120]);
  assert.deepEqual(tableMissing([0, 60], new Map([[0, []]])), []);
  assert.deepEqual(tableMissing([0, 0], new Map()), []);
});

test("keys move within the table", () => {
  assert.equal(tableStep("ArrowDown", -1, 5, 10), 0);
  assert.equal(tableStep("ArrowDown", 4, 5, 10), 4);
  assert.equal(tableStep("ArrowUp", 0, 5, 10), 0);
  assert.equal(tableStep("PageDown", 1, 50, 10), 11);
  assert.equal(tableStep("End", 1, 50, 10), 49);
  assert.equal(tableStep("Home", 30, 50, 10), 0);
  assert.equal(tableStep("x", 1, 50, 10), null);
  assert.equal(tableStep("ArrowDown", -1, 0, 10), null);
});

test("numbers sort with the largest first, texts with the first, and a second click turns the order", () => {
  assert.equal(tableTurn("-total_ns", "count", true), "-count");
  assert.equal(tableTurn("-count", "count", true), "count");
  assert.equal(tableTurn("count", "count", true), "-count");
  assert.equal(tableTurn("-count", "name", false), "name");
});

test("a row is revealed with the least scrolling", () => {
  assert.equal(tableReveal(2, 0, 300, 30), 0);
  assert.equal(tableReveal(0, 500, 300, 30), 0);
  assert.equal(tableReveal(20, 0, 300, 30), 20 * TABLE_ROW - (300 - 30 - TABLE_ROW));
});

test("a sparkline is an area that touches its base and its top", () => {
  assert.equal(tableSpark([], 10, 10), "");
  assert.equal(tableSpark([0, 255], 10, 10), "M0 10L0.0 10.0L5.0 10.0L5.0 1.0L10.0 1.0L10 10Z");
});
