import assert from "node:assert/strict";
import test from "node:test";
import {
  binAt,
  eventAt,
  packColour,
  paintBins,
  readView,
  unknownNames,
} from "../../../llmprof/explore/timeline/view.mjs";

const f4 = (...values) => new Float32Array(values).buffer;
const u4 = (...values) => new Uint32Array(values).buffer;
const u1 = (...values) => new Uint8Array(values).buffer;

function someView() {
  const msg = {
    window: [100, 200],
    columns: 4,
    lanes: [
      [7, 0, 0, 3, -1],
      [7, 1, 3, 1, 0],
    ],
  };
  return readView(msg, [
    f4(0, 20, 50, 10),
    f4(10, 10, 1, 60),
    u1(1, 2, 1, 3),
    u4(0, 1, 0, 5),
    u4(10, 11, 12, 13),
    u1(255, 0, 128, 1),
    u1(2, 0, 1, 1),
    f4(),
    u1(0, 255, 0, 0),
    u1(0, 0, 0, 0),
  ]);
}

test("an event is found at its time, or nearby within reach", () => {
  const view = someView();
  const lane = view.lanes.get("7/0");
  assert.deepEqual(
    [100, 105, 110, 115, 121, 150.5, 199].map((t) => eventAt(view, lane, t, 0)),
    [0, 0, 0, -1, 1, 2, -1],
  );
  assert.equal(eventAt(view, lane, 112, 3), 0);
  assert.equal(eventAt(view, lane, 118, 3), 1);
  assert.equal(eventAt(view, lane, 115, 3), -1);
  assert.equal(eventAt(view, view.lanes.get("7/1"), 130, 0), 3);
});

test("a column says how busy it was", () => {
  const view = someView();
  const lane = view.lanes.get("7/1");
  assert.deepEqual(binAt(view, lane, 110), { busy: 1, code: 2 });
  assert.equal(binAt(view, lane, 130), null);
  assert.equal(binAt(view, lane, 250), null);
  assert.equal(binAt(view, view.lanes.get("7/0"), 110), null);
});

test("names that are not known yet", () => {
  assert.deepEqual(unknownNames(someView(), new Map([[0, "a"]])), [1, 5]);
});

test("columns are painted from the bottom, as high as they were busy", () => {
  const pixels = new Uint32Array(8);
  paintBins(someView(), pixels, 2, [0, 11, 22, 33]);
  assert.deepEqual([...pixels], [22, 0, 0, 0, 22, 0, 11, 11]);
});

test("colours are packed as pixels: alpha, blue, green, red", () => {
  assert.equal(packColour("#010203"), 0xff030201);
});

test("a column that mostly waits is hatched", () => {
  const pixels = new Uint32Array(2 * 12);
  paintBins({ columns: 2, binned: 1, busy: [255, 255], main: [1, 1], held: [255, 100] }, pixels, 12, [0, 7]);
  const filled = (column) => [...pixels].filter((colour, i) => i % 2 === column && colour === 7).length;
  assert.deepEqual([filled(0), filled(1)], [8, 12]);
});
