// Where the rows of the timeline stand, and how high they are. Pure functions.

/** Number of the group of requests; the host's is -1. */
const REQUESTS = -2;

/** Number of the group of results of queries. */
const QUERIED = -4;

/** Kind of the row of the critical path, which runs over all ranks and is pinned. */
export const PATH = "critical_path";

/** @type {Record<string, number>} */
const LEVEL_HEIGHTS = {
  critical_path: 18,
  requests: 13,
  steps: 18,
  layers: 17,
  collectives: 17,
  idle: 15,
  stream: 24,
  counter: 34,
  markers: 15,
  modules: 15,
  python: 15,
  ops: 15,
  runtime: 15,
};
const HOST = ["markers", "modules", "python", "ops", "runtime"];
const FOLDED_HEIGHT = 9;
const GROUP_HEIGHT = 24;
const ROW_GAP = 4;
const REQUEST_GAP = 2;
const LEVEL_GAP = 1;

/**
 * Kinds of rows, as they are called in the menu.
 * @type {Record<string, string>}
 */
export const KINDS = {
  requests: "requests",
  steps: "steps",
  layers: "layers",
  collectives: "collectives",
  idle: "idle time",
  stream: "streams",
  counter: "counters",
  markers: "markers",
  modules: "modules",
  python: "Python functions",
  ops: "operators",
  runtime: "runtime calls",
};

const FEW_RANKS = 8;
const STRIPS = { few: { steps: 15, stream: 22, lost: 8 }, many: { steps: 0, stream: 15, lost: 7 } };

/**
 * @typedef {import("./types").Level} Level
 * @typedef {import("./types").Item} Item
 * @typedef {import("./types").Row} Row
 * @typedef {import("./messages").Group} Group
 * @typedef {Pick<import("./types").Rows, "groups" | "rows">} Described
 * @typedef {"late" | "rank" | "waits" | "hand"} Order
 * @typedef {{closed: Set<number>, folded: Set<number>, pinned: Set<number>, hidden?: Set<number>, devices?: boolean,
 *   order?: Order, ranks?: number[], moved?: number[], kinds?: Set<string>, named?: string, path?: boolean}} State
 */

/**
 * Items from the top: a head for each group (rank), and its rows unless it is closed; pinned rows come apart, first
 * of them the critical path.
 * The head of a closed rank has its busiest stream, and below that what it waits for and where it idles.
 * @param {Described} described
 * @param {State} state
 */
export function layOut(described, state) {
  /** @type {Item[]} */
  const items = [];
  /** @type {import("./types").RowItem[]} */
  const pinned = [];
  let y = 0;
  let pinnedY = 0;
  const heights = described.groups.length > FEW_RANKS + 1 ? STRIPS.many : STRIPS.few;
  const named = (state.named ?? "").trim().toLowerCase();
  /** @param {Row} row */
  const wanted = (row) => !state.kinds?.has(row.kind) && row.label.toLowerCase().includes(named);
  const number = state.path ? described.rows.findIndex((row) => row.kind === PATH) : -1;
  if (number >= 0) {
    const item = rowItem({ ...described.rows[number], number }, state, 0);
    pinned.push(item);
    pinnedY = item.height + ROW_GAP;
  }
  for (const group of groupsInOrder(described.groups, state)) {
    const closed = state.closed.has(group.rank);
    const rows = rowsInOrder(described, group.rank, state).filter(wanted);
    const levels = closed ? stripLevels(rows, heights) : [];
    const height = levels.length ? levels[levels.length - 1].y + levels[levels.length - 1].height + 5 : GROUP_HEIGHT;
    items.push({ type: "group", ...group, closed, rows: rows.length, top: y, height, levels });
    y += height;
    for (const row of rows) {
      if (state.pinned.has(row.number)) {
        const item = rowItem(row, state, pinnedY);
        item.label = `${group.label} · ${row.label}`;
        pinned.push(item);
        pinnedY += item.height + gapAfter(row);
      } else if (!closed && !(state.devices && HOST.includes(row.kind))) {
        const item = rowItem(row, state, y);
        items.push(item);
        y += item.height + gapAfter(row);
      }
    }
  }
  return { items, height: y, pinned, pinnedHeight: pinnedY };
}

/** @param {Pick<Row, "kind">} row */
const gapAfter = (row) => (row.kind === "requests" ? REQUEST_GAP : ROW_GAP);

/**
 * Groups that are shown: requests, then by rank, of many the one first for whom the others wait ("late"); or those that
 * wait least first; or as they were moved. The host comes last, unless it was moved.
 * @param {Group[]} groups
 * @param {Pick<State, "hidden" | "devices" | "order" | "ranks">} state
 */
export function groupsInOrder(groups, state) {
  const shown = groups.filter((group) => !state.hidden?.has(group.rank) && !(state.devices && group.rank === -1));
  if (state.order === "hand") return inOrder(shown, state.ranks, (group) => group.rank);
  const many = groups.length > FEW_RANKS + 1;
  /** @type {(group: Group) => number} */
  const key = {
    waits: (/** @type {Group} */ group) => group.waits ?? 1,
    late: (/** @type {Group} */ group) => (many && group.late ? 0 : 1),
    rank: () => 0,
  }[state.order ?? "late"];
  /** @param {Group} group */
  const place = (group) =>
    group.rank === QUERIED ? -2 : group.rank === REQUESTS ? -1 : group.rank < 0 ? 2 : key(group);
  return [...shown].sort((a, b) => place(a) - place(b) || shown.indexOf(a) - shown.indexOf(b));
}

/**
 * Rows of a rank with their numbers, as they were moved.
 * @param {Described} described
 * @param {number} rank
 * @param {Pick<State, "moved">} state
 * @returns {Row[]}
 */
export function rowsInOrder(described, rank, state) {
  const rows = described.rows.map((row, number) => ({ ...row, number })).filter((row) => row.rank === rank);
  return inOrder(rows, state.moved, (row) => row.number);
}

/**
 * Things in the order of a list of their keys; what is not in it stays behind what it followed.
 * @template T
 * @param {T[]} things
 * @param {number[] | undefined} order
 * @param {(thing: T) => number} key
 */
function inOrder(things, order, key) {
  if (!order?.length) return things;
  const places = new Map(order.map((one, place) => [one, place]));
  let last = -1;
  const at = things.map((thing, i) => {
    last = places.get(key(thing)) ?? last;
    return { thing, place: last, i };
  });
  return at.sort((a, b) => a.place - b.place || a.i - b.i).map((one) => one.thing);
}

/**
 * State in which a rank, or a row among those of its rank, is moved by so many places of what is shown.
 * @param {Described} described
 * @param {State} state
 * @param {{rank: number, number?: number}} what
 * @param {number} by
 * @returns {State | null} null where it is at the end already
 */
export function movedBy(described, state, { rank, number }, by) {
  const whole = number === undefined;
  const named = (state.named ?? "").trim().toLowerCase();
  const shown = whole
    ? groupsInOrder(described.groups, state).map((group) => group.rank)
    : rowsInOrder(described, rank, state)
        .filter((row) => !state.kinds?.has(row.kind) && row.label.toLowerCase().includes(named))
        .map((row) => row.number);
  const from = shown.indexOf(whole ? rank : number);
  const to = Math.max(0, Math.min(shown.length - 1, from + by));
  if (from < 0 || to === from) return null;
  const every = whole
    ? groupsInOrder(described.groups, { ...state, hidden: new Set(), devices: false }).map((group) => group.rank)
    : rowsInOrder(described, rank, state).map((row) => row.number);
  const rest = every.filter((one) => one !== shown[from]);
  rest.splice(rest.indexOf(shown[to]) + (to > from ? 1 : 0), 0, shown[from]);
  if (whole) return { ...state, order: "hand", ranks: rest };
  const others = (state.moved ?? []).filter((one) => described.rows[one]?.rank !== rank);
  return { ...state, moved: [...others, ...rest] };
}

/**
 * Levels of a closed rank: its steps where there is room for them, its busiest stream, and what it loses.
 * @param {Row[]} rows
 * @param {{steps: number, stream: number, lost: number}} heights
 * @returns {Level[]}
 */
function stripLevels(rows, heights) {
  const stream = rows.find((row) => row.kind === "stream") ?? rows.find((row) => row.kind === "ops");
  if (!stream) return [];
  /** @type {Level[]} */
  const levels = [];
  let y = 4;
  /**
   * @param {number} height
   * @param {Row[]} found
   */
  const add = (height, found) => {
    if (!height || !found.length) return;
    levels.push(...found.map((row) => ({ row: row.number, level: 0, y, height })));
    y += height + LEVEL_GAP;
  };
  /** @param {...string} kinds */
  const of = (...kinds) => rows.filter((row) => kinds.includes(row.kind) && row.count);
  add(heights.steps, of("steps"));
  add(heights.stream, [stream]);
  add(heights.lost, of("collectives", "idle"));
  return levels;
}

/**
 * Ranks that are closed at first: all with a device, where there are several.
 * @param {Described} described
 * @returns {Set<number>}
 */
export function closedAtFirst(described) {
  const ranks = new Set(described.rows.filter((row) => row.kind === "stream").map((row) => row.rank));
  const groups = described.groups.map((group) => group.rank).filter((rank) => rank !== REQUESTS && rank !== QUERIED);
  return ranks.size > 1 ? new Set(groups) : new Set();
}

/**
 * Item and level where a level of a row is drawn; null where its rank is closed or it is not shown.
 * @param {Item[]} items
 * @param {number} row
 * @param {number} level
 */
export function levelOf(items, row, level) {
  const item = items.find((one) => one.levels.some((place) => place.row === row));
  if (!item) return null;
  const own = item.levels.filter((place) => place.row === row);
  const folded = item.type === "row" && item.folded;
  return { item, place: own.find((place) => place.level === level) ?? (folded ? own[0] : null) };
}

/**
 * @param {Row} row
 * @param {Pick<State, "folded">} state
 * @param {number} top
 * @returns {import("./types").RowItem}
 */
function rowItem(row, state, top) {
  const folded = state.folded.has(row.number);
  const height = LEVEL_HEIGHTS[row.kind] ?? 15;
  /** @type {Level[]} */
  const levels = [];
  if (folded) {
    levels.push({ row: row.number, level: 0, y: 0, height: FOLDED_HEIGHT });
  } else {
    for (let i = 0; i < row.levels; i += 1) {
      levels.push({ row: row.number, level: i, y: i * (height + LEVEL_GAP), height });
    }
  }
  const last = levels[levels.length - 1];
  const least = folded ? 16 : 0;
  return { type: "row", ...row, folded, top, height: Math.max(last.y + last.height, least), levels };
}

/**
 * Rows that are folded at first: operators and Python functions of all ranks but the first, which are deep.
 * @param {Described} described
 */
export function foldedAtFirst(described) {
  const first = described.groups.find((group) => group.rank >= 0)?.rank ?? -1;
  /** @param {import("./messages").Described} row */
  const deep = (row) => row.levels > 2 && ["modules", "python", "ops"].includes(row.kind) && row.rank !== first;
  return new Set(described.rows.flatMap((row, number) => (deep(row) ? [number] : [])));
}

/**
 * Rows that can be folded: those of several levels, and counters.
 * @param {Described} described
 */
export function foldable(described) {
  /** @param {import("./messages").Described} row */
  const some = (row) => row.levels > 1 || row.kind === "counter" || row.kind === "stream";
  return described.rows.flatMap((row, number) => (some(row) ? [number] : []));
}

/**
 * How rows are arranged as plain values, which Python keeps.
 * @param {Described} described
 * @param {State} state
 */
export function arrangementOf(described, state) {
  /**
   * @template {string | number} T
   * @param {Set<T> | undefined} set
   */
  const sorted = (set) => [...(set ?? [])].sort((a, b) => (a < b ? -1 : 1));
  const ranks = described.groups.map((group) => group.rank);
  return {
    open: ranks.filter((rank) => !state.closed.has(rank)),
    hidden: sorted(state.hidden),
    folded: sorted(state.folded),
    pinned: sorted(state.pinned),
    kinds: sorted(state.kinds),
    named: state.named ?? "",
    devices: Boolean(state.devices),
    order: state.order ?? "late",
    ranks: state.order === "hand" ? [...(state.ranks ?? [])] : [],
    moved: [...(state.moved ?? [])],
    path: Boolean(state.path),
  };
}

/**
 * State of an arrangement; of what it does not say, that of the first picture.
 * @param {Described} described
 * @param {import("./messages").Traits["arrangement"]} [arrangement]
 * @returns {State}
 */
export function stateOf(described, arrangement) {
  const said = arrangement ?? {};
  const ranks = described.groups.map((group) => group.rank);
  const open = said.open ? new Set(said.open) : null;
  return {
    closed: open ? new Set(ranks.filter((rank) => !open.has(rank))) : closedAtFirst(described),
    folded: said.folded ? new Set(said.folded) : foldedAtFirst(described),
    pinned: new Set(said.pinned ?? []),
    hidden: new Set(said.hidden ?? []),
    kinds: new Set(said.kinds ?? []),
    named: said.named ?? "",
    devices: Boolean(said.devices),
    order: said.order ?? "late",
    ranks: [...(said.ranks ?? [])],
    moved: [...(said.moved ?? [])],
    path: Boolean(said.path),
  };
}

/**
 * Items that a scrolled pane shows.
 * @param {Item[]} items
 * @param {number} scroll
 * @param {number} height
 */
export function visibleItems(items, scroll, height) {
  return items.filter((item) => item.top < scroll + height && item.top + item.height > scroll);
}

/**
 * Item and the last of its levels (its place in the item) at a height of the content; level -1 beside its levels.
 * @param {Item[]} items
 * @param {number} y
 */
export function itemAt(items, y) {
  const item = items.find((one) => y >= one.top && y < one.top + one.height);
  if (!item) return null;
  const level = item.levels.findIndex((one) => y - item.top >= one.y && y - item.top < one.y + one.height + 1);
  return { item, level };
}
