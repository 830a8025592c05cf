import assert from "node:assert/strict";
import test from "node:test";
import { queryCompletions, queryOffset } from "../../../llmprof/explore/timeline/query.mjs";

const known = {
  tables: [
    { name: "kernels", columns: ["name", "dur_ns", "stream"] },
    { name: "copies", columns: ["bytes", "dur_ns"] },
  ],
  words: ["count", "select", "sum"],
};
const offered = (text, caret = text.length) => queryCompletions(text, caret, known).words;

test("columns of the tables that are named come first, then tables and words", () => {
  assert.deepEqual(offered("select s from kernels", 8), ["stream", "select", "sum"]);
  assert.deepEqual(offered("select b from kernels", 8), []);
  assert.deepEqual(offered("select b from copies", 8), ["bytes"]);
  assert.deepEqual(offered("select * from "), ["kernels", "copies"]);
  assert.deepEqual(offered("select * from k"), ["kernels"]);
  assert.deepEqual(offered("select copies."), ["bytes", "dur_ns"]);
  assert.deepEqual(offered("select * from kernels"), []);
  assert.deepEqual(offered(""), []);
  assert.equal(queryCompletions("select du", 9, known).from, 7);
});

test("a line and a column are a place in the text", () => {
  assert.deepEqual([queryOffset("ab\ncd", 1, 2), queryOffset("ab\ncd", 2, 1), queryOffset("ab", 1, 99)], [1, 3, 2]);
});
