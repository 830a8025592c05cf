import assert from "node:assert/strict";
import test from "node:test";
import {
  closedAtFirst,
  foldedAtFirst,
  groupsInOrder,
  itemAt,
  layOut,
  levelOf,
  visibleItems,
} from "../../../llmprof/explore/timeline/rows.mjs";

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
  assert.deepEqual(names(items), ["rank 0@0", "rank 1@47", "steps@71", "ops@93", "rank 2@113"]);
  assert.deepEqual(items[3].levels, [{ row: 4, level: 0, y: 0, height: 9 }]);
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

test("a closed rank shows its steps, its busiest stream and what it loses", () => {
  const rows = [
    row("steps", 0),
    row("collectives", 0),
    row("idle", 0),
    row("stream", 0),
    row("stream", 0),
    row("ops", 0),
  ];
  const described = { groups: [{ rank: 0, label: "rank 0" }], rows };
  const state = { ...open(), closed: new Set([0]) };
  const { items, height } = layOut(described, state);
  assert.equal(items.length, 1);
  assert.deepEqual(
    items[0].levels.map((level) => [level.row, level.y, level.height]),
    [
      [0, 4, 15],
      [3, 20, 22],
      [1, 43, 8],
      [2, 43, 8],
    ],
  );
  assert.equal(height, 56);
  assert.equal(levelOf(items, 3, 0).place.y, 20);
  assert.equal(levelOf(items, 4, 0), null);
  assert.equal(levelOf(items, 3, 1).place, null);

  // of many ranks each has less
  const many = Array.from({ length: 12 }, (_, rank) => rank);
  const wide = {
    groups: many.map((rank) => ({ rank, label: `rank ${rank}` })),
    rows: many.flatMap((rank) => [row("steps", rank), row("idle", rank), row("stream", rank)]),
  };
  const all = layOut(wide, { ...open(), closed: closedAtFirst(wide) });
  assert.equal(all.items.length, 12);
  assert.equal(all.height, 12 * 32);
  assert.deepEqual([...closedAtFirst(DESCRIBED)], []);
});

test("ranks are hidden, ordered by what they wait, and shown without the host", () => {
  const groups = [
    { rank: 0, waits: 0.9 },
    { rank: 1, waits: 0.1 },
    { rank: 2, waits: null },
    { rank: -1, waits: null },
  ];
  const ranks = (state) => groupsInOrder(groups, { ...open(), ...state }).map((group) => group.rank);
  assert.deepEqual(ranks({}), [0, 1, 2, -1]);
  assert.deepEqual(ranks({ order: "waits" }), [1, 0, 2, -1]);
  assert.deepEqual(ranks({ devices: true, hidden: new Set([1]) }), [0, 2]);
  assert.deepEqual(ranks({ order: "hand", ranks: [2, -1, 0, 1] }), [2, -1, 0, 1]);
  const { items } = layOut(DESCRIBED, { ...open(), devices: true });
  assert.ok(!items.some((item) => item.kind === "ops"));
});

test("of many ranks the late one comes first, of few all are seen anyway", () => {
  const groups = (count) => Array.from({ length: count }, (_, rank) => ({ rank, waits: 0.5, late: rank === 5 }));
  const first = (count, order) => groupsInOrder(groups(count), { ...open(), order })[0].rank;
  assert.deepEqual([first(8, "late"), first(12, "late"), first(12, "rank"), first(12, undefined)], [0, 5, 0, 5]);
});

test("requests stand before the ranks, close together, and stay open where ranks are closed", () => {
  const described = {
    groups: [
      { rank: -2, label: "requests" },
      { rank: 0, label: "rank 0" },
      { rank: 1, label: "rank 1" },
      { rank: -1, label: "host" },
    ],
    rows: [row("requests", -2), row("requests", -2), row("stream", 0), row("stream", 1), row("ops", -1)],
  };
  assert.deepEqual([...closedAtFirst(described)], [0, 1, -1]);
  const ranks = (state) => groupsInOrder(described.groups, state).map((group) => group.rank);
  assert.deepEqual(ranks({ ...open(), order: "waits" }), [-2, 0, 1, -1]);
  assert.deepEqual(ranks({ ...open(), devices: true }), [-2, 0, 1]);
  const { items } = layOut(described, { ...open(), closed: closedAtFirst(described) });
  assert.deepEqual(names(items).slice(0, 4), ["requests@0", "requests@24", "requests@39", "rank 0@54"]);
});
