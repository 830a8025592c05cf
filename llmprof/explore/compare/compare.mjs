// Runs side by side: step times, what the change is made of, aligned timelines, kernels and those of the picked row.
import { fill, h, labelled, labelledButton, orPicture, searchField, status } from "../base/js/dom.mjs";
import { formatNs, formatNumber } from "../base/js/format.mjs";
import { plotLegend, plotPart, plotTable } from "../base/js/plot.mjs";
import { inHand, whenReleased } from "../base/js/press.mjs";
import { TABLE_BLOCK, tableGrid } from "../base/js/table.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, Superseded, setFilter, setTraits, table } from "../base/js/wire.mjs";
import { compareChange, compareColumns } from "./columns.mjs";
import { compareSteps } from "./steps.mjs";
import { tracksPanel } from "./tracks.mjs";
import { runsPanel, waterfallDomain, waterfallPanel } from "./waterfall.mjs";

const COMPARE_ALIGNED = [
  ["stage,name", "stage and kernel"],
  ["name", "kernel"],
  ["stage,category", "stage and category"],
  ["layer,stage", "layer and stage"],
  ["category", "category"],
];

/**
 * @typedef {import("./messages").Messages} Messages
 * @typedef {Messages["story"]["answers"]} Story
 * @typedef {import("../base/js/plot.mjs").Panel} Panel
 * @typedef {import("./waterfall.mjs").Part} Part
 */

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const runBar = h("div", { class: "lp-bar", role: "group", "aria-label": "Runs, phase and rank" });
  const words = h("div", { class: "lp-words" });
  const steps = h("div");
  const ways = h("div");
  const timelines = h("div");
  const bar = h("div", { class: "lp-bar", role: "group", "aria-label": "Filters" });
  const note = h("div", { class: "lp-bar lp-verdicts", role: "group", "aria-label": "Verdicts" });
  const place = h("div");
  const details = h("div", { class: "lp-details" });
  /** @type {Panel[]} */
  let panels = [];
  /** @type {Panel[]} */
  let pictures = []; // of the steps and the waterfalls
  /** @type {ReturnType<typeof tableGrid>} */
  let grid;
  let largest = 0;
  let round = 0;
  const theme = followTheme(el, model, () => [tracks, ...pictures, ...panels].forEach((panel) => panel?.redraw()));
  const state = status(model, el);
  const { failed } = state;
  /** @param {Partial<import("./messages").Traits>} values */
  const set = (values) => setTraits(model, values);
  const pair = () => model.get("pair").map((number) => model.get("names")[number]);
  const colours = () => model.get("colours");
  /** @param {Pick<Part, "group" | "part">} part */
  const partColour = ({ group, part }) =>
    (group === "compute" && (colours().stage[part ?? ""] ?? colours().category[part ?? ""])) ||
    (group === "idle" && colours().cause[part ?? ""]) ||
    colours().part[group];
  const rank = () => model.get("only").rank ?? null;
  const chosen_pair = () => ({ pair: model.get("pair"), phase: model.get("phase"), rank: rank() });

  // Above: how long a step takes, and what the change is made of
  /** @param {"from" | "to"} label */
  const runs = (label) =>
    labelled(label, [], "", (text) => {
      const [a, b] = model.get("pair");
      set({ pair: label === "from" ? [Number(text), b] : [a, Number(text)], picked: null });
    });
  const [fromRun, toRun] = [runs("from"), runs("to")];
  const phases = labelled("phase", [], "", (text) => set({ phase: text, place: null, zoom: null, picked: null }));
  const ofRank = labelled("rank", [], "", (text) => setFilter(model, "rank", text === "" ? null : Number(text)));
  /** @param {Story} msg */
  const showRuns = (msg) => {
    const numbered = model.get("names").map((name, number) => [String(number), name]);
    const [a, b] = model.get("pair");
    /** @param {number} other */
    const without = (other) => numbered.filter(([number]) => Number(number) !== other);
    fromRun.update(without(b), String(a));
    toRun.update(without(a), String(b));
    const named = msg.phases.map((p) => [p, p]);
    phases.update(named, msg.phase);
    const ranks = [["", "all, their mean"], ...msg.ranks.map((rank) => [String(rank), String(rank)])];
    ofRank.update(ranks, msg.ranks.some((one) => one === rank()) ? String(rank()) : "");
    const several = numbered.length > 2;
    fill(
      runBar,
      several ? fromRun.el : null,
      several ? toRun.el : null,
      msg.phases.length ? phases.el : null,
      ofRank.el,
    );
  };
  /** @param {Story} msg */
  const tellStory = (msg) => {
    const differ = msg.context.length
      ? h(
          "details",
          { class: "lp-context" },
          h("summary", { text: `What differs between the runs (${msg.context.length})` }),
          h(
            "ul",
            {},
            msg.context.map((text) => h("li", { text })),
          ),
        )
      : null;
    fill(
      words,
      msg.words.map((text, i) => h("p", { class: i ? "lp-muted" : "lp-headline", text })),
      differ,
    );
  };
  /** @param {Story} msg */
  const drawStory = (msg) => {
    pictures.forEach((panel) => panel.stop());
    pictures = [];
    const now = () => theme.now();
    const whole = msg.phase === "other" ? "step" : `step of ${msg.phase}`;
    const what = msg.phase ? `mean time of a ${whole}` : "recorded time";
    /** @param {Pick<Part, "group" | "part">} part */
    const pick = ({ group, part }) => {
      if (group === "compute" && part && msg.phase) set({ picked: { phase: msg.phase, stage: part } });
    };
    const used = new Map();
    for (const run of msg.runs)
      for (const part of run.parts) if (!used.has(part.label)) used.set(part.label, partColour(part));
    const step = runsPanel({ runs: msg.runs, colours: now, fill: partColour, pick, what });
    pictures.push(step);
    const title = msg.phase ? `A ${whole}, mean` : "The recordings";
    fill(steps, plotPart(title, plotLegend([...used]), step.el).el);
    const drawn = msg.ways.filter((one) => one.bars.length);
    const domains = drawn.map((one) => waterfallDomain(one.bars));
    const shared =
      drawn.length > 1 ? [Math.min(...domains.map((d) => d[0])), Math.max(...domains.map((d) => d[1]))] : null;
    /**
     * @param {Story["ways"][number]} waterfall
     * @param {number} i
     */
    const one = (waterfall, i) => {
      const names = [waterfall.a, waterfall.b].map((number) => model.get("names")[number]);
      const panel = waterfallPanel({
        bars: waterfall.bars,
        domain: /** @type {[number, number]} */ (shared ?? domains[i]),
        names,
        colours: now,
        pick,
        what,
      });
      pictures.push(panel);
      const near = waterfall.b === model.get("pair")[1];
      const look = h("button", {
        type: "button",
        text: near ? "Looked at below" : "Look at this pair",
        disabled: near,
        onclick: () => set({ pair: [waterfall.a, waterfall.b], picked: null }),
      });
      return plotPart(`From ${names[0]} to ${names[1]}`, msg.ways.length > 1 ? look : null, panel.el).el;
    };
    const none = msg.ways
      .filter((way) => !way.bars.length)
      .map((way) => `${model.get("names")[way.b]} shares no ${msg.phase ?? "time"} with ${model.get("names")[way.a]}.`);
    fill(
      ways,
      h("div", { class: msg.ways.length > 1 ? "lp-columns" : "" }, drawn.map(one)),
      none.map((text) => h("p", { class: "lp-empty", text })),
    );
    pictures.forEach((panel) => panel.redraw());
    el.dataset.story = JSON.stringify(chosen_pair());
  };
  // where the phase is not chosen yet the story chooses it, and all else waits for that: see later()
  let choosing = false;
  const story = async () => {
    const asked = chosen_pair();
    choosing = asked.phase === null;
    try {
      const { msg } = await ask(model, "story", asked);
      state.error("");
      showRuns(msg);
      tellStory(msg);
      drawStory(msg);
      if (choosing && JSON.stringify({ ...asked, phase: msg.phase }) === JSON.stringify(chosen_pair()))
        queue.delete(story); // it is drawn
    } catch (error) {
      if (error instanceof Superseded) return;
      fill(steps);
      fill(ways);
      failed(error);
    } finally {
      choosing = false;
      later();
    }
  };

  // Both timelines
  /** @type {(import("./tracks.mjs").Tracks & Pick<Messages["tracks"]["answers"], "place" | "places" | "layers">) | null} */
  let aligned = null;
  const tracks = tracksPanel({
    shown: () => aligned,
    colours: () => theme.now(),
    fill: (lane, label, name, now) => {
      if (lane === "layers") return Number(name.replace("layer ", "")) % 2 ? now.muted : now.rule;
      if (lane === "idle") return colours().cause[label] ?? colours().part.unexplained;
      return colours().part[label] ?? colours().stage[label] ?? colours().category[label] ?? colours().stage.other;
    },
    go: (zoom) => {
      if (aligned) aligned.window = zoom ?? aligned.whole; // at once: the next key counts from what is asked for now
      set({ zoom });
      tracks.redraw();
    },
  });
  const control = h("div", { class: "lp-bar", role: "group", "aria-label": "Alignment" });
  // counted from what is asked for, not from what is drawn: a second click may come before the picture of the first
  const step = () => model.get("place") ?? aligned?.place ?? 0;
  /** @param {number} number */
  const stepTo = (number) => aligned && set({ place: Math.max(0, Math.min(number, aligned.places - 1)), zoom: null });
  const number = h("input", {
    type: "number",
    min: "0",
    "aria-label": "step of the phase",
    onchange: () => stepTo(Number(number.value)),
  });
  const of = h("span", { class: "lp-muted" });
  const before = labelledButton("‹", "Step before", () => stepTo(step() - 1));
  const after = labelledButton("›", "Next step", () => stepTo(step() + 1));
  const choose = h("span", { class: "lp-label" }, h("span", { text: "step" }), before, number, after, of);
  const alignedAt = labelled("aligned at", [], "", (text) =>
    set({ layer: text === "" ? null : Number(text), zoom: null }),
  );
  const zooms = [
    labelledButton("+", "Zoom in (+)", () => tracks.zoom(0.5)),
    labelledButton("−", "Zoom out (-)", () => tracks.zoom(2)),
    labelledButton("◀", "Earlier (a)", () => tracks.pan(-0.5)),
    labelledButton("▶", "Later (d)", () => tracks.pan(0.5)),
    labelledButton("All", "The whole step (0)", () => set({ zoom: null, layer: null })),
  ];
  const showStep = () => {
    if (aligned && !inHand(choose) && number.value !== String(step())) number.value = String(step());
  };
  const drawControl = () => {
    if (!aligned) return;
    number.max = String(Math.max(0, aligned.places - 1));
    showStep();
    of.textContent = `of ${formatNumber(aligned.places)} in both`;
    const layer = aligned.layers.some((n) => n === model.get("layer")) ? String(model.get("layer")) : "";
    alignedAt.update([["", "the step"], ...aligned.layers.map((n) => [String(n), `layer ${n}`])], layer);
    fill(control, aligned.place === null ? null : choose, aligned.layers.length ? alignedAt.el : null, zooms);
  };
  const loadTracks = async () => {
    const args = { ...chosen_pair(), place: model.get("place"), layer: model.get("layer"), window: model.get("zoom") };
    try {
      const { msg, buffers } = await ask(model, "tracks", args);
      const sides = msg.sides.map((side) => ({
        ...side,
        rows: table(side.columns, buffers.slice(side.first, side.first + side.columns.length)),
      }));
      const layer = args.layer !== null && msg.layers.includes(args.layer) ? `layer ${args.layer}` : "the step";
      const skipped = msg.layers.length ? 0 : 1; // the lane of the layers is the first
      aligned = {
        ...msg,
        lanes: msg.lanes.slice(skipped),
        skipped,
        sides,
        origin: msg.place === null ? "the first event" : layer,
      };
      // the next key counts from what has been asked for meanwhile
      if (String(model.get("zoom")) !== String(args.window)) aligned.window = model.get("zoom") ?? msg.whole;
      drawControl();
      tracks.redraw();
      el.dataset.tracks = JSON.stringify(args);
    } catch (error) {
      failed(error);
    }
  };
  const both = plotPart("Both timelines, aligned", control, tracks.el);
  fill(timelines, both.el);

  // Below: the kernels
  const search = searchField({
    label: "Search rows",
    placeholder: "stage, category or kernel",
    text: model.get("search"),
    changed: (text) => set({ search: text }),
  });
  const alignBy = labelled("align by", [], "", (text) =>
    set({ by: /** @type {any} */ (text.split(",")), picked: null }),
  );
  const sameUpTo = labelled("same up to", [], "", (text) => set({ tolerance: Number(text) }));
  fill(bar, search.el, alignBy.el, sameUpTo.el);
  const controls = () => {
    const by = model.get("by").join(",");
    const tolerance = String(model.get("tolerance"));
    const known = COMPARE_ALIGNED.some(([key]) => key === by);
    alignBy.update(known ? COMPARE_ALIGNED : [...COMPARE_ALIGNED, [by, model.get("by").join(", ")]], by);
    const shares = [0, 0.01, 0.02, 0.05, 0.1, 0.2].map(String);
    const offered = shares.includes(tolerance) ? shares : [...shares, tolerance];
    sameUpTo.update(
      offered.map((share) => [share, `${formatNumber(100 * Number(share))} %`]),
      tolerance,
    );
  };
  /** @param {[string, string]} status */
  const verdict = ([key, word]) => {
    // the status is read when it is clicked: a second click may come before the rows of the first one
    const chosen = /** @type {import("./messages").Traits["status"]} */ (key);
    const onclick = () => set({ status: model.get("status") === key ? null : chosen });
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
  /**
   * @param {Record<string, number>} counts
   * @param {number} shown
   * @param {number} all
   */
  const tell = (counts, shown, all) => {
    for (const { key, word, el: button } of verdicts) button.textContent = `${formatNumber(counts[key])} ${word}`;
    rowsShown.textContent = `${formatNumber(shown)} of ${formatNumber(all)} rows`;
  };
  /** @param {import("./columns.mjs").Row} row */
  const chosen = (row) => {
    const picked = model.get("picked");
    return picked !== null && Object.entries(picked).every(([name, value]) => row[name] === value);
  };
  /** @type {(keyof import("./messages").Traits & keyof import("./messages").ComparisonView)[]} */
  const viewed = ["pair", "by", "tolerance", "phase", "status", "search", "sort"];
  /**
   * What is asked about goes with the request: traits may reach the kernel after it.
   * @returns {import("./messages").ComparisonView}
   */
  const view = () =>
    /** @type {any} */ ({
      ...Object.fromEntries(viewed.map((name) => [name, model.get(name)])),
      rank: rank(),
    });
  let shown = view(); // that of the rows which are on the screen
  const newGrid = () => {
    grid = tableGrid({
      label: "Changes",
      columns: compareColumns(model.get("by"), pair(), model, () => largest),
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
      failed(error);
    }
  };
  /**
   * @param {import("./messages").ComparisonView} asked
   * @param {Messages["table"]["answers"]} msg
   */
  const showTable = (asked, msg) => {
    shown = asked;
    state.error("");
    largest = msg.largest ?? 0;
    controls();
    tell(msg.counts, msg.total, msg.all);
    grid.show(msg.total, msg.rows);
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
          text: "Pick a row or a part of a bar to see its steps and kernels in both runs.",
        }),
      );
      return;
    }
    try {
      const { msg, buffers } = await ask(model, "details", {
        picked,
        tolerance: model.get("tolerance"),
        pair: model.get("pair"),
        rank: rank(),
      });
      if (mine !== round) return;
      const names = pair();
      const columns = msg.steps[0].length;
      const sides = msg.steps.map((described, i) => table(described, buffers.slice(i * columns, (i + 1) * columns)));
      const steps = compareSteps(sides, names, theme.now);
      panels.push(steps);
      const title = Object.values(picked)
        .map((value) => value ?? "other")
        .join(", ");
      /** @type {import("../base/js/plot.mjs").TableColumn[]} */
      const rows = [
        { name: "readable", title: "kernel", names: true },
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

  const kernels = plotPart("Kernels", bar, note, place);
  fill(el, runBar, state.el, words, steps, ways, timelines, kernels.el, details);
  // at once, not with the rows: the next click counts from what is asked for now
  const mark = () => {
    press();
    grid.order(model.get("sort"));
  };
  newGrid();
  controls();
  mark();
  const queue = new Set();
  const order = [newGrid, story, loadTracks, show, detail];
  let queued = false;
  /** @param {...() => void} works */
  const later = (...works) => {
    for (const work of works) queue.add(work);
    if (queued || choosing) return;
    queued = true;
    queueMicrotask(() => {
      queued = false;
      for (const work of order) {
        if (choosing || !queue.delete(work)) continue;
        work();
        if (work === newGrid) mark();
      }
    });
  };
  model.on("change:phase change:status change:search change:sort change:tolerance change:pair change:only", () => {
    search.follow(model.get("search"));
    mark();
    controls();
    grid.wait();
    later(show);
  });
  model.on("change:pair change:phase change:only", () => later(story, loadTracks));
  model.on("change:place change:layer change:zoom", () => {
    showStep();
    later(loadTracks);
  });
  model.on("change:by", () => later(newGrid, show));
  model.on("change:pair", () => later(newGrid, show, detail));
  model.on("change:only", () => later(detail));
  model.on("change:picked", () => later(detail));
  later(story, loadTracks, show, detail);
  return () => {
    theme.stop();
    state.stop();
    [tracks, ...pictures, ...panels].forEach((panel) => panel?.stop());
  };
}

export default { render: orPicture(render) };
