import assert from "node:assert/strict";
import test from "node:test";
import { formatBytes, formatNs, formatNumber, formatShare, nsAs } from "../../../llmprof/explore/base/js/format.mjs";

test("durations have the unit that fits", () => {
  const written = [0, 7, 999.6, 4200, 58100000, 1.5e9, 7.2e12, null, NaN].map((ns) => formatNs(ns));
  assert.deepEqual(written, [
    "0 ns",
    "7 ns",
    "1.00 us",
    "4.20 us",
    "58.1 ms",
    "1.50 s",
    "7,200 s",
    "unknown",
    "unknown",
  ]);
});

test("sizes, shares and numbers", () => {
  assert.deepEqual(
    [0, 512, 28672, 3 * 2 ** 30].map((n) => formatBytes(n)),
    ["0 B", "512 B", "28.0 KiB", "3.00 GiB"],
  );
  assert.deepEqual([0.981, 0.0001, 0, null].map(formatShare), ["98.1 %", "< 0.1 %", "0.0 %", "unknown"]);
  assert.deepEqual(
    [0, 1234567, 0.01234, 12.345, null].map((n) => formatNumber(n)),
    ["0", "1,234,567", "0.01", "12.3", "unknown"],
  );
});

test("a column has one unit, and nothing that is not zero reads as zero", () => {
  const column = (...values) => values.map(nsAs(values));
  assert.deepEqual(column(539e6, 8.15e6, 2.3e3, 400, 0), ["539.000 ms", "8.150 ms", "0.002 ms", "< 0.001 ms", "0 ms"]);
  assert.deepEqual(
    column(720e3, 5e3, null),
    ["720 us", "5 us", "unknown"].map((text, i) => ["720.00 us", "5.00 us", text][i]),
  );
  assert.deepEqual(column(12, 7), ["12 ns", "7 ns"]);
  assert.deepEqual(column(0, Number.NaN), ["0 ns", "unknown"]);
});
