// Explorer of layers: a heat map over steps, and what is inside a cell.
import { fill, h, labelled, labelledButton, orPicture, status } from "../base/js/dom.mjs";
import { formatNumber } from "../base/js/format.mjs";
import { layerCut, layerHeat, layerNext } from "../base/js/heat.mjs";
import { plotKeys } from "../base/js/plot.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, setFilter, setTraits, typed } from "../base/js/wire.mjs";
import { cellParts } from "./cell.mjs";

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const root = h("div", { class: "lp-layers" });
  el.append(root);
  const theme = followTheme(root, model, () => [heat, stages?.panel].forEach((panel) => panel?.redraw()));
  const says = status(model, root);
  const bar = h("div", { class: "lp-bar" });
  const note = h("p", { class: "lp-note" });
  const detail = h("div", {});
  /** @type {import("../base/js/heat.mjs").Shown<import("./messages").Messages["cells"]["answers"]> | null} */
  let shown = null; // {head, values, outliers}
  /** @type {[number, number] | null} */
  let range = null; // first and last step that are shown; all if null
  /** @type {(number | null)[] | null} */
  let coming = null; // step and layer that were picked and are not known to Python yet
  /** @type {[number, number] | null} */
  let whole = null; // first and last step of all, once they are known

  const chosenRank = () => model.get("rank") ?? model.get("default_rank");
  const onlyStage = () => model.get("only").stage ?? null;
  /** @param {Partial<import("./messages").Traits>} values */
  const set = (values) => setTraits(model, values);

  /** @param {number} layer */
  const kindOf = (layer) => {
    const kind = shown?.head.kinds[shown.head.layers.indexOf(layer)];
    return kind ? ` (${kind})` : "";
  };

  const heat = layerHeat({
    shown: () => shown,
    chosen: () => [model.get("step"), model.get("layer")],
    phases: () => model.get("colours").phase,
    theme,
    pick: (step, layer) => pick(step, layer),
    steps: (first, last) => zoomTo([first, last]),
    of: { one: "layer", many: "layers", row: (layer) => `layer ${layer}${kindOf(layer)}` },
    keys: {
      ...plotKeys({ zoom: (factor) => zoomBy(factor), all: () => zoomTo(null) }),
      n: () => nextOutlier(),
    },
  });

  /**
   * @param {number} step
   * @param {number} layer
   */
  const pick = async (step, layer) => {
    if (!shown) return;
    const mine = [step, layer];
    coming = mine;
    try {
      await ask(model, "pick", { rank: shown.head.rank, step, layer });
    } catch (error) {
      says.failed(error);
    }
    if (coming === mine) coming = null;
  };
  const nextOutlier = () => {
    if (!shown) return;
    const { columns, layers } = shown.head;
    const [step, layer] = coming ?? [model.get("step"), model.get("layer")];
    const column = step === null ? -1 : columns.findIndex(([first, last]) => first <= step && step <= last);
    const row = layer === null ? -1 : layers.indexOf(layer);
    const at = layerNext(shown.outliers, column < 0 ? -1 : column * layers.length + row);
    if (at >= 0) pick(columns[Math.floor(at / layers.length)][0], layers[at % layers.length]);
  };
  /** @param {[number, number] | null} next */
  const zoomTo = (next) => {
    range = next;
    refresh();
  };
  /** @param {number} factor */
  const zoomBy = (factor) => {
    if (!whole) return;
    // counted from what is asked for: the picture of the key before may be on its way
    const [first, last] = range ?? whole;
    const chosen = model.get("step");
    const middle = chosen !== null && first <= chosen && chosen <= last ? chosen : (first + last) / 2;
    const half = (Math.max(1, last - first) * factor) / 2;
    const [low, high] = [Math.max(whole[0], Math.floor(middle - half)), Math.min(whole[1], Math.ceil(middle + half))];
    zoomTo(low <= whole[0] && high >= whole[1] ? null : [low, high]);
  };

  const refresh = async () => {
    const rank = chosenRank();
    if (rank === null) return;
    const args = {
      measure: model.get("measure"),
      rank,
      stage: onlyStage(),
      phase: model.get("phase"),
      steps: range,
    };
    try {
      const { msg, buffers } = await ask(model, "cells", args);
      shown = { head: msg, values: typed(buffers[0], "f4"), outliers: typed(buffers[1], "u1") };
      const { columns } = msg;
      if (args.steps === null) whole = columns.length ? [columns[0][0], columns[columns.length - 1][1]] : null;
      says.error("");
      note.textContent = notes(msg);
      heat.redraw();
      root.dataset.shown = JSON.stringify(args);
    } catch (error) {
      says.failed(error);
    }
  };

  /** @param {import("./messages").Messages["cells"]["answers"]} head */
  const notes = (head) => {
    if (!head.columns.length) return "No step of this rank has layers with this stage and phase.";
    const parts = [`Colour: ${head.meaning}.`];
    if (head.scales.length > 1) parts.push("Each phase has a scale of its own.");
    if (head.outliers)
      parts.push(
        `Dots: ${formatNumber(head.outliers)} ${head.outliers === 1 ? "outlier" : "outliers"}, off the median layer of their step and kind by over 10 % and 4 robust standard deviations.`,
      );
    parts.push(...layerCut(head.scales));
    if (head.missing) parts.push(`Grey: not captured (${formatNumber(head.missing)} cells).`);
    if (head.condensed > 1)
      parts.push(`A column is the median of ${head.condensed} steps; drag over some to see them alone.`);
    return parts.join(" ");
  };

  const inside = async () => {
    const [step, layer, rank] = [model.get("step"), model.get("layer"), chosenRank()];
    if (step === null || layer === null || rank === null) {
      return fill(detail, h("p", { class: "lp-note", text: "Pick a cell to see its stages, kernels and operators." }));
    }
    try {
      const { msg } = await ask(model, "cell", { rank, step, layer, stage: model.get("stage") ?? onlyStage() });
      drawDetail(msg);
    } catch (error) {
      says.failed(error);
    }
    return null;
  };

  /** @type {import("./cell.mjs").Kept | null} */
  let stages = null; // of the cell that is shown
  /** @type {string | null} why the slack is unknown; null until it was looked for, empty where it is known */
  let slackless = null;
  let slackAsked = false;
  /** Slack takes longer than the rest: a cell is shown before, and again when it is known. */
  const findSlack = async () => {
    if (slackAsked) return;
    slackAsked = true;
    try {
      slackless = (await ask(model, "slack")).msg.why;
      await inside();
    } catch (error) {
      says.failed(error);
    }
  };
  /** @param {import("./messages").Messages["cell"]["answers"]} msg */
  const drawDetail = (msg) => {
    const options = {
      slackless,
      fills: model.get("colours").stage,
      chosen: () => model.get("stage"),
      colours: () => theme.now(),
      pick: (/** @type {string} */ stage) => set({ stage: model.get("stage") === stage ? null : stage }),
    };
    const { parts, kept } = cellParts(msg, options, stages);
    if (stages && kept?.panel !== stages.panel) stages.panel.stop();
    stages = kept;
    fill(detail, parts);
    findSlack();
    root.dataset.cell = JSON.stringify([msg.rank, msg.step, msg.layer, msg.stage]);
  };

  const start = async () => {
    let msg;
    try {
      ({ msg } = await ask(model, "choices"));
    } catch (error) {
      return says.failed(error);
    }
    if (!msg.ranks.length) {
      return fill(
        root,
        says.el,
        h("p", {
          class: "lp-empty",
          text: "No layers were found: the trace has no device events in steps, it is of training, or its attention kernels are not recognised.",
        }),
      );
    }
    /**
     * @param {string[]} names
     * @param {string} text
     */
    const all = (names, text) => [["", text], ...names.map((name) => [name, name])];
    const selects = {
      measure: labelled(
        "Show",
        msg.measures.map((m) => [m.name, m.title]),
        model.get("measure"),
        (value) => set({ measure: /** @type {import("./messages").Traits["measure"]} */ (value) }),
      ),
      rank: labelled(
        "Rank",
        msg.ranks.map((rank) => [rank, String(rank)]),
        chosenRank(),
        (value) => set({ rank: Number(value) }),
      ),
      phase: labelled("Phase", all(msg.phases, "all"), model.get("phase") ?? "", (value) =>
        set({ phase: value || null }),
      ),
      stage: labelled("Stage", all(msg.stages, "whole layer"), onlyStage() ?? "", (value) =>
        setFilter(model, "stage", value || null),
      ),
    };
    for (const name of /** @type {const} */ (["measure", "rank", "phase"])) {
      model.on(`change:${name}`, () => {
        selects[name].select.value = String((name === "rank" ? chosenRank() : model.get(name)) ?? "");
        if (name === "phase") range = null;
        refresh();
        if (name === "rank") inside();
      });
    }
    model.on("change:stage", inside);
    model.on("change:only", () => {
      selects.stage.select.value = onlyStage() ?? "";
      refresh();
      inside();
    });
    for (const name of ["step", "layer"]) {
      model.on(`change:${name}`, () => {
        heat.redraw();
        inside();
      });
    }
    const zoom = h(
      "span",
      { class: "lp-label" },
      labelledButton("+", "Fewer steps (+)", () => zoomBy(0.5)),
      labelledButton("−", "More steps (-)", () => zoomBy(2)),
      labelledButton("All steps", "All steps (0)", () => zoomTo(null)),
      labelledButton("Next outlier", "Next outlier (n)", nextOutlier),
    );
    fill(bar, selects.measure.el, selects.rank.el, selects.phase.el, selects.stage.el, zoom);
    fill(root, bar, says.el, h("div", { class: "lp-part" }, heat.el), note, detail);
    refresh();
    return inside();
  };

  fill(root, says.el);
  start();
  return () => {
    theme.stop();
    says.stop();
    heat.stop();
    stages?.panel.stop();
  };
}

export default { render: orPicture(render) };
