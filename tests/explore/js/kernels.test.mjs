import assert from "node:assert/strict";
import test from "node:test";
import { kernelRows } from "../../../llmprof/explore/kernels/columns.mjs";
import { detailRange } from "../../../llmprof/explore/kernels/details.mjs";
import { metricPlane, metricText } from "../../../llmprof/explore/kernels/metrics.mjs";

const rowsOf = (values) => ({ length: values.length, get: (_, i) => values[i] });

test("each row gets its part of the packed sparklines", () => {
  const rows = kernelRows({ rows: [{ name: "a" }, { name: "b" }] }, [
    new DataView(new Uint8Array([1, 2, 3, 4, 5, 6]).buffer),
  ]);
  assert.deepEqual(
    rows.map((row) => [row.name, [...row.series]]),
    [
      ["a", [1, 2, 3]],
      ["b", [4, 5, 6]],
    ],
  );
  assert.deepEqual(kernelRows({ rows: [] }, [new DataView(new ArrayBuffer(0))]), []);
});

test("durations that differ little are spread, others begin at zero", () => {
  assert.equal(detailRange(rowsOf([10, 100]), false)[0], 0);
  assert.ok(detailRange(rowsOf([98, 100]), false)[0] > 90);
  assert.deepEqual(detailRange(rowsOf([]), false), [0, 1]);
});

test("metrics are written in the unit of their base", () => {
  assert.equal(metricText({ value: 2048, unit: "B" }), "2.00 KiB");
  assert.equal(metricText({ value: 27700, unit: "ns" }), "27.7 us");
  assert.equal(metricText({ value: 16.5, unit: "%" }), "16.5 %");
  assert.equal(metricText({ value: 1.85e9, unit: "Hz" }), "1.85 GHz");
  assert.equal(metricText({ value: 52208, unit: "1" }), "52,208");
  assert.equal(metricText({ value: null, text: "NVIDIA H200", unit: "" }), "NVIDIA H200");
});

test("the plane of a roofline holds all points and ridges", () => {
  const plane = metricPlane({
    points: [{ intensity: 1, flop_per_s: 1e12 }],
    peaks: { bf16: 1e15 },
    bandwidth: 5e12,
  });
  assert.ok(plane.x[0] < 1 && plane.x[1] > 200);
  assert.ok(plane.y[0] < 1e12 && plane.y[1] > 1e15);
});
