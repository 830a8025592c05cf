import assert from "node:assert/strict";
import test from "node:test";
import { requestWidths } from "../../../llmprof/explore/requests/columns.mjs";

test("the bar of the longest request is full, and parts keep their order", () => {
  const parts = [
    { name: "a_ns", words: "waiting", colour: "#111111" },
    { name: "b_ns", words: "decode", colour: "#222222" },
    { name: "c_ns", words: "delivery", colour: "#333333" },
  ];
  const widths = (row, longest) => requestWidths(row, parts, longest, 200).map((piece) => piece.width);
  assert.deepEqual(widths({ a_ns: 30, b_ns: 60, c_ns: 10 }, 100), [60, 120, 20]);
  assert.deepEqual(widths({ a_ns: 25, b_ns: null, c_ns: -1 }, 100), [50, 0, 0]);
  assert.deepEqual(widths({ a_ns: 0, b_ns: 0, c_ns: 0 }, 0), [0, 0, 0]);
});
