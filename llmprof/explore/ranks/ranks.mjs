// Explorer of many ranks: a heat map of ranks over steps, the groups that come late, and what was picked.
import { fill, h, labelled, labelledButton, orPicture, status } from "../base/js/dom.mjs";
import { formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import { layerCut, layerHeat } from "../base/js/heat.mjs";
import { plotKeys, plotTable } from "../base/js/plot.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, setTraits, typed } from "../base/js/wire.mjs";

/** @typedef {import("./messages").Messages["cells"]["answers"]} Cells */

/** @type {Record<string, string>} */
const KINDS = {
  node: "node",
  dp: "data parallel",
  pp: "pipeline stage",
  tp: "tensor parallel",
  ep: "expert parallel",
};

/**
 * Words for a row of the heat map: one rank, or the first and the last of several.
 * @param {[number, number]} row
 */
function rankWords([first, last]) {
  return first === last ? `rank ${first}` : `ranks ${first} to ${last}`;
}

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const root = h("div", { class: "lp-ranks" });
  el.append(root);
  const theme = followTheme(root, model, () => heat.redraw());
  const says = status(model, root);
  const bar = h("div", { class: "lp-bar" });
  const note = h("p", { class: "lp-note" });
  const groups = h("div", {});
  const detail = h("div", { class: "lp-picked" });
  /** @type {import("../base/js/heat.mjs").Shown<Cells & import("../base/js/heat.mjs").Head> | null} */
  let shown = null; // {head, values, outliers}
  /** @type {[number, number] | null} */
  let steps = null; // first and last step that are shown; all if null
  /** @type {[number, number] | null} */
  let ranks = null; // first and last rank that are shown; all if null

  /** @param {Partial<import("./messages").Traits>} values */
  const set = (values) => setTraits(model, values);
  /**
   * @param {number} first
   * @returns {[number, number]}
   */
  const rowOf = (first) => shown?.head.rows.find((row) => row[0] === first) ?? [first, first];

  const heat = layerHeat({
    shown: () => shown,
    chosen: () => {
      const at = model.get("rank") ?? model.get("picked")[0];
      const row = shown?.head.rows.find(([first, last]) => first <= at && at <= last);
      return [model.get("step"), row ? row[0] : null];
    },
    phases: () => model.get("colours").phase,
    theme,
    pick: (step, first) =>
      ask(model, "pick", { measure: model.get("measure"), step, rank_range: rowOf(first) }).catch(says.failed),
    steps: (first, last) => {
      steps = [first, last];
      refresh();
    },
    keys: plotKeys({ zoom: () => {}, all: () => everything() }),
    of: { one: "rank", many: "ranks", row: (first) => rankWords(rowOf(first)) },
  });

  const everything = () => {
    [steps, ranks] = [null, null];
    refresh();
  };
  const onlyPicked = () => {
    const picked = model.get("picked");
    if (!picked.length) return;
    ranks = [picked[0], picked[picked.length - 1]];
    refresh();
  };

  const refresh = async () => {
    const args = { measure: model.get("measure"), phase: model.get("phase"), steps, rank_range: ranks };
    try {
      const { msg, buffers } = await ask(model, "cells", args);
      const head = { ...msg, layers: msg.rows.map(([first]) => first), diverging: false };
      shown = { head, values: typed(buffers[0], "f4"), outliers: new Uint8Array(0) };
      says.error("");
      note.textContent = notes(msg);
      heat.redraw();
      root.dataset.shown = JSON.stringify(args);
    } catch (error) {
      says.failed(error);
    }
  };

  /** @param {Cells} head */
  const notes = (head) => {
    if (!head.columns.length) return "No rank has steps of this phase here.";
    const parts = [`Colour: ${head.meaning}.`];
    if (head.scales.length > 1) parts.push("Each phase has a scale of its own.");
    if (head.banded > 1) parts.push(`A row is ${head.banded} ranks, and shows the largest of them.`);
    if (head.condensed > 1)
      parts.push(`A column is the median of ${head.condensed} steps; drag over some to see them.`);
    parts.push(...layerCut(head.scales));
    if (head.missing) parts.push(`Grey: not known (${formatNumber(head.missing)} cells).`);
    return parts.join(" ");
  };

  /**
   * @param {string[]} names
   * @param {string[][]} rows
   * @param {string} caption
   */
  const table = (names, rows, caption) =>
    plotTable(
      names.map((title, i) => ({ name: String(i), title })),
      rows,
      { caption },
    );

  /** @param {import("./messages").Messages["choices"]["answers"]} msg */
  const showGroups = (msg) => {
    if (!msg.groups.length) {
      const text =
        "Nodes and parallel groups are not known: neither the files' names, the process groups nor a configuration say them. ranks_per_node= gives nodes.";
      return fill(groups, h("p", { class: "lp-note", text }));
    }
    const rows = msg.groups.map((one) => [
      `${KINDS[one.kind] ?? one.kind} ${one.group}`,
      one.ranks,
      formatShare(one.last_share),
      formatShare(one.expected_share),
      formatNs(one.late_median_ns),
      formatNumber(one.count),
      one.evidence ?? "",
    ]);
    const names = ["group", "ranks", "arrives last", "by chance", "late (median)", "calls", "known by"];
    const said = msg.latest ? h("p", { class: "lp-said", text: msg.latest }) : null;
    return fill(groups, ...[said, table(names, rows, "Groups of ranks")].filter(Boolean));
  };

  const showPicked = async () => {
    heat.redraw();
    if (!model.get("picked").length) {
      const text = "Pick a cell to see its ranks; .timeline() opens them alone.";
      return fill(detail, h("p", { class: "lp-note", text }));
    }
    try {
      const { msg } = await ask(model, "picked");
      const rows = msg.rows.map((one) => [
        String(one.rank),
        String(one.step),
        one.phase ?? "",
        ...[one.dur_ns, one.wait_ns, one.exposed_communication_ns, one.idle_ns].map((ns) => formatNs(ns)),
      ]);
      const names = ["rank", "step", "phase", "time", "waiting", "exposed communication", "idle"];
      const more = msg.more
        ? h("p", { class: "lp-note", text: `${formatNumber(msg.more)} more rows in .selected.` })
        : null;
      fill(
        detail,
        ...[h("p", { text: msg.words }), table(names, rows, "Steps of the picked ranks"), more].filter(Boolean),
      );
      root.dataset.picked = JSON.stringify([model.get("picked"), model.get("step")]);
    } catch (error) {
      says.failed(error);
    }
    return null;
  };

  const start = async () => {
    let msg;
    try {
      ({ msg } = await ask(model, "choices"));
    } catch (error) {
      return says.failed(error);
    }
    if (!msg.ranks) {
      const text = "No steps were found: the trace has no device events in steps.";
      return fill(root, says.el, h("p", { class: "lp-empty", text }));
    }
    const selects = {
      measure: labelled(
        "Show",
        msg.measures.map((m) => [m.name, m.title]),
        model.get("measure"),
        (value) => set({ measure: /** @type {import("./messages").Traits["measure"]} */ (value) }),
      ),
      phase: labelled(
        "Phase",
        [["", "all"], ...msg.phases.map((name) => [name, name])],
        model.get("phase") ?? "",
        (value) => set({ phase: value || null }),
      ),
    };
    for (const name of /** @type {const} */ (["measure", "phase"])) {
      model.on(`change:${name}`, () => {
        selects[name].select.value = String(model.get(name) ?? "");
        if (name === "phase") steps = null;
        refresh();
      });
    }
    model.on("change:rank", () => heat.redraw());
    for (const name of ["picked", "step"]) model.on(`change:${name}`, showPicked);
    const zoom = h(
      "span",
      { class: "lp-label" },
      labelledButton("Only these ranks", "Only the picked ranks", onlyPicked),
      labelledButton("All", "All ranks and steps (0)", everything),
    );
    fill(bar, selects.measure.el, selects.phase.el, zoom);
    fill(root, bar, says.el, h("div", { class: "lp-part" }, heat.el), note, groups, detail);
    showGroups(msg);
    refresh();
    return showPicked();
  };

  fill(root, says.el);
  start();
  return () => {
    theme.stop();
    says.stop();
    heat.stop();
  };
}

export default { render: orPicture(render) };
