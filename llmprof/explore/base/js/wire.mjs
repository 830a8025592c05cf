// Requests to the Python side, and the packed arrays that come back.

/**
 * @typedef {{what: string, args: any, id?: string, resolve: (answer: any) => void, reject: (error: Error) => void}} Request
 * @typedef {{model: import("./model").Model, name: string, sent: Map<string, Request>, next: Map<string, Request>,
 *   listeners: (() => void)[], count: number, lost: boolean}} Wire
 */

/** @type {WeakMap<object, Wire>} */
const connections = new WeakMap();
/** @type {Record<string, any>} */
const TYPES = {
  f8: Float64Array,
  f4: Float32Array,
  u4: Uint32Array,
  i4: Int32Array,
  u2: Uint16Array,
  u1: Uint8Array,
};

/**
 * The words of what was thrown.
 *
 * @param {unknown} error
 */
export const wordsOf = (error) => (error instanceof Error ? error.message : String(error));

/** A request that a newer one of its kind has replaced; nothing has to be done about it. */
export class Superseded extends Error {}

/**
 * Ask the Python side; kinds of messages and their fields are declared in the room's explorer.py.
 * One request of a kind is under way at a time; of those made meanwhile the newest is sent next, and the others
 * are rejected as Superseded.
 * @template {import("./model").AnyMessages} M
 * @template {keyof M & string} K
 * @param {import("./model").Model<any, M>} model
 * @param {K} what
 * @param {M[K]["asks"]} [args]
 * @returns {Promise<{msg: M[K]["answers"], buffers: DataView[]}>}
 */
export function ask(model, what, args = {}) {
  const wire = connection(model);
  return new Promise((resolve, reject) => {
    const request = { what, args, resolve, reject };
    if (wire.sent.has(what)) {
      wire.next.get(what)?.reject(new Superseded(what));
      wire.next.set(what, request);
    } else {
      transmit(wire, request);
    }
  });
}

/**
 * Set traits of the widget, here and in Python.
 * @template T
 * @param {import("./model").Model<T>} model
 * @param {Partial<T>} values
 */
export function setTraits(model, values) {
  for (const [name, value] of Object.entries(values)) model.set(/** @type {any} */ (name), value);
  model.save_changes();
}

/**
 * Set a filter of this explorer and of those that are linked with it; null removes it.
 * @param {import("./model").Model} model
 * @param {string} name
 * @param {unknown} value
 */
export function setFilter(model, name, value) {
  const { [name]: _, ...rest } = model.get("only");
  setTraits(model, { only: value === null ? rest : { ...rest, [name]: value } });
}

/**
 * Give up a request that is computed in the background, and those that wait behind it.
 * @param {import("./model").Model} model
 * @param {string} what
 */
export function cancel(model, what) {
  const wire = connection(model);
  const request = wire.sent.get(what);
  if (!request) return;
  wire.sent.delete(what);
  wire.next.get(what)?.reject(new Superseded(what));
  wire.next.delete(what);
  request.reject(new Superseded(what));
  model.send({ kind: "cancel", what });
}

/**
 * Whether the kernel behind the widget is gone; `changed` is called when that is found out.
 * @param {import("./model").Model} model
 * @param {() => void} changed
 */
export function onLost(model, changed) {
  const wire = connection(model);
  wire.listeners.push(changed);
  if (wire.lost) changed();
}

/**
 * Note that the kernel does not answer any more: requests fail from here on.
 * @param {import("./model").Model} model
 */
export function declareLost(model) {
  const wire = connection(model);
  if (wire.lost) return;
  wire.lost = true;
  for (const request of [...wire.sent.values(), ...wire.next.values()]) request.reject(new Superseded(request.what));
  wire.sent.clear();
  wire.next.clear();
  for (const changed of wire.listeners) changed();
}

/**
 * @param {import("./model").Model} model
 * @returns {Wire}
 */
function connection(model) {
  let wire = connections.get(model);
  if (!wire) {
    const name = Math.random().toString(36).slice(2);
    wire = { model, name, sent: new Map(), next: new Map(), listeners: [], count: 0, lost: false };
    connections.set(model, wire);
    const made = wire;
    model.on("msg:custom", (content, buffers) => receive(made, content, buffers ?? []));
  }
  return wire;
}

/**
 * @param {Wire} wire
 * @param {Request} request
 */
function transmit(wire, request) {
  if (wire.lost) {
    request.reject(new Superseded(request.what));
    return;
  }
  wire.count += 1;
  request.id = `${wire.name}-${wire.count}`;
  wire.sent.set(request.what, request);
  try {
    wire.model.send({ kind: "ask", what: request.what, id: request.id, args: request.args });
  } catch {
    declareLost(wire.model); // the channel to the kernel is closed
  }
}

/**
 * @param {Wire} wire
 * @param {any} content
 * @param {DataView[]} buffers
 */
function receive(wire, content, buffers) {
  if (content?.kind !== "answer") return;
  const request = wire.sent.get(content.what);
  if (!request || request.id !== content.id) return;
  wire.sent.delete(content.what);
  const next = wire.next.get(content.what);
  wire.next.delete(content.what);
  if (next) transmit(wire, next);
  if (content.msg.error) request.reject(new Error(content.msg.error));
  else request.resolve({ msg: content.msg, buffers });
}

/**
 * Numbers of a buffer (DataView, ArrayBuffer or typed array) as a typed array; copied only where not aligned.
 * @param {any} buffer
 * @param {string} dtype
 */
export function typed(buffer, dtype) {
  const Type = TYPES[dtype];
  const raw = buffer.buffer ?? buffer;
  const offset = buffer.byteOffset ?? 0;
  const bytes = buffer.byteLength;
  const size = Type.BYTES_PER_ELEMENT;
  if (offset % size) return new Type(raw.slice(offset, offset + bytes));
  return new Type(raw, offset, bytes / size);
}

/** @typedef {{length: number, names: string[], get: (name: string, row: number) => any}} Table */

/**
 * Columns that `messages.pack` sent: {length, names, get(name, row)}; null where nothing is.
 * @param {{name: string, dtype: string, values?: string[] | null}[]} columns
 * @param {DataView[]} buffers
 * @returns {Table}
 */
export function table(columns, buffers) {
  const found = new Map(
    columns.map((column, i) => [column.name, { ...column, data: typed(buffers[i], column.dtype) }]),
  );
  const length = columns.length ? found.get(columns[0].name)?.data.length : 0;
  /** @type {(name: string, row: number) => any} */
  const get = (name, row) => {
    const column = found.get(name);
    if (!column) return null;
    const value = column.data[row];
    if (column.values) return column.values[value] ?? null;
    if (column.dtype === "u1") return value === 1;
    return Number.isNaN(value) ? null : value;
  };
  return { length, names: columns.map((column) => column.name), get };
}
