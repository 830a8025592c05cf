import assert from "node:assert/strict";
import test from "node:test";
import {
  aroundSpan,
  clampWindow,
  panWindow,
  rowAt,
  tickStep,
  ticks,
  toNs,
  toPx,
  zoomWindow,
} from "../../../llmprof/explore/base/js/geometry.mjs";

const WHOLE = [0, 1000];

test("times and pixels are each other's inverse", () => {
  assert.equal(toPx(150, [100, 200], 800), 400);
  assert.equal(toNs(400, [100, 200], 800), 150);
});

test("a window is moved and shortened to lie inside the whole", () => {
  assert.deepEqual(clampWindow([-50, 50], WHOLE), [0, 100]);
  assert.deepEqual(clampWindow([950, 1050], WHOLE), [900, 1000]);
  assert.deepEqual(clampWindow([-500, 5000], WHOLE), WHOLE);
  assert.deepEqual(clampWindow([500, 500], WHOLE), [495, 505]);
  assert.deepEqual(clampWindow([3, 4], [0, 0]), [0, 10]);
});

test("zooming keeps the time under the cursor", () => {
  const zoomed = zoomWindow([200, 600], 0.5, 0.25, WHOLE);
  assert.deepEqual(zoomed, [250, 450]);
  assert.equal(toPx(300, zoomed, 100), toPx(300, [200, 600], 100));
  assert.deepEqual(zoomWindow([200, 600], 100, 0.5, WHOLE), WHOLE);
  assert.deepEqual(zoomWindow([500, 520], 0.001, 0, WHOLE), [500, 510]);
});

test("panning stops at the ends", () => {
  assert.deepEqual(panWindow([100, 200], 0.5, WHOLE), [150, 250]);
  assert.deepEqual(panWindow([100, 200], -5, WHOLE), [0, 100]);
  assert.deepEqual(panWindow([100, 200], 50, WHOLE), [900, 1000]);
});

test("a span gets a margin on both sides", () => {
  assert.deepEqual(aroundSpan(400, 500, WHOLE, 0.2), [380, 520]);
  assert.deepEqual(aroundSpan(400, 400, WHOLE, 1), [390, 410]);
});

test("ticks are round numbers with room", () => {
  assert.equal(tickStep(1000, 900, 90), 100);
  assert.equal(tickStep(1000, 400, 90), 500);
  assert.deepEqual(ticks([95, 405], 310, 90), { step: 100, at: [100, 200, 300, 400] });
});

test("the row under a height", () => {
  const [tops, heights] = [
    [0, 20, 50],
    [18, 20, 10],
  ];
  assert.deepEqual(
    [-1, 0, 17, 19, 20, 39, 45, 59, 60].map((y) => rowAt(y, tops, heights)),
    [-1, 0, 0, -1, 1, 1, -1, 2, -1],
  );
});
