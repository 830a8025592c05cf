// Explorer of overlap: bars of steps, the lanes of a window, and how its time parts.
import { fill, h, labelled, labelledButton, orPicture, status } from "../base/js/dom.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import { plotLegend, plotPart, plotTable } from "../base/js/plot.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, setTraits, table } from "../base/js/wire.mjs";
import { overlapBars, overlapLongest } from "./bars.mjs";
import { overlapGutter, overlapLanes } from "./lanes.mjs";

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const root = h("div", { class: "lp-overlap" });
  el.append(root);
  const panels = new Set();
  const theme = followTheme(root, model, () => panels.forEach((panel) => panel.redraw()));
  const says = status(model, root);
  /** @type {import("./messages").Messages["choices"]["answers"] | null} */
  let choices = null;
  /** @type {import("./bars.mjs").Side[]} */
  let bars = [];
  /** @type {import("./lanes.mjs").Lanes | null} */
  let lanes = null; // {sides, buffers, summary, whole}

  /** @param {Partial<import("./messages").Traits>} values */
  const set = (values) => setTraits(model, values);
  /** The rank that is shown; -1 where there is none. */
  const rank = () => model.get("rank") ?? model.get("default_rank") ?? -1;
  /** @type {import("./bars.mjs").Fill} */
  const colourOf = (part, now) => (part === "idle" ? now.faint : model.get("colours").part[part]);

  const barsPanel = overlapBars({
    shown: () => ({
      sides: bars,
      parts: choices?.parts ?? [],
      share: model.get("bars") === "share",
      window: model.get("window"),
    }),
    colours: () => theme.now(),
    fill: colourOf,
    pick: (first, last) => ask(model, "steps", { rank: rank(), first, last }).catch(says.failed),
  });
  const lanesPanel = overlapLanes({
    shown: () => lanes,
    asked: () => model.get("window") ?? lanes?.whole ?? [0, 1],
    colours: () => theme.now(),
    fill: colourOf,
    go: (window) => set({ window }),
  });
  panels.add(barsPanel);
  panels.add(lanesPanel);

  const barsAsked = () => ({ rank: rank(), phase: model.get("phase"), against: model.get("against") });
  const loadBars = async () => {
    if (rank() < 0) return;
    const args = barsAsked();
    try {
      const { msg, buffers } = await ask(model, "bars", args);
      let at = 0;
      bars = msg.sides.map((side) => {
        const rows = table(side.columns, buffers.slice(at, at + side.buffers));
        at += side.buffers;
        return { label: side.label, rank: side.rank, rows };
      });
      says.error("");
      const whole = bars[0]?.rows.length && bars[0].rows.get("first", 0) < 0;
      longest.hidden = (bars[0]?.rows.length ?? 0) < 2;
      upper.head.textContent = whole ? "Whole recording, which has no steps" : "Steps";
      why.hidden = why.dataset.of !== JSON.stringify(args);
      barsPanel.redraw();
      root.dataset.bars = JSON.stringify(args);
    } catch (error) {
      says.failed(error);
    }
  };
  const upper = plotPart("Steps");
  const why = h("p", { class: "lp-note", "aria-live": "polite", hidden: true });
  /** @param {number} value */
  const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${formatNs(Math.abs(value))}`;
  /** Show the longest step below, and say what makes it longer than the others. */
  const showLongest = async () => {
    const found = bars.length ? overlapLongest(bars[0].rows, choices?.parts ?? []) : null;
    why.hidden = false;
    why.dataset.of = JSON.stringify(barsAsked());
    if (!found) {
      why.textContent = "There is no other step to compare with.";
      return;
    }
    const { first, last, phase, total, alike, more, parts } = found;
    const step = first === last ? `Step ${first}` : `Steps ${first} to ${last} (means)`;
    const others = alike
      ? `the median of the other ${phase ?? ""} steps`.replace("  ", " ")
      : "the median of all other steps";
    const by = parts.slice(0, 3).map((one) => `${one.part} ${signed(one.more)}`);
    why.textContent =
      `${step}${phase ? ` (${phase})` : ""}: ${formatNs(total)}, the longest. That is ${formatNs(Math.abs(more))} ` +
      `${more < 0 ? "less" : "more"} than ${others}${by.length ? `: ${by.join(", ")}` : ""}.`;
    try {
      await ask(model, "steps", { rank: rank(), first, last });
    } catch (error) {
      says.failed(error);
    }
  };
  const longest = labelledButton("Longest step", "Show the longest step, and what makes it longer", showLongest);
  longest.hidden = true; // until there are steps to compare
  const sums = h("div", {});
  let width = 0; // for which the lanes were asked; a hidden tab has none
  const loadLanes = async () => {
    if (rank() < 0) return;
    width = root.clientWidth;
    const args = { rank: rank(), window: model.get("window"), against: model.get("against"), step: model.get("step") };
    try {
      const pixels = Math.max(100, Math.floor(width - overlapGutter(width) - 14));
      const { msg, buffers } = await ask(model, "lanes", { ...args, pixels });
      lanes = { ...msg, buffers, window: msg.sides[0]?.window ?? [0, 1] };
      says.error("");
      lanesPanel.redraw();
      drawSums();
      root.dataset.shown = JSON.stringify(args);
    } catch (error) {
      says.failed(error);
    }
  };
  const drawSums = () => {
    if (!lanes?.sides.length) return fill(sums);
    /** @param {number | null} value */
    const ns = (value) => formatNs(value);
    /** @type {import("../base/js/plot.mjs").TableColumn[]} */
    const columns = [
      { name: "part", title: "part of the time" },
      { name: "a_ns", title: lanes.sides.length > 1 ? "A" : "time", number: true, format: ns },
      { name: "a_share", title: lanes.sides.length > 1 ? "A, share" : "share", number: true, format: formatShare },
    ];
    if (lanes.sides.length > 1) {
      columns.push(
        { name: "b_ns", title: "B", number: true, format: ns },
        { name: "b_share", title: "B, share", number: true, format: formatShare },
        { name: "delta_ns", title: "B − A", number: true, format: signed },
      );
    }
    const length = formatNs(lanes.window[1] - lanes.window[0]);
    const events = lanes.sides.map((side) =>
      formatNumber(side.lanes.filter((lane) => lane.stream).reduce((sum, lane) => sum + lane.count, 0)),
    );
    const called = choices?.events ?? "events";
    const where = lanes.chosen
      ? `In the window of ${length}`
      : `From the first to the last event of the rank (${length})`;
    const rows = lanes.summary.filter(
      ({ part, a_ns, b_ns }) => part === "total" || choices?.parts.includes(part) || a_ns || b_ns,
    );
    const exposed = rows.filter(({ part }) => part.startsWith("exposed") && part !== "exposed copy");
    /** @param {string} side */
    const of = (side) => formatNs(exposed.reduce((sum, row) => sum + (row[side] ?? 0), 0));
    const parted = exposed.length
      ? ` Exposed communication is ${lanes.sides.length > 1 ? `${of("a_ns")} (A) and ${of("b_ns")} (B)` : of("a_ns")}; waiting is for the last rank of a collective.`
      : "";
    const shifted = lanes.sides[1]?.of ? " B is aligned at the start of the same step." : "";
    return fill(
      sums,
      h("p", {
        class: "lp-note",
        text: `${where}, ${events.join(" and ")} ${called}. Communication is hidden while compute runs beside it.${parted}${shifted}`,
      }),
      plotTable(columns, rows, { caption: "Parts of the time of the window" }),
    );
  };

  const start = async () => {
    try {
      choices = (await ask(model, "choices")).msg;
    } catch (error) {
      return says.failed(error);
    }
    const known = choices;
    if (!known.ranks.length)
      return fill(root, says.el, h("p", { class: "lp-empty", text: "Nothing ran on a device in this trace." }));
    const sides = () => [
      ["", "nothing"],
      ...known.ranks.filter((r) => r !== rank()).map((r) => [`rank:${r}`, `rank ${r}`]),
      ...known.others.map((r) => [`other:${r}`, `other trace, rank ${r}`]),
    ];
    const selects = {
      rank: labelled(
        "Rank",
        known.ranks.map((r) => [r, String(r)]),
        rank(),
        (value) => set({ rank: Number(value) }),
      ),
      against: labelled("Compare with", sides(), model.get("against"), (value) => set({ against: value })),
      phase: labelled("Phase", [["", "all"], ...known.phases.map((p) => [p, p])], model.get("phase") ?? "", (value) =>
        set({ phase: value || null }),
      ),
      bars: labelled(
        "Bars",
        [
          ["time", "time"],
          ["share", "share"],
        ],
        model.get("bars"),
        (value) => set({ bars: value === "share" ? "share" : "time" }),
      ),
    };
    /**
     * @param {"rank" | "against" | "phase" | "bars" | "window"} name
     * @param {...() => void} then
     */
    const changed = (name, ...then) =>
      model.on(`change:${name}`, () => {
        if (name !== "window") selects[name].select.value = String((name === "rank" ? rank() : model.get(name)) ?? "");
        then.forEach((one) => one());
      });
    const offer = () => selects.against.update(sides(), model.get("against"));
    changed("rank", offer, loadBars, loadLanes);
    changed("against", loadBars, loadLanes);
    changed("phase", loadBars);
    changed("bars", () => barsPanel.redraw());
    changed("window", () => barsPanel.redraw(), loadLanes);
    const zooms = h(
      "span",
      { class: "lp-label" },
      labelledButton("+", "Zoom in (+)", () => lanesPanel.zoom(0.5)),
      labelledButton("−", "Zoom out (-)", () => lanesPanel.zoom(2)),
      labelledButton("◀", "Earlier (a)", () => lanesPanel.pan(-0.5)),
      labelledButton("▶", "Later (d)", () => lanesPanel.pan(0.5)),
      labelledButton("Whole recording", "Whole recording (0)", () => set({ window: null })),
    );
    const legend = h("div", {});
    const key = () => fill(legend, plotLegend(known.parts.map((part) => [part, colourOf(part, theme.now())])));
    key();
    model.on("change:theme", key);
    const bar = h(
      "div",
      { class: "lp-bar" },
      selects.rank.el,
      selects.against.el,
      selects.phase.el,
      selects.bars.el,
      longest,
    );
    fill(upper.el, upper.head, legend, barsPanel.el, why);
    const lower = plotPart("Window", zooms, lanesPanel.el);
    fill(root, bar, says.el, upper.el, lower.el, h("div", { class: "lp-part" }, sums));
    loadBars();
    return loadLanes();
  };
  const resized = new ResizeObserver(() => {
    if (lanes && root.clientWidth && Math.abs(root.clientWidth - width) > 40) loadLanes();
  });
  resized.observe(root);

  fill(root, says.el);
  start();
  return () => {
    theme.stop();
    says.stop();
    resized.disconnect();
    panels.forEach((panel) => panel.stop());
  };
}

export default { render: orPicture(render) };
