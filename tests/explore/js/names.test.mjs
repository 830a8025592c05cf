import assert from "node:assert/strict";
import test from "node:test";

import { distinct } from "../../../llmprof/explore/base/js/names.mjs";

/** @param {number} room */
const within = (room) => (/** @type {string} */ text) => text.length <= room;

/**
 * @param {string[]} names
 * @param {number} room
 */
const told = (names, room) => Object.fromEntries(distinct(names, within(room)));

test("names that differ where they are cut anyway stay as they are", () => {
  assert.deepEqual(told(["gemm_bf16_256x32_splitK", "norm_bf16_256x32_vector", "fill"], 12), {});
  assert.deepEqual(told(["the_same_name_of_two_rows", "the_same_name_of_two_rows"], 12), {});
});

test("of names that would read alike, the beginning and what differs is shown", () => {
  assert.deepEqual(told(["FlashAttention-3 hdim128 · 64", "FlashAttention-3 hdim128 · 128", "fill"], 20), {
    "FlashAttention-3 hdim128 · 64": "FlashAttention… · 64",
    "FlashAttention-3 hdim128 · 128": "FlashAttentio… · 128",
  });
});

test("no two different names have the same text, and each fits", () => {
  const parts = [
    "aclnnMaxPool2dWithMask",
    "_MaxPoolWithArgmax",
    "_TransData",
    "V1",
    "<64,",
    "128>",
    "_MemSet",
    "Backward",
  ];
  const names = parts.flatMap((one) => parts.flatMap((two) => parts.map((three) => one + two + three + one)));
  for (const room of [8, 14, 24, 40]) {
    const made = distinct(names, within(room));
    const texts = names.map((name) => made.get(name) ?? (name.length > room ? `${name.slice(0, room - 1)}…` : name));
    assert.equal(new Set(texts).size, new Set(names).size, `room for ${room}`);
    assert.ok(texts.every((text) => text.length <= room));
  }
});
