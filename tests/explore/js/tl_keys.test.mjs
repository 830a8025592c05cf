import assert from "node:assert/strict";
import test from "node:test";
import { labelOf, lightened, tickLabel, windowOnMap } from "../../../llmprof/explore/timeline/draw.mjs";
import { draggedWindow } from "../../../llmprof/explore/timeline/input.mjs";
import { actionOf, wheelAction } from "../../../llmprof/explore/timeline/keys.mjs";

const wheel = (more) => ({ deltaX: 0, deltaY: 0, deltaMode: 0, shiftKey: false, ctrlKey: false, ...more });

test("keys, whatever their case; the browser keeps its own", () => {
  assert.deepEqual(
    ["w", "W", "ArrowLeft", "?", "/", "Escape", "y"].map((key) => actionOf({ key })),
    ["in", "in", "left", "help", "search", "clear", null],
  );
  assert.equal(actionOf({ key: "w", ctrlKey: true }), null);
  assert.deepEqual(
    [
      { key: "z", ctrlKey: true },
      { key: "Z", metaKey: true, shiftKey: true },
      { key: "y", ctrlKey: true },
      { key: "Backspace" },
      { key: "ArrowLeft", altKey: true },
      { key: "ArrowRight", altKey: true },
      { key: "z", altKey: true },
      { key: "z" },
    ].map(actionOf),
    ["undo", "redo", "redo", "undo", "undo", "redo", null, null],
  );
});

test("the wheel scrolls, with Ctrl it zooms, with Shift or sideways it pans", () => {
  assert.equal(wheelAction(wheel({ deltaY: -100 }), 1000), null);
  assert.ok(wheelAction(wheel({ deltaY: -100, ctrlKey: true }), 1000).zoom < 1);
  assert.ok(wheelAction(wheel({ deltaY: 3, ctrlKey: true }), 1000).zoom > 1);
  assert.deepEqual(wheelAction(wheel({ deltaY: 100, shiftKey: true }), 1000), { pan: 0.1 });
  assert.deepEqual(wheelAction(wheel({ deltaX: -50, deltaY: 10 }), 1000), { pan: -0.05 });
  assert.equal(
    wheelAction(wheel({ deltaY: -2, deltaMode: 1, ctrlKey: true }), 1000).zoom,
    wheelAction(wheel({ deltaY: -32, ctrlKey: true }), 1000).zoom,
  );
});

test("a label is cut, but the number of a layer or step is whole or not there", () => {
  const room = (most) => (text) => (text.length <= most ? text : most < 4 ? "" : `${text.slice(0, most - 1)}…`);
  const labels = [20, 9, 7, 2, 1].map((most) => labelOf("step 12 · decode", room(most)));
  assert.deepEqual(labels, ["step 12 · decode", "step 12 …", "12", "12", ""]);
  assert.equal(labelOf("attention_fwd", room(8)), "attenti…");
  assert.equal(labelOf("/srv/sgl/managers/scheduler.py(2919): _run_batch", room(34)), "scheduler.py(2919): _run_batch");
  assert.equal(labelOf("/srv/sgl/managers/scheduler.py(2919): _run_batch", room(60)).slice(0, 5), "/srv/");
});

test("ticks have the decimals that their distance needs", () => {
  assert.deepEqual(
    [
      [0, 5],
      [1500, 500],
      [208455000, 5000],
      [2e9, 1e8],
      [250, 50],
    ].map(([time, step]) => tickLabel(time, step)),
    ["0", "1.5 us", "208.455 ms", "2.0 s", "250 ns"],
  );
  // one view has one unit
  assert.deepEqual(
    [0, 5e5, 1e6, 15e5].map((time) => tickLabel(time, 5e5, 15e5)),
    ["0", "0.5 ms", "1.0 ms", "1.5 ms"],
  );
});

test("dragging on the minimap and on the axis", () => {
  const [whole, width] = [[0, 1000], 100];
  const drag = (part, x) => draggedWindow({ x: 10, window: [100, 200], part }, x, whole, width);
  assert.deepEqual(drag("inside", 20), [200, 300]);
  assert.deepEqual(drag("start", 15), [150, 200]);
  assert.deepEqual(drag("start", 90), [200, 200]);
  assert.deepEqual(drag("end", 20), [100, 300]);
  assert.deepEqual(drag("axis", 20), [90, 190]);
});

test("only dark colours are lightened for a dark ground", () => {
  assert.deepEqual(["#d55e00", "#000000", "#0b3c73"].map(lightened), ["#d55e00", "#5c5c5c", "#305988"]);
});

test("a tiny window stays visible on the minimap", () => {
  assert.deepEqual(windowOnMap([500, 501], [0, 1000], 100), [47.05, 53.05]);
  assert.deepEqual(windowOnMap([0, 500], [0, 1000], 100), [0, 50]);
});
