// Where the rows of the timeline stand, and how high they are. Pure functions.

const LEVEL_HEIGHTS = {
  steps: 18,
  layers: 17,
  collectives: 17,
  idle: 15,
  stream: 24,
  counter: 34,
  markers: 15,
  ops: 15,
  runtime: 15,
};
const FOLDED_HEIGHT = 9;
const GROUP_HEIGHT = 24;
const ROW_GAP = 4;
const LEVEL_GAP = 1;

/**
 * Items from the top: a head for each group (rank), and its rows unless it is closed.
 * state: {closed: Set of ranks, folded: Set of rows, pinned: Set of rows}; pinned rows come apart.
 */
export function layOut(described, state) {
  const items = [];
  const pinned = [];
  let y = 0;
  let pinnedY = 0;
  for (const group of described.groups) {
    const closed = state.closed.has(group.rank);
    const rows = described.rows.map((row, number) => ({ ...row, number })).filter((row) => row.rank === group.rank);
    items.push({ type: "group", ...group, closed, rows: rows.length, top: y, height: GROUP_HEIGHT, levels: [] });
    y += GROUP_HEIGHT;
    for (const row of rows) {
      if (state.pinned.has(row.number)) {
        const item = rowItem(row, state, pinnedY);
        item.label = `${group.label} · ${row.label}`;
        pinned.push(item);
        pinnedY += item.height + ROW_GAP;
      } else if (!closed) {
        const item = rowItem(row, state, y);
        items.push(item);
        y += item.height + ROW_GAP;
      }
    }
  }
  return { items, height: y, pinned, pinnedHeight: pinnedY };
}

function rowItem(row, state, top) {
  const folded = state.folded.has(row.number);
  const height = LEVEL_HEIGHTS[row.kind] ?? 15;
  const levels = [];
  if (folded) {
    levels.push({ y: 0, height: FOLDED_HEIGHT });
  } else {
    for (let i = 0; i < row.levels; i += 1) levels.push({ y: i * (height + LEVEL_GAP), height });
  }
  const last = levels[levels.length - 1];
  const least = folded ? 16 : 0;
  return { type: "row", ...row, folded, top, height: Math.max(last.y + last.height, least), levels };
}

/** Rows that are folded at first: operators of all ranks but the first, which are deep. */
export function foldedAtFirst(described) {
  const first = described.groups.find((group) => group.rank >= 0)?.rank ?? -1;
  const deep = (row) => row.levels > 2 && row.kind === "ops" && row.rank !== first;
  return new Set(described.rows.flatMap((row, number) => (deep(row) ? [number] : [])));
}

/** Items that a scrolled pane shows. */
export function visibleItems(items, scroll, height) {
  return items.filter((item) => item.top < scroll + height && item.top + item.height > scroll);
}

/** Item and level at a height of the content; level -1 beside its levels. */
export function itemAt(items, y) {
  const item = items.find((one) => y >= one.top && y < one.top + one.height);
  if (!item) return null;
  const level = item.levels.findIndex((one) => y - item.top >= one.y && y - item.top < one.y + one.height + 1);
  return { item, level };
}
