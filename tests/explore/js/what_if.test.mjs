import assert from "node:assert/strict";
import test from "node:test";
import { changeText, changeValues, sliderPlace, sliderValue } from "../../../llmprof/explore/what_if/changes.mjs";

const field = (name, more = {}) => ({ name, kind: "text", label: name, value: "", ...more });
const scale = { name: "scale", fields: [field("what"), field("factor")] };
const transfer = {
  name: "transfer",
  fields: [field("bandwidth", { keyword: true, optional: true }), field("latency", { keyword: true, optional: true })],
};

test("a change is written as the command line takes it, and read again", () => {
  assert.equal(changeText(scale, ["attention", "0.5"]), "scale:attention:0.5");
  assert.deepEqual(changeValues(scale, "scale:attention:0.5"), ["attention", "0.5"]);
  assert.equal(changeText(transfer, ["", "8"]), "transfer:latency=8");
  assert.deepEqual(changeValues(transfer, "transfer:latency=8"), ["", "8"]);
  assert.deepEqual(changeValues(transfer, "transfer:bandwidth=300:latency=8"), ["300", "8"]);
  assert.equal(changeText({ name: "balance", fields: [] }, []), "balance");
});

test("a colon in a name becomes the dot of a regular expression", () => {
  assert.equal(changeText(scale, ["at::native", "2"]), "scale:at..native:2");
});

test("a logarithmic slider goes from one end to the other", () => {
  assert.equal(sliderValue(0, 1, 10_000), 1);
  assert.equal(sliderValue(100, 1, 10_000), 10_000);
  assert.equal(sliderValue(50, 1, 10_000), 100);
  for (const value of [1, 25, 300, 10_000]) {
    assert.ok(Math.abs(sliderValue(sliderPlace(value, 1, 10_000), 1, 10_000) - value) <= 0.06 * value);
  }
  assert.equal(sliderPlace(99_999, 1, 10_000), 100);
});
