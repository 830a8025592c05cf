// The explorer of kernels: a table of all, and the details of the one that is picked.
import { copyButton, fill, h, labelled, menuOf, orPicture, searchField, status } from "../base/js/dom.mjs";
import { formatNs, formatNumber } from "../base/js/format.mjs";
import { plotPart } from "../base/js/plot.mjs";
import { whenReleased } from "../base/js/press.mjs";
import { TABLE_BLOCK, tableGrid } from "../base/js/table.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, Superseded, setFilter, setTraits } from "../base/js/wire.mjs";
import { kernelColumns, kernelRows } from "./columns.mjs";
import { detailGrids, detailLaunches, detailShapes } from "./details.mjs";
import { metricView } from "./metrics.mjs";

/** @type {("rank" | "step" | "phase" | "layer" | "stage" | "stream" | "category")[]} */
const KERNEL_FILTERS = ["rank", "step", "phase", "layer", "stage", "stream", "category"];
const KERNEL_NUMBERS = ["rank", "step", "layer", "stream"];
/** @type {("rank" | "step" | "layer" | "stage")[]} */
const KERNEL_PICKS = ["rank", "step", "layer", "stage"];
const KERNEL_SPLITS = ["phase", "stage", "layer", "stream", "rank"];
const KERNEL_TEXT = 2000; // characters of a name that a row carries
const KERNEL_ANY = "\u0000any";

/** @typedef {import("./messages").Messages["table"]["answers"]} Table */

const KEPT = "llmprof.kernels.hidden_columns";

/** Columns that were hidden before, in any widget of this browser; none where the page may keep nothing. */
function keptColumns() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(kept) ? kept.filter((one) => typeof one === "string") : [];
  } catch {
    return [];
  }
}

/** @param {string[]} names */
function keepColumns(names) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(names));
  } catch {
    // a page that may keep nothing: the choice holds in this widget
  }
}

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const note = h("div", { class: "lp-note", role: "status" });
  const filters = h("div", { class: "lp-bar", role: "group", "aria-label": "Filters" });
  const details = h("div", { class: "lp-details" });
  /** @type {import("../base/js/plot.mjs").Panel[]} */
  let panels = [];
  let round = 0;
  let fresh = true;
  /** @type {string | null} */
  let written = null; // the program, where it was typed here
  /** @type {string | null} why the slack is unknown; null until it was looked for, empty where it is known */
  let slackless = null;
  let slackAsked = false;
  const looked = { text: "" }; // for which metric was searched
  const theme = followTheme(el, model, () => panels.forEach((panel) => panel.redraw()));
  const state = status(model, el);
  const { failed } = state;
  /** @param {Partial<import("./messages").Traits>} values */
  const set = (values) => setTraits(model, values);
  /** @type {(keyof import("./messages").Traits & keyof import("./messages").KernelsView)[]} */
  const own = ["phase", "stream", "category", "by", "search", "sort"];
  /**
   * What is asked about goes with the request: traits may reach the kernel after it.
   * @returns {import("./messages").KernelsView}
   */
  const view = () =>
    /** @type {any} */ ({
      ...Object.fromEntries(own.map((name) => [name, model.get(name)])),
      ...model.get("only"),
    });
  let shown = view(); // that of the rows which are on the screen
  const picked = () => ({ kernel: model.get("kernel") ?? "", of: model.get("of") });
  const grid = tableGrid({
    label: "Kernels",
    columns: kernelColumns(model.get("colours"), model.get("has_metrics"), () => slackless),
    load: async (offset) => {
      const of = shown;
      try {
        const { msg, buffers } = await ask(model, "rows", { view: of, offset, count: TABLE_BLOCK });
        if (of === shown) grid.put(msg.offset, kernelRows(msg, buffers)); // other rows may be shown by now
      } catch (error) {
        grid.forget(offset);
        failed(error);
      }
    },
    sorted: (sort) => set({ sort }),
    pick: (row) => ask(model, "pick", { view: shown, row }).catch(failed),
    chosen: (row) =>
      row.name === model.get("kernel")?.slice(0, KERNEL_TEXT) &&
      Object.entries(model.get("of")).every(([name, value]) => row[name] === value),
  });

  const named = kernelColumns(model.get("colours"), model.get("has_metrics")).slice(1);
  const picker = h("fieldset", { class: "lp-picker" });
  const menu = menuOf("Columns", picker);
  const hidden = () => model.get("hidden_columns");
  /** @param {import("../base/js/table.mjs").Column} column */
  const columnBox = ({ name, title }) => {
    const box = h("input", {
      type: "checkbox",
      value: name,
      onchange: () => {
        const rest = hidden().filter((one) => one !== name);
        const now = box.checked ? rest : [...rest, name];
        set({ hidden_columns: now });
        keepColumns(now);
      },
    });
    box.checked = !hidden().includes(name);
    return h("label", { class: "lp-label" }, box, h("span", { text: title }));
  };
  const columnBoxes = () =>
    fill(picker, menu.open ? [h("legend", { text: "Columns" }), named.map(columnBox)].flat() : []);
  menu.addEventListener("toggle", columnBoxes);
  const chooseColumns = () => {
    grid.choose((name) => !hidden().includes(name));
    for (const box of picker.querySelectorAll("input")) box.checked = !hidden().includes(box.value);
  };

  const search = searchField({
    label: "Search kernels",
    placeholder: "part of a name",
    text: model.get("search"),
    changed: (text) => set({ search: text }),
  });
  /** @typedef {typeof KERNEL_FILTERS[number]} Filter */
  /** @param {Filter} name */
  const isOwn = (name) => own.some((one) => one === name);
  /** @param {Filter} name */
  const held = (name) => (isOwn(name) ? model.get(name) : (model.get("only")[name] ?? null));
  /**
   * @param {Filter} name
   * @param {string | number | null} value
   */
  const choose = (name, value) => (isOwn(name) ? set({ [name]: value }) : setFilter(model, name, value));
  const narrow = Object.fromEntries(
    KERNEL_FILTERS.map((name) => {
      /** @param {string} text */
      const chosen = (text) => (text === KERNEL_ANY ? null : KERNEL_NUMBERS.includes(name) ? Number(text) : text);
      return [name, labelled(name, [], "", (text) => choose(name, chosen(text)))];
    }),
  );
  const split = labelled("split by", [], "", (text) =>
    set({ by: /** @type {any} */ (text ? text.split(",") : []), of: {} }),
  );
  /** @param {Table["options"]} options */
  const fillFilters = (options) => {
    const offered = KERNEL_FILTERS.filter((name) => (options[name] ?? []).length > 1 || held(name) !== null);
    for (const name of offered) {
      const now = held(name);
      const known = [...(options[name] ?? [])];
      if (now !== null && !known.includes(now)) known.push(now);
      const choices = [[KERNEL_ANY, "all"], ...known.map((value) => [String(value), String(value)])];
      narrow[name].update(choices, now === null ? KERNEL_ANY : String(now));
    }
    const by = model.get("by");
    const splits = [
      ["", "nothing"],
      ...KERNEL_SPLITS.map((name) => [name, name]),
      ["phase,stage", "phase and stage"],
      ["stage,layer", "stage and layer"],
    ];
    if (!splits.some(([key]) => key === by.join(","))) splits.push([by.join(","), by.join(", ")]);
    split.update(splits, by.join(","));
    const made = offered.map((name) => narrow[name].el);
    fill(filters, search.el, made, split.el, menu);
  };

  const show = async () => {
    grid.wait();
    try {
      const asked = view();
      const { msg, buffers } = await ask(model, "table", {
        view: asked,
        count: TABLE_BLOCK,
        kernel: model.get("kernel"),
      });
      // not under a pressed pointer: its click means the rows that are on the screen
      whenReleased(grid.el, () => showTable(asked, msg, buffers));
    } catch (error) {
      if (error instanceof Superseded) return;
      grid.show(0, []);
      note.textContent = "";
      failed(error);
    }
  };
  /** Slack takes longer than the rest: the rows are shown before, and again when it is known. */
  const findSlack = async () => {
    if (slackAsked) return;
    slackAsked = true;
    try {
      slackless = (await ask(model, "slack")).msg.why;
      if (slackless) grid.paint();
      else if (shown.sort?.endsWith("slack_ns")) await show();
      else grid.again();
    } catch (error) {
      failed(error);
    }
  };
  /**
   * @param {import("./messages").KernelsView} asked
   * @param {Table} msg
   * @param {DataView[]} buffers
   */
  const showTable = (asked, msg, buffers) => {
    shown = asked;
    state.error("");
    fillFilters(msg.options);
    grid.show(msg.total, kernelRows(msg, buffers));
    if (fresh && typeof msg.at === "number") grid.reveal(msg.at);
    fresh = false;
    if (msg.total) findSlack();
    const missed = msg.unmatched
      ? ` ${formatNumber(msg.unmatched)} profiled launches are no kernel of this trace.`
      : "";
    note.textContent = msg.total
      ? `${formatNumber(msg.total)} rows, ${formatNumber(msg.launches)} launches, ${formatNs(msg.total_ns)} in total.${missed}`
      : "No kernel fits.";
  };

  const command = () => {
    const program = h("input", { type: "text", class: "lp-wide", "aria-label": "Program and its arguments" });
    program.value = written ?? model.get("program");
    program.addEventListener("input", () => (written = program.value));
    const out = h("pre", { class: "lp-code", tabindex: "0", hidden: true, role: "group", "aria-label": "ncu command" });
    const copy = copyButton("Copy the ncu command", () => out.textContent);
    copy.hidden = true;
    const make = h("button", {
      type: "button",
      text: "Write the ncu command",
      onclick: async () => {
        try {
          const { msg } = await ask(model, "command", { program: program.value, view: view(), ...picked() });
          out.textContent = msg.command;
          out.hidden = copy.hidden = false;
          state.error("");
        } catch (error) {
          out.hidden = copy.hidden = true;
          failed(error);
        }
      },
    });
    const said =
      "Profile one launch of it with Nsight Compute: the command counts launches as they are on this timeline.";
    return plotPart(
      "No hardware metrics",
      h("p", { class: "lp-note", text: said }),
      h("div", { class: "lp-bar" }, program, make, copy),
      out,
    ).el;
  };

  /**
   * @param {HTMLElement} place
   * @param {number} mine
   * @param {number | null} [kernelId]
   * @returns {Promise<HTMLElement>}
   */
  const hardware = async (place, mine, kernelId = null) => {
    if (!model.get("has_metrics")) return fill(place, command());
    const { msg } = await ask(model, "metrics", { kernel: picked().kernel, kernel_id: kernelId });
    if (mine !== round) return place;
    if (!msg.launches.length) return fill(place, command());
    const view = metricView(msg, {
      colours: theme.now,
      looked,
      failed,
      request: (what, args) => ask(model, what, args),
      choose: (id) => hardware(place, mine, id).catch(failed),
    });
    panels.push(...view.panels);
    return fill(place, plotPart("Hardware metrics", view.el).el);
  };

  /** @type {number | null} */
  let operator = null; // of the picked launch, in the roofline of operators
  const findOperator = async () => {
    const event = model.get("event");
    operator = event === null ? null : ((await ask(model, "operator", { event })).msg.row ?? null);
  };
  const detail = async () => {
    round += 1;
    const mine = round;
    grid.paint();
    if (!fresh && model.get("kernel") !== null && !grid.el.querySelector('[aria-selected="true"]')) {
      fresh = true; // it was picked elsewhere: its row is looked for
      show();
    }
    panels.forEach((panel) => panel.stop());
    panels = [];
    if (model.get("kernel") === null) {
      fill(
        details,
        h("p", { class: "lp-empty", text: "Pick a kernel to see its launches, shapes and hardware metrics." }),
      );
      return;
    }
    try {
      const { msg, buffers } = await ask(model, "kernel", { view: view(), ...picked() });
      if (mine !== round) return;
      const colours = model.get("colours").category;
      const square = h("span", { class: "lp-square" });
      const colour = colours[msg.category ?? "other"] ?? colours.other;
      square.style.background = colour;
      const of = Object.entries(model.get("of")).map(([name, value]) => `${name} ${value}`);
      const facts = [
        ["launches", formatNumber(msg.count)],
        ["total", formatNs(msg.total_ns)],
        ["mean", formatNs(msg.mean_ns)],
        ["least", formatNs(msg.least_ns)],
        ["most", formatNs(msg.most_ns)],
      ];
      const list = h(
        "dl",
        { class: "lp-facts" },
        facts.map(([name, said]) => h("div", {}, h("dt", { text: name }), h("dd", { text: said }))),
      );
      const launches = detailLaunches(msg, buffers, {
        colours: theme.now,
        colour: () => colour,
        chosen: () => model.get("event"),
        alike: () =>
          KERNEL_PICKS.map((name) => ({ name, value: model.get(name) })).filter(({ value }) => value !== null),
        pick: (event) => ask(model, "launch", { event }).catch(failed),
      });
      panels.push(launches);
      const shapes = h("div", {}, plotPart("Shapes", h("p", { class: "lp-note", text: "…" })).el);
      const place = h("div");
      fill(
        details,
        h(
          "div",
          { class: "lp-kernel" },
          h("h3", {}, square, h("span", { text: [msg.label, ...of].join(", ") })),
          msg.name === msg.label ? null : h("code", { text: msg.name, tabindex: "0", "aria-label": "Whole name" }),
          list,
        ),
        plotPart("Launches over time", launches.el).el,
        h("div", { class: "lp-columns" }, shapes, detailGrids(msg.grids)),
        place,
      );
      launches.redraw();
      hardware(place, mine).catch(failed);
      const found = await ask(model, "shapes", {
        kernel: picked().kernel,
        rank: model.get("of").rank ?? held("rank"),
      });
      if (mine !== round) return;
      const part = detailShapes(found.msg, {
        colours: theme.now,
        kernel: picked().kernel,
        row: () => operator,
        pick: (kernel, event) => {
          set({ kernel, of: {} });
          ask(model, "launch", { event }).catch(failed);
        },
      });
      panels.push(...part.panels);
      fill(shapes, part.el);
      if (part.panels.length) await findOperator();
      part.panels.forEach((panel) => panel.redraw());
    } catch (error) {
      failed(error);
    }
  };

  fill(el, filters, note, grid.el, state.el, details);
  fillFilters({});
  model.on("change:hidden_columns", chooseColumns);
  const before = keptColumns();
  if (!hidden().length && before.length) set({ hidden_columns: before });
  chooseColumns();
  const order = () => grid.order(model.get("sort")); // at once: a second click on a head turns what the first asked for
  order();
  model.on("change:sort", order);
  const narrowing = [...own, "only"].map((name) => `change:${name}`).join(" ");
  let queued = false;
  const later = () => {
    grid.wait();
    if (queued) return;
    queued = true;
    queueMicrotask(() => {
      queued = false;
      search.follow(model.get("search"));
      show();
      if (model.get("kernel") !== null) detail();
    });
  };
  model.on(narrowing, later);
  model.on(KERNEL_PICKS.map((name) => `change:${name}`).join(" "), () => panels[0]?.redraw());
  let another = false;
  model.on("change:kernel change:of", () => {
    if (another) return;
    another = true;
    queueMicrotask(() => {
      another = false;
      detail();
    });
  });
  model.on("change:event", async () => {
    panels.forEach((panel) => panel.redraw());
    if (panels.length < 2) return; // launches alone
    await findOperator().catch(failed);
    panels.forEach((panel) => panel.redraw());
  });
  show();
  detail();
  return () => {
    theme.stop();
    state.stop();
    panels.forEach((panel) => panel.stop());
  };
}

export default { render: orPicture(render) };
