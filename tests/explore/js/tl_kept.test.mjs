import assert from "node:assert/strict";
import { test } from "node:test";
import { hitsTotals } from "../../../llmprof/explore/timeline/hits.mjs";
import { marksBetween, marksWith } from "../../../llmprof/explore/timeline/marks.mjs";
import { arrangementOf, foldable, layOut, movedBy, stateOf } from "../../../llmprof/explore/timeline/rows.mjs";
import { pythonOf } from "../../../llmprof/explore/timeline/select.mjs";

const row = (kind, rank, label, levels = 1) => ({ kind, rank, label, levels, count: 3 });
const described = {
  groups: [0, 1].map((rank) => ({ rank, label: `rank ${rank}`, waits: null })),
  rows: [
    row("idle", 0, "Idle"),
    row("stream", 0, "stream 7"),
    row("ops", 0, "operators", 5),
    row("stream", 1, "stream 7"),
    row("ops", 1, "operators", 5),
  ],
};

test("marks are in the order of time, and one time has one", () => {
  const two = marksWith(marksWith([], 20), 10);
  assert.deepEqual(
    two.map((mark) => mark.time),
    [10, 20],
  );
  assert.equal(marksWith(two, 20.2), two);
  assert.deepEqual(marksBetween(two), [{ from: 10, to: 20, ns: 10 }]);
  assert.deepEqual(marksBetween([]), []);
});

test("totals of hits are words", () => {
  const found = { total: 1, names: 1, sum_ns: 1500 };
  assert.equal(hitsTotals(found, "a"), "1 hit of 1 name with “a”, 1.50 us added up");
  assert.equal(hitsTotals({ total: 0, names: 0, sum_ns: 0 }, "a"), "Nothing is named “a” here.");
});

test("an arrangement goes to plain values and back", () => {
  const state = stateOf(described, null);
  assert.deepEqual([...state.closed], [0, 1]);
  assert.deepEqual([...state.folded], [4]);
  const wanted = { open: [1], hidden: [0], folded: [], pinned: [3], kinds: ["ops"], named: "stream", devices: true };
  const again = arrangementOf(described, stateOf(described, wanted));
  assert.deepEqual(again, { ...wanted, order: "late", ranks: [], moved: [], path: false });
});

test("rows are moved among those of their rank, and stay so", () => {
  const numbers = (state) =>
    layOut(described, state)
      .items.filter((item) => item.type === "row")
      .map((item) => item.number);
  const open = stateOf(described, { open: [0, 1], folded: [] });
  const up = movedBy(described, open, { rank: 0, number: 2 }, -1);
  assert.deepEqual(numbers(up), [0, 2, 1, 3, 4]);
  const down = movedBy(described, up, { rank: 1, number: 3 }, 1);
  assert.deepEqual(numbers(down), [0, 2, 1, 4, 3]);
  assert.deepEqual(numbers(movedBy(described, down, { rank: 0, number: 0 }, 9)), [2, 1, 0, 4, 3]);
  assert.equal(movedBy(described, open, { rank: 0, number: 0 }, -1), null);
  const again = stateOf(described, arrangementOf(described, down));
  assert.deepEqual(numbers(again), [0, 2, 1, 4, 3]);
});

test("a row moves past rows that are not shown", () => {
  const hidden = stateOf(described, { open: [0, 1], folded: [], kinds: ["stream"] });
  const moved = movedBy(described, hidden, { rank: 0, number: 2 }, -1);
  assert.deepEqual(moved.moved, [2, 0, 1]);
});

test("a rank is moved by hand, and that is an order of its own", () => {
  const open = stateOf(described, { open: [0, 1] });
  const moved = movedBy(described, open, { rank: 1 }, -1);
  assert.deepEqual([moved.order, moved.ranks], ["hand", [1, 0]]);
  const heads = layOut(described, stateOf(described, arrangementOf(described, moved))).items.filter(
    (item) => item.type === "group",
  );
  assert.deepEqual(
    heads.map((head) => head.rank),
    [1, 0],
  );
});

test("rows are left out by kind and by name", () => {
  const rows = (arrangement) =>
    layOut(described, stateOf(described, { open: [0, 1], ...arrangement }))
      .items.filter((item) => item.type === "row")
      .map((item) => item.number);
  assert.deepEqual(rows({}), [0, 1, 2, 3, 4]);
  assert.deepEqual(rows({ kinds: ["ops"] }), [0, 1, 3]);
  assert.deepEqual(rows({ named: " STREAM" }), [1, 3]);
  assert.deepEqual(foldable(described), [1, 2, 3, 4]);
});

test("values are written as Python writes them", () => {
  const value = { a: [1, -2.5], b: null, c: true, d: "x\"\n'" };
  assert.equal(pythonOf(value), '{"a": [1, -2.5], "b": None, "c": True, "d": "x\\"\\n\'"}');
});
