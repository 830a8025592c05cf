import assert from "node:assert/strict";
import test from "node:test";

import { compareChange } from "../../../llmprof/explore/compare/columns.mjs";
import { tracksHeight, tracksRows, tracksText } from "../../../llmprof/explore/compare/tracks.mjs";
import { runSegments, waterfallDomain, waterfallText } from "../../../llmprof/explore/compare/waterfall.mjs";

test("a change has a sign, and a factor where there is one", () => {
  assert.equal(compareChange({ delta_ns: 1500, ratio: 1.25 }), "+1.50 us (×1.25)");
  assert.equal(compareChange({ delta_ns: -1500, ratio: 0 }), "−1.50 us");
  assert.equal(compareChange({ delta_ns: 2, ratio: null }), "+2 ns");
  assert.equal(compareChange({ delta_ns: null, ratio: null }), "");
  assert.equal(compareChange({ delta_ns: 0, ratio: 1 }), "0 ns (×1.00)");
});

test("a bar of a waterfall has a sign, a total and nothing have none", () => {
  assert.equal(waterfallText({ group: "compute", delta_ns: -1500 }), "−1.50 us");
  assert.equal(waterfallText({ group: "idle", delta_ns: 2 }), "+2 ns");
  assert.equal(waterfallText({ group: "total", delta_ns: 1500 }), "1.50 us");
  assert.equal(waterfallText({ group: "unexplained", delta_ns: 0 }), "0 ns");
});

test("the axis begins at 0 unless all changes are slivers at its end", () => {
  const bars = (...ends) => [
    { group: "total", from_ns: 0, to_ns: ends[0] },
    ...ends.slice(1).map((to, i) => ({ group: "compute", from_ns: ends[i], to_ns: to })),
    { group: "total", from_ns: 0, to_ns: ends[ends.length - 1] },
  ];
  assert.deepEqual(waterfallDomain(bars(100, 20)), [0, 100]);
  assert.deepEqual(waterfallDomain(bars(100, 90, 110)), [80, 110]);
  assert.deepEqual(waterfallDomain(bars(100, 60, 100)), [0, 100]);
  assert.deepEqual(waterfallDomain(bars(100, 100)), [0, 100]); // nothing changes
});

test("parts of a run follow each other", () => {
  const parts = [
    { group: "compute", label: "norm", part: "norm", ns: 30 },
    { group: "idle", label: "idle (host-bound)", part: "host_bound", ns: 10 },
  ];
  assert.deepEqual(
    runSegments({ name: "eager", parts }).map(({ run, label, from, to }) => [run, label, from, to]),
    [
      ["eager", "norm", 0, 30],
      ["eager", "idle (host-bound)", 30, 40],
    ],
  );
});

test("timelines stand under each other, one without the step is a line", () => {
  const lanes = ["layers", "compute"];
  assert.deepEqual(tracksRows([{ note: "" }, { note: "no such step" }], lanes), [4, 82]);
  assert.equal(tracksHeight([{ note: "" }, { note: "no such step" }], lanes), 82 + 56 + 42);
  assert.equal(tracksText("layers", "layer", "layer 7"), "7");
  assert.equal(tracksText("idle", "host_bound", "idle (host-bound)"), "host-bound");
  assert.equal(tracksText("compute", "norm", "rms_norm_kernel"), "norm");
});
