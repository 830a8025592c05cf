import assert from "node:assert/strict";
import test from "node:test";
import { ask, cancel, declareLost, onLost, Superseded, table, typed } from "../../../llmprof/explore/base/js/wire.mjs";

function fakeModel() {
  const model = {
    sent: [],
    send: (content) => model.sent.push(content),
    on: (_, listener) => (model.receive = listener),
  };
  model.answer = (i, msg, buffers) => {
    const { what, id } = model.sent[i];
    model.receive({ kind: "answer", what, id, msg }, buffers);
  };
  return model;
}

test("a request gets its answer", async () => {
  const model = fakeModel();
  const answer = ask(model, "view", { width: 3 });
  assert.deepEqual({ ...model.sent[0], id: "" }, { kind: "ask", what: "view", id: "", args: { width: 3 } });
  model.answer(0, { rows: 2 }, ["b"]);
  assert.deepEqual(await answer, { msg: { rows: 2 }, buffers: ["b"] });
});

test("of requests made while one is under way only the newest is sent", async () => {
  const model = fakeModel();
  const answers = [1, 2, 3].map((n) => ask(model, "view", { n }));
  answers[1].catch(() => {});
  assert.equal(model.sent.length, 1);
  model.answer(0, { n: 1 });
  await assert.rejects(answers[1], Superseded);
  assert.deepEqual(
    model.sent.map((sent) => sent.args.n),
    [1, 3],
  );
  model.answer(1, { n: 3 });
  assert.deepEqual((await answers[2]).msg, { n: 3 });
});

test("requests of other kinds do not wait", () => {
  const model = fakeModel();
  ask(model, "view");
  ask(model, "labels");
  assert.equal(model.sent.length, 2);
});

test("answers to others are not taken", async () => {
  const model = fakeModel();
  const answer = ask(model, "view");
  model.receive({ kind: "answer", what: "view", id: "someone-else", msg: { n: 0 } });
  model.answer(0, { n: 1 });
  assert.deepEqual((await answer).msg, { n: 1 });
});

test("an error is rejected with its text", async () => {
  const model = fakeModel();
  const answer = ask(model, "view");
  model.answer(0, { error: "no steps were found." });
  await assert.rejects(answer, /no steps were found/);
});

test("a cancelled request is rejected and told to the kernel", async () => {
  const model = fakeModel();
  const answer = ask(model, "slow");
  cancel(model, "slow");
  await assert.rejects(answer, Superseded);
  assert.deepEqual(model.sent[1], { kind: "cancel", what: "slow" });
});

test("a lost kernel is told once, and later requests fail", async () => {
  const model = fakeModel();
  let told = 0;
  onLost(model, () => (told += 1));
  const answer = ask(model, "view");
  declareLost(model);
  declareLost(model);
  await assert.rejects(answer, Superseded);
  await assert.rejects(ask(model, "view"), Superseded);
  assert.equal(told, 1);
});

test("a closed channel counts as lost", async () => {
  const model = fakeModel();
  model.send = () => {
    throw new Error("closed");
  };
  await assert.rejects(ask(model, "view"), Superseded);
});

test("numbers are read where they are, aligned or not", () => {
  const raw = new Uint8Array([9, 1, 0, 0, 0, 2, 0, 0, 0]).buffer;
  assert.deepEqual([...typed(new DataView(raw, 1, 8), "u4")], [1, 2]);
  assert.deepEqual([...typed(new Float32Array([1.5]).buffer, "f4")], [1.5]);
});

test("columns are read as Python packed them", () => {
  const rows = table(
    [
      { name: "ns", dtype: "f8" },
      { name: "name", dtype: "u4", values: ["a"] },
      { name: "late", dtype: "u1" },
    ],
    [new Float64Array([1, NaN]).buffer, new Uint32Array([0, 0xffffffff]).buffer, new Uint8Array([1, 0]).buffer],
  );
  assert.equal(rows.length, 2);
  assert.deepEqual(
    rows.names.map((name) => rows.get(name, 0)),
    [1, "a", true],
  );
  assert.deepEqual(
    rows.names.map((name) => rows.get(name, 1)),
    [null, null, false],
  );
  assert.equal(rows.get("other", 0), null);
});
