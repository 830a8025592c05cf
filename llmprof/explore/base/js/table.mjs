// A sortable table of any number of rows: only those in view are elements. Names begin with "table".
import { fill, h } from "./dom.mjs";
import { distinct, fitsInto } from "./names.mjs";
import { whenReleased } from "./press.mjs";

export const TABLE_ROW = 27;
export const TABLE_BLOCK = 60;
const PADDING = 16;

/**
 * First and last (exclusive) row to have as elements for a scroll position.
 * @param {number} scrollTop
 * @param {number} height
 * @param {number} total
 * @param {number} [row]
 * @param {number} [extra]
 */
export function tableRange(scrollTop, height, total, row = TABLE_ROW, extra = 6) {
  const first = Math.max(0, Math.min(Math.floor(scrollTop / row) - extra, total));
  return [first, Math.min(total, Math.ceil((scrollTop + height) / row) + extra)];
}

/**
 * Blocks of rows that cover a range and are not known yet, as first rows.
 * @param {number[]} range
 * @param {Map<number, any>} known
 * @param {number} [block]
 */
export function tableMissing([first, last], known, block = TABLE_BLOCK) {
  const missing = [];
  for (let at = Math.floor(first / block) * block; at < last; at += block) if (!known.has(at)) missing.push(at);
  return missing;
}

/**
 * Row that a key leads to, from a row (-1: none yet); null for keys that mean nothing here.
 * @param {string} key
 * @param {number} from
 * @param {number} total
 * @param {number} page
 */
export function tableStep(key, from, total, page) {
  if (!total) return null;
  /** @type {Record<string, number>} */
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
  if (key === "Home") return 0;
  if (key === "End") return total - 1;
  if (!(key in steps)) return null;
  if (from < 0) return 0;
  return Math.max(0, Math.min(total - 1, from + steps[key]));
}

/**
 * Order after a click on a column's head: numbers begin with the largest, texts with the first.
 * @param {string} sort
 * @param {string} column
 * @param {boolean} [number]
 */
export function tableTurn(sort, column, number) {
  if (sort === column) return `-${column}`;
  if (sort === `-${column}`) return column;
  return number ? `-${column}` : column;
}

/**
 * Scroll position that shows a row, as near as possible to the present one.
 * @param {number} row
 * @param {number} scrollTop
 * @param {number} height
 * @param {number} head
 * @param {number} [size]
 */
export function tableReveal(row, scrollTop, height, head, size = TABLE_ROW) {
  const top = row * size;
  if (top < scrollTop) return top;
  const room = height - head - size;
  return top > scrollTop + room ? top - Math.max(room, 0) : scrollTop;
}

/**
 * Points of a sparkline (0..255 each) as the path of an area.
 * @param {ArrayLike<number>} values
 * @param {number} width
 * @param {number} height
 */
export function tableSpark(values, width, height) {
  if (!values.length) return "";
  const step = width / values.length;
  const up = Array.from(values, (v, i) => {
    const y = (height - (v / 255) * (height - 1)).toFixed(1);
    return `L${(i * step).toFixed(1)} ${y}L${((i + 1) * step).toFixed(1)} ${y}`;
  });
  return `M0 ${height}${up.join("")}L${width} ${height}Z`;
}

/**
 * The table. `load` fetches the block of rows that begins at a row, `sorted` is told the order that a head asks for, and
 * `pick` is called for a click and Enter.
 *
 * @typedef {{name: string, title: string, number?: boolean, width: number, sortable?: boolean, tip?: string,
 *   of?: (row: any) => string, cell: (row: any, shown?: string) => string | Element}} Column  `of`: the name that the
 *   cell shows, and what it shows of it where it would read like another one
 * @param {object} options
 * @param {string} options.label
 * @param {Column[]} options.columns
 * @param {(first: number) => void} options.load
 * @param {(sort: string) => void} options.sorted
 * @param {(index: number, row: any) => void} options.pick
 * @param {(row: any) => boolean} [options.chosen]
 * @param {number} [options.height]
 */
export function tableGrid({ label, columns, load, sorted, pick, chosen = () => false, height = 330 }) {
  const id = `lp-grid-${Math.random().toString(36).slice(2)}`;
  const state = { total: 0, blocks: new Map(), asked: new Set(), active: -1, sort: "" };
  const heads = new Map();
  /** @type {Map<string, {room: number, told: Map<string, string>}>} */
  const names = new Map();
  let shown = columns;
  const head = h("tr", { "aria-rowindex": "1" });
  const widths = h("colgroup");
  const above = h("tr", { "aria-hidden": "true", class: "lp-space" }, h("td"));
  const below = h("tr", { "aria-hidden": "true", class: "lp-space" }, h("td"));
  const body = h("tbody");
  const grid = h(
    "table",
    { role: "grid", tabindex: "0", "aria-label": label, class: "lp-grid" },
    widths,
    h("thead", {}, head),
    body,
  );
  const el = h("div", { class: "lp-gridbox" }, grid);
  el.style.maxHeight = `${height}px`;
  /** @param {Column} column */
  const headOf = (column) => {
    const turn = () => sorted(tableTurn(state.sort, column.name, column.number));
    const inner =
      column.sortable === false
        ? h("span", { class: "lp-headtext", text: column.title })
        : h("button", { type: "button", class: "lp-sort", text: column.title, title: column.tip, onclick: turn });
    return h("th", { scope: "col", class: column.number ? "lp-number" : undefined }, inner);
  };
  const order = () => {
    for (const [name, th] of heads) {
      if (state.sort === name) th.setAttribute("aria-sort", "ascending");
      else if (state.sort === `-${name}`) th.setAttribute("aria-sort", "descending");
      else th.removeAttribute("aria-sort");
    }
  };
  /** Heads and widths of the columns that are shown. The first one stays when the others scroll; it is narrow in a narrow box. */
  const build = () => {
    heads.clear();
    for (const column of shown) heads.set(column.name, headOf(column));
    head.replaceChildren(...heads.values());
    const sizes = shown.map(({ width }, i) => (i ? `${width}px` : `min(${width}px, 45cqw)`));
    widths.replaceChildren(
      ...sizes.map((size) => {
        const col = h("col");
        col.style.width = size;
        return col;
      }),
    );
    for (const space of [above, below]) space.firstChild.setAttribute("colspan", shown.length);
    grid.style.width = `max(100%, ${sizes.join(" + ")})`;
    order();
  };
  build();

  /** @param {number} i */
  const rowAt = (i) => state.blocks.get(Math.floor(i / TABLE_BLOCK) * TABLE_BLOCK)?.[i % TABLE_BLOCK];
  /** @param {number} i */
  const line = (i) => {
    const row = rowAt(i);
    const props = { id: `${id}-${i}`, role: "row", "aria-rowindex": i + 2, "data-row": i };
    const tr = h("tr", { ...props, "aria-selected": String(Boolean(row && chosen(row))) });
    tr.classList.toggle("lp-active", i === state.active);
    for (const column of shown) {
      const made = row ? column.cell(row, column.of && names.get(column.name)?.told.get(column.of(row))) : "…";
      const td = h("td", { class: column.number ? "lp-number" : undefined });
      if (typeof made === "string") {
        td.textContent = made;
        if (made.length > 20) td.title = made;
      } else td.append(made);
      tr.append(td);
    }
    return tr;
  };
  /** What is shown of the names of all rows that have come, for the present widths; whether that may be something else. */
  const tell = () => {
    let changed = false;
    for (const column of shown) {
      const { of } = column;
      const room = of ? heads.get(column.name).clientWidth - PADDING : 0;
      if (!of || room <= 0 || names.get(column.name)?.room === room) continue;
      const rows = [...state.blocks.values()].flat();
      names.set(column.name, { room, told: distinct(rows.map(of), fitsInto(room)) });
      changed = true;
    }
    return changed;
  };
  const paint = () => {
    tell();
    const [first, last] = tableRange(el.scrollTop, height, state.total);
    for (const start of tableMissing([first, last], state.blocks)) {
      if (!state.asked.has(start)) {
        state.asked.add(start);
        load(start);
      }
    }
    above.firstChild.style.height = `${first * TABLE_ROW}px`;
    below.firstChild.style.height = `${(state.total - last) * TABLE_ROW}px`;
    const lines = Array.from({ length: last - first }, (_, i) => line(first + i));
    whenReleased(body, () => fill(body, first ? above : null, lines, last < state.total ? below : null));
    grid.setAttribute("aria-rowcount", state.total + 1);
    if (state.active >= first && state.active < last)
      grid.setAttribute("aria-activedescendant", `${id}-${state.active}`);
    else grid.removeAttribute("aria-activedescendant");
  };
  /** @param {number} row */
  const activate = (row) => {
    state.active = row;
    el.scrollTop = tableReveal(row, el.scrollTop, el.clientHeight, head.offsetHeight);
    paint();
  };
  if (columns.some((column) => column.of)) new ResizeObserver(() => tell() && paint()).observe(el);
  el.addEventListener("scroll", paint, { passive: true });
  body.addEventListener("click", (/** @type {any} */ event) => {
    const tr = event.target.closest("tr[data-row]");
    if (!tr) return;
    state.active = Number(tr.dataset.row);
    paint();
    if (rowAt(state.active)) pick(state.active, rowAt(state.active));
  });
  grid.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.target !== grid) return;
    const page = Math.max(1, Math.floor((el.clientHeight - head.offsetHeight) / TABLE_ROW) - 1);
    const to = tableStep(event.key, state.active, state.total, page);
    if (to !== null) activate(to);
    else if (event.key === "Enter" && rowAt(state.active)) pick(state.active, rowAt(state.active));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return {
    el,
    grid,
    /**
     * @param {number} total
     * @param {any[]} rows
     */
    show(total, rows) {
      state.total = total;
      state.blocks = new Map();
      for (let at = 0; at < rows.length; at += TABLE_BLOCK) state.blocks.set(at, rows.slice(at, at + TABLE_BLOCK));
      names.clear();
      state.asked = new Set(state.blocks.keys());
      state.active = Math.min(state.active, total - 1);
      el.scrollTop = 0;
      el.setAttribute("aria-busy", "false");
      paint();
    },
    /** Scroll to a row. */
    /** @param {number} row */
    reveal(row) {
      el.scrollTop = tableReveal(row, el.scrollTop, el.clientHeight, head.offsetHeight);
      paint();
    },
    /**
     * @param {number} first
     * @param {any[]} rows
     */
    put(first, rows) {
      state.blocks.set(first, rows);
      names.clear();
      paint();
    },
    /** Ask again for the rows on the screen, which stay until they come; others are asked for when they are seen. */
    again() {
      const [first, last] = tableRange(el.scrollTop, height, state.total);
      const near = [...state.blocks].filter(([start]) => start < last && start + TABLE_BLOCK > first);
      state.blocks = new Map(near);
      state.asked = new Set(state.blocks.keys());
      for (const start of state.asked) load(start);
    },
    /** @param {number} first */
    forget(first) {
      state.asked.delete(first);
    },
    /** @param {string} sort */
    order(sort) {
      state.sort = sort;
      order();
    },
    /**
     * Show only some columns, and the first one.
     * @param {(name: string) => boolean} wanted
     */
    choose(wanted) {
      shown = columns.filter((column, i) => !i || wanted(column.name));
      build();
      paint();
    },
    /** Say that other rows are on their way: those on the screen are not yet what was asked for. */
    wait() {
      el.setAttribute("aria-busy", "true");
    },
    paint,
  };
}

/**
 * Sparkline as an element: a block of colour, cut to the area.
 * @param {ArrayLike<number>} values
 * @param {string} colour
 * @param {number} [width]
 * @param {number} [height]
 */
export function tableSparkline(values, colour, width = 120, height = 18) {
  const el = h("div", { class: "lp-spark", "aria-hidden": "true" });
  el.style.width = `${width}px`;
  el.style.height = `${height}px`;
  el.style.background = colour;
  el.style.clipPath = `path("${tableSpark(values, width, height)}")`;
  return el;
}
