import assert from "node:assert/strict";
import test from "node:test";
import { flameBoxes, flameFrames, flameLabel } from "../../../llmprof/explore/timeline/flame.mjs";

// a (60 of 100) calls b (30) and c (20); d (40) stands beside it
const ANSWER = {
  names: ["a", "b", "c", "d"],
  name: [0, 3, 1, 2],
  level: [0, 0, 1, 1],
  start: [0, 60, 0, 30],
  value: [60, 40, 30, 20],
};

test("frames know what called them", () => {
  const frames = flameFrames(ANSWER);
  assert.deepEqual(
    frames.map((frame) => [frame.name, frame.parent]),
    [
      ["a", -1],
      ["d", -1],
      ["b", 0],
      ["c", 0],
    ],
  );
});

test("boxes are as wide as their share, below a root as its share of that", () => {
  const frames = flameFrames(ANSWER);
  const of = (boxes) => boxes.map(({ frame, x, w }) => [frame.name, x, Math.round(w)]);
  assert.deepEqual(of(flameBoxes(frames, null, 100, 200)), [
    ["a", 0, 120],
    ["d", 120, 80],
    ["b", 0, 60],
    ["c", 60, 40],
  ]);
  assert.deepEqual(of(flameBoxes(frames, frames[0], 100, 200)), [
    ["a", 0, 200],
    ["b", 0, 100],
    ["c", 100, 67],
  ]);
  assert.deepEqual(of(flameBoxes(frames, frames[3], 100, 200)), [
    ["a", 0, 200],
    ["c", 0, 200],
  ]);
  assert.equal(flameBoxes(frames, null, 100, 1).length, 1);
});

test("labels leave out folders and what all modules begin with", () => {
  assert.equal(flameLabel("a/b/model.py(12): forward"), "model.py(12): forward");
  assert.equal(flameLabel("nn.Module: Layer_0"), "Layer_0");
  assert.equal(flameLabel("void at::native::(anonymous namespace)::copy_kernel<4>(int)"), "copy_kernel<4>(int)");
  assert.deepEqual(["aten::mm", "ncclKernel_Sum"].map(flameLabel), ["aten::mm", "ncclKernel_Sum"]);
});
