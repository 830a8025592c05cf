import assert from "node:assert/strict";
import test from "node:test";
import { wayOf } from "../../../llmprof/explore/base/js/press.mjs";

test("alt and the arrows, and the side buttons of a mouse, lead back and forward", () => {
  const key = (key, more = {}) => wayOf({ type: "keydown", key, altKey: true, ...more });
  assert.deepEqual([key("ArrowLeft"), key("ArrowRight"), key("ArrowUp")], [-1, 1, 0]);
  assert.equal(wayOf({ type: "keydown", key: "ArrowLeft" }), 0);
  assert.equal(key("ArrowLeft", { ctrlKey: true }), 0);
  const buttons = [0, 1, 2, 3, 4].map((button) => wayOf({ type: "mouseup", button }));
  assert.deepEqual(buttons, [0, 0, 0, -1, 1]);
});
