// Two traces side by side: bars of the phases, a table of changes, steps and kernels of the row that is picked.
import { fill, h, labelled, status } from "../base/js/dom.mjs";
import { formatNs, formatNumber } from "../base/js/format.mjs";
import { plotLegend, plotPart, plotTable } from "../base/js/plot.mjs";
import { whenReleased } from "../base/js/press.mjs";
import { TABLE_BLOCK, tableGrid } from "../base/js/table.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, Superseded, setTraits, table, wordsOf } from "../base/js/wire.mjs";
import { compareBars } from "./bars.mjs";
import { compareChange, compareColumns } from "./columns.mjs";
import { compareSteps } from "./steps.mjs";

const COMPARE_ANY = "\u0000any";
const COMPARE_ALIGNED = [
  ["stage,category", "stage and category"],
  ["layer,stage", "layer and stage"],
  ["category", "category"],
  ["stage,name", "stage and kernel"],
  ["name", "kernel"],
];

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const top = h("div");
  const legend = h("div");
  const bar = h("div", { class: "lp-bar", role: "group", "aria-label": "Filters" });
  const note = h("div", { class: "lp-bar lp-verdicts", role: "group", "aria-label": "Verdicts" });
  const place = h("div");
  const details = h("div", { class: "lp-details" });
  let panels = [];
  let bars = null;
  let grid = null;
  let largest = 0;
  let round = 0;
  const theme = followTheme(el, model, () => [bars, ...panels].forEach((panel) => panel?.redraw()));
  const state = status(model, el);
  const failed = (error) => {
    if (!(error instanceof Superseded)) state.error(wordsOf(error));
  };
  /** @param {Partial<import("./messages").Traits>} values */
  const set = (values) => setTraits(model, values);
  const search = h("input", { type: "search", placeholder: "stage, category or kernel", "aria-label": "Search rows" });
  search.value = model.get("search");
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ search: search.value }), 150);
  });
  const controls = (phases) => whenReleased(bar, () => drawControls(phases));
  const drawControls = (phases) => {
    const phase = model.get("phase") ?? COMPARE_ANY;
    const by = model.get("by").join(",");
    const tolerance = String(model.get("tolerance"));
    const aligned = COMPARE_ALIGNED.some(([key]) => key === by)
      ? COMPARE_ALIGNED
      : [...COMPARE_ALIGNED, [by, model.get("by").join(", ")]];
    /** @type {[string, string][]} */
    const shares = [
      ["0", "0 %"],
      ["0.01", "1 %"],
      ["0.02", "2 %"],
      ["0.05", "5 %"],
      ["0.1", "10 %"],
      ["0.2", "20 %"],
    ];
    if (!shares.some(([key]) => key === tolerance))
      shares.push([tolerance, `${formatNumber(100 * model.get("tolerance"))} %`]);
    const index = [...bar.querySelectorAll("select, input")].indexOf(document.activeElement);
    fill(
      bar,
      search,
      labelled("phase", [[COMPARE_ANY, "all"], ...phases.map((p) => [p, p])], phase, (text) =>
        set({ phase: text === COMPARE_ANY ? null : text }),
      ).el,
      labelled("align by", aligned, by, (text) => set({ by: text.split(","), picked: null })).el,
      labelled("same up to", shares, tolerance, (text) => set({ tolerance: Number(text) })).el,
    );
    if (index >= 0) [...bar.querySelectorAll("select, input")][index]?.focus();
  };
  const verdict = ([key, word]) => {
    // the status is read when it is clicked: a second click may come before the rows of the first one
    const onclick = () => set({ status: model.get("status") === key ? null : key });
    return { key, word, el: h("button", { type: "button", class: `lp-verdict lp-${key}`, text: word, onclick }) };
  };
  const verdicts = Object.entries(model.get("statuses")).map(verdict);
  const rowsShown = h("span", { class: "lp-muted", role: "status" });
  fill(
    note,
    verdicts.map((one) => one.el),
    rowsShown,
  );
  const press = () => {
    for (const { key, el: button } of verdicts)
      button.setAttribute("aria-pressed", String(model.get("status") === key));
  };
  const tell = (counts, shown, all) => {
    for (const { key, word, el: button } of verdicts) button.textContent = `${formatNumber(counts[key])} ${word}`;
    rowsShown.textContent = `${formatNumber(shown)} of ${formatNumber(all)} rows`;
  };
  const chosen = (row) => {
    const picked = model.get("picked");
    return picked !== null && Object.entries(picked).every(([name, value]) => row[name] === value);
  };
  /** @type {(keyof import("./messages").Shown)[]} */
  const viewed = ["by", "tolerance", "phase", "status", "search", "sort"];
  /**
   * What is asked about goes with the request: traits may reach the kernel after it.
   * @returns {import("./messages").Shown}
   */
  const view = () => /** @type {any} */ (Object.fromEntries(viewed.map((name) => [name, model.get(name)])));
  let shown = view(); // that of the rows which are on the screen
  const newGrid = () => {
    grid = tableGrid({
      label: "Changes",
      columns: compareColumns(model.get("by"), model.get("names"), model, () => largest),
      load: async (offset) => {
        try {
          const { msg } = await ask(model, "rows", { view: shown, offset, count: TABLE_BLOCK });
          grid.put(msg.offset, msg.rows);
        } catch (error) {
          grid.forget(offset);
          failed(error);
        }
      },
      sorted: (sort) => set({ sort }),
      pick: (row) => ask(model, "pick", { view: shown, row }).catch(failed),
      chosen,
    });
    fill(place, grid.el);
  };

  let drawn = "";
  const show = async () => {
    grid.wait();
    try {
      const asked = view();
      const { msg } = await ask(model, "table", { view: asked, count: TABLE_BLOCK });
      // not under a pressed pointer: its click means the rows that are on the screen
      whenReleased(grid.el, () => showTable(asked, msg));
    } catch (error) {
      if (error instanceof Superseded) return;
      grid.show(0, []);
      state.error(wordsOf(error));
    }
  };
  const showTable = (asked, msg) => {
    shown = asked;
    state.error("");
    largest = msg.largest;
    controls(msg.phases);
    tell(msg.counts, msg.total, msg.all);
    grid.show(msg.total, msg.rows);
    if (drawn !== JSON.stringify(msg.bars)) {
      drawn = JSON.stringify(msg.bars);
      bars?.stop();
      bars = compareBars(msg.bars, model.get("names"), model, theme.now, (picked) => set({ picked }));
      const stages = model.get("colours").stage;
      const there = new Set(msg.bars.flatMap((phase) => phase.stages.map((stage) => stage.stage)));
      fill(legend, plotLegend(Object.entries(stages).filter(([name]) => there.has(name))));
      fill(
        top,
        msg.bars.length ? bars.el : h("p", { class: "lp-empty", text: "No step of either trace has device events." }),
      );
      bars.redraw();
    }
  };

  const detail = async () => {
    round += 1;
    const mine = round;
    grid.paint();
    panels.forEach((panel) => panel.stop());
    panels = [];
    const picked = model.get("picked");
    if (picked === null) {
      fill(
        details,
        h("p", {
          class: "lp-empty",
          text: "Pick a row or a part of a bar to see its steps and kernels in both traces.",
        }),
      );
      return;
    }
    try {
      const { msg, buffers } = await ask(model, "details", { picked, tolerance: model.get("tolerance") });
      if (mine !== round) return;
      const names = model.get("names");
      const columns = msg.steps[0].length;
      const sides = msg.steps.map((described, i) => table(described, buffers.slice(i * columns, (i + 1) * columns)));
      const steps = compareSteps(sides, names, theme.now);
      panels.push(steps);
      const title = Object.values(picked)
        .map((value) => value ?? "other")
        .join(", ");
      const rows = [
        { name: "name", title: "kernel" },
        { name: "status", title: "verdict", format: (v) => model.get("statuses")[v] },
        { name: "a_ns", title: names[0], number: true, format: (v) => (v === null ? "" : formatNs(v)) },
        { name: "b_ns", title: names[1], number: true, format: (v) => (v === null ? "" : formatNs(v)) },
        { name: "delta_ns", title: "change", number: true, format: (_, row) => compareChange(row) },
        {
          name: "a_count",
          title: `events in ${names[0]}`,
          number: true,
          format: (v) => (v === null ? "" : formatNumber(v)),
        },
        {
          name: "b_count",
          title: `events in ${names[1]}`,
          number: true,
          format: (v) => (v === null ? "" : formatNumber(v)),
        },
      ];
      const now = theme.now();
      fill(
        details,
        h("div", { class: "lp-kernel" }, h("h3", {}, h("span", { text: title }))),
        plotPart(
          "In every step of the phase, mean of the ranks",
          plotLegend([
            [`${names[0]} (round)`, now.muted],
            [`${names[1]} (square)`, now.accent],
          ]),
          steps.el,
        ).el,
        plotPart(
          `Its kernels, time a step and rank (${formatNumber(msg.kernels.total)})`,
          plotTable(rows, msg.kernels.rows, { caption: "Kernels of the row" }),
        ).el,
      );
      steps.redraw();
    } catch (error) {
      failed(error);
    }
  };

  fill(el, top, legend, bar, note, place, state.el, details);
  // at once, not with the rows: the next click counts from what is asked for now
  const mark = () => {
    press();
    grid.order(model.get("sort"));
  };
  newGrid();
  controls([]);
  mark();
  const queue = new Set();
  const later = (work) => {
    if (!queue.size) {
      queueMicrotask(() => {
        const todo = [...queue];
        queue.clear();
        if (todo.includes(newGrid)) {
          newGrid();
          mark();
        }
        if (todo.includes(show)) show();
        if (todo.includes(detail)) detail();
      });
    }
    queue.add(work);
  };
  model.on("change:phase change:status change:search change:sort change:tolerance", () => {
    if (search.value !== model.get("search") && document.activeElement !== search) search.value = model.get("search");
    mark();
    grid.wait();
    later(show);
  });
  model.on("change:by", () => {
    later(newGrid);
    later(show);
  });
  model.on("change:picked", () => later(detail));
  show();
  detail();
  return () => {
    theme.stop();
    state.stop();
    [bars, ...panels].forEach((panel) => panel?.stop());
  };
}

export default { render };
