import assert from "node:assert/strict";
import test from "node:test";
import { foldedAtFirst, itemAt, layOut, visibleItems } from "../../../llmprof/explore/timeline/rows.mjs";

const row = (kind, rank, levels = 1) => ({ kind, rank, label: kind, levels, count: 1 });
const DESCRIBED = {
  groups: [
    { rank: 0, label: "rank 0" },
    { rank: 1, label: "rank 1" },
    { rank: 2, label: "rank 2" },
  ],
  rows: [row("steps", 0), row("stream", 0), row("ops", 0, 5), row("steps", 1), row("ops", 1, 5)],
};
const open = () => ({ closed: new Set(), folded: new Set(), pinned: new Set() });
const names = (items) => items.map((item) => `${item.kind ?? item.label}@${item.top}`);

test("rows follow the head of their rank and do not overlap", () => {
  const { items, height } = layOut(DESCRIBED, open());
  assert.deepEqual(names(items), [
    "rank 0@0",
    "steps@24",
    "stream@46",
    "ops@74",
    "rank 1@157",
    "steps@181",
    "ops@203",
    "rank 2@286",
  ]);
  assert.equal(height, 310);
  for (const [i, item] of items.slice(1).entries()) assert.ok(item.top >= items[i].top + items[i].height);
});

test("a closed rank keeps its head, a folded row one thin level", () => {
  const state = open();
  state.closed.add(0);
  state.folded.add(4);
  const { items } = layOut(DESCRIBED, state);
  assert.deepEqual(names(items), ["rank 0@0", "rank 1@24", "steps@48", "ops@70", "rank 2@90"]);
  assert.deepEqual(items[3].levels, [{ y: 0, height: 9 }]);
});

test("a pinned row leaves its rank and says where it is from", () => {
  const state = open();
  state.pinned.add(1);
  state.closed.add(0);
  const { items, pinned, pinnedHeight } = layOut(DESCRIBED, state);
  assert.deepEqual(
    pinned.map((item) => [item.label, item.number, item.top]),
    [["rank 0 · stream", 1, 0]],
  );
  assert.equal(pinnedHeight, 28);
  assert.ok(!items.some((item) => item.kind === "stream"));
});

test("deep rows of all ranks but the first are folded at first", () => {
  assert.deepEqual([...foldedAtFirst(DESCRIBED)], [4]);
});

test("what is under a height and what a pane shows", () => {
  const { items } = layOut(DESCRIBED, open());
  assert.deepEqual([itemAt(items, 50).item.kind, itemAt(items, 50).level], ["stream", 0]);
  assert.deepEqual(
    [74, 90, 106].map((y) => itemAt(items, y).level),
    [0, 1, 2],
  );
  assert.equal(itemAt(items, 45), null);
  assert.equal(itemAt(items, 10).level, -1);
  assert.deepEqual(names(visibleItems(items, 60, 20)), ["stream@46", "ops@74"]);
});
