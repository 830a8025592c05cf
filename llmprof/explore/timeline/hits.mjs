// The list of all hits of the search: totals, filters, and a table that goes to each. Names begin with "hits".
import { fill, h, labelled } from "../base/js/dom.mjs";
import { formatNs, formatNumber } from "../base/js/format.mjs";
import { TABLE_BLOCK, tableGrid } from "../base/js/table.mjs";

/**
 * Totals in words.
 * @param {Pick<import("./messages").Messages["list"]["answers"], "total" | "names" | "sum_ns">} totals
 * @param {string} text
 */
export function hitsTotals({ total, names, sum_ns: sum }, text) {
  if (!total) return `Nothing is named “${text}” here.`;
  /**
   * @param {number} count
   * @param {string} word
   */
  const many = (count, word) => `${formatNumber(count)} ${word}${count === 1 ? "" : "s"}`;
  return `${many(total, "hit")} of ${many(names, "name")} with “${text}”, ${formatNs(sum)} added up`;
}

/**
 * The list: {el, toggle(open), update()}.
 * @param {import("./timeline.mjs").Timeline} timeline
 */
export function makeHits(timeline) {
  /** @typedef {import("./messages").Messages["list"]["asks"]["where"]} Where */
  /** @type {{where: Where, rank: number | null, inWindow: boolean, sort: string}} */
  const state = { where: "everywhere", rank: null, inWindow: false, sort: "start" };
  const words = h("strong", { class: "lpt-hitwords", "aria-live": "polite" });
  const where = labelled(
    "In",
    [
      ["everywhere", "all rows"],
      ["device", "devices"],
      ["host", "host threads"],
      ["found", "steps, layers, collectives, idle"],
    ],
    "everywhere",
    (value) => change({ where: /** @type {Where} */ (value) }),
  );
  const rank = labelled("Of", [["", "all ranks"]], "", (value) =>
    change({ rank: value === "" ? null : Number(value) }),
  );
  const inWindow = h("input", { type: "checkbox", onchange: () => change({ inWindow: inWindow.checked }) });
  const close = h("button", { type: "button", text: "Close", title: "Key: L", onclick: () => toggle(false) });
  /** @param {number} rank */
  const groupName = (rank) => timeline.described.groups.find((group) => group.rank === rank)?.label ?? "";
  const several = () => timeline.described.groups.length > 1;
  /** @param {number} code */
  const colour = (code) => {
    const swatch = h("span", { class: "lp-square" });
    swatch.style.background = timeline.paints.colour[code];
    return swatch;
  };
  const grid = tableGrid({
    label: "Hits of the search",
    height: 240,
    columns: [
      {
        name: "name",
        title: "name",
        width: 360,
        cell: ({ hit }) =>
          h("span", { class: "lp-key", title: hit.name }, colour(hit.code), h("span", { text: hit.name })),
      },
      {
        name: "row",
        title: "row",
        width: 190,
        sortable: false,
        cell: (one) => (several() ? `${groupName(one.rank)} · ${one.label}` : one.label),
      },
      { name: "start", title: "start", number: true, width: 110, cell: ({ hit }) => formatNs(hit.start) },
      { name: "dur", title: "duration", number: true, width: 110, cell: ({ hit }) => formatNs(hit.end - hit.start) },
    ],
    load: (first) => load(first),
    sorted: (sort) => change({ sort }),
    pick: (_, row) => timeline.goTo(row.hit),
    chosen: ({ hit }) => timeline.hit?.row === hit.row && timeline.hit?.id === hit.id,
  });
  const el = h(
    "div",
    { class: "lpt-hits", role: "group", "aria-label": "List of hits", hidden: true },
    h(
      "div",
      { class: "lpt-title" },
      words,
      where.el,
      rank.el,
      h("label", { class: "lp-label" }, inWindow, h("span", { text: "only in the window" })),
      h("span", { class: "lpt-actions" }, close),
    ),
    grid.el,
  );
  let round = 0;
  let coming = false; // whether other rows are on their way
  /** @param {number} first */
  const asked = (first) => ({
    text: timeline.tools.text(),
    first,
    count: TABLE_BLOCK,
    where: state.where,
    rank: state.rank,
    window: state.inWindow ? timeline.window : null,
    sort: state.sort,
  });
  /** @param {number} first */
  const load = async (first) => {
    if (coming) return grid.forget(first); // asked for once the rows are others
    const answer = await timeline.get("list", asked(first));
    if (answer && !coming) grid.put(first, answer.msg.rows);
    else grid.forget(first);
    return null;
  };
  const update = async () => {
    if (el.hidden) return;
    const text = timeline.tools.text();
    grid.wait();
    round += 1;
    const mine = round;
    coming = Boolean(text);
    if (!text) {
      words.textContent = "Type a part of a name into the search.";
      grid.show(0, []);
      return;
    }
    const answer = await timeline.get("list", asked(0));
    if (mine === round) coming = false;
    if (!answer || mine !== round) return;
    words.textContent = hitsTotals(answer.msg, text);
    fill(
      rank.select,
      h("option", { value: "", text: "all ranks" }),
      ...answer.msg.ranks.map((one) =>
        h("option", { value: String(one), text: groupName(one), selected: one === state.rank }),
      ),
    );
    rank.el.hidden = answer.msg.ranks.length < 2 && state.rank === null;
    grid.order(state.sort);
    grid.show(answer.msg.total, answer.msg.rows);
  };
  /** @param {Partial<typeof state>} values */
  const change = (values) => {
    Object.assign(state, values);
    update();
  };
  const toggle = (open = el.hidden) => {
    el.hidden = !open;
    timeline.tools.listed(open);
    if (open) update();
    timeline.resize();
  };
  return { el, toggle, update };
}
