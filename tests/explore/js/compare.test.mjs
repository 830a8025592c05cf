import assert from "node:assert/strict";
import test from "node:test";

import { compareSegments } from "../../../llmprof/explore/compare/bars.mjs";
import { compareChange } from "../../../llmprof/explore/compare/columns.mjs";

test("a change has a sign, and a factor where there is one", () => {
  assert.equal(compareChange({ delta_ns: 1500, ratio: 1.25 }), "+1.50 us (×1.25)");
  assert.equal(compareChange({ delta_ns: -1500, ratio: 0 }), "−1.50 us");
  assert.equal(compareChange({ delta_ns: 2, ratio: null }), "+2 ns");
  assert.equal(compareChange({ delta_ns: null, ratio: null }), "");
  assert.equal(compareChange({ delta_ns: 0, ratio: 1 }), "0 ns (×1.00)");
});

test("segments of a bar follow each other, and what is not there has none", () => {
  const stages = [
    { stage: "norm", a_ns: 30, b_ns: null },
    { stage: "rope", a_ns: 10, b_ns: 20 },
  ];
  const found = compareSegments({ phase: "decode", a_steps: 1, b_steps: 1, stages });
  assert.deepEqual(
    found.map(({ side, stage, from, to }) => [side, stage, from, to]),
    [
      ["a", "norm", 0, 30],
      ["a", "rope", 30, 40],
      ["b", "rope", 0, 20],
    ],
  );
});
