// Explorer of collectives: latencies, sizes, bandwidth, arrivals, calls over time, and the ranks of one call.

import { fill, h, labelled, labelledButton, orPicture, status } from "../base/js/dom.mjs";
import { formatBytes, formatNs, formatNumber } from "../base/js/format.mjs";
import { plotLegend, plotPanel, plotPart, plotTable } from "../base/js/plot.mjs";
import { whenReleased } from "../base/js/press.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, setFilter, setTraits } from "../base/js/wire.mjs";
import { callBandwidth, callLatency, callSize, callSizes } from "./charts.mjs";
import { callArrivals, callRanks, callsOverTime, ranksSpread, spreadToggled } from "./ranks.mjs";

/** @type {import("../base/js/plot.mjs").TableColumn[]} */
const CALL_COLUMNS = [
  { name: "call", title: "call", format: (value) => formatNumber(value) },
  { name: "step", title: "step", number: true, format: (value) => value ?? "none" },
  { name: "layer", title: "layer", number: true, format: (value) => value ?? "none" },
  { name: "bytes", title: "size", number: true, format: (value) => formatBytes(value) },
  { name: "arrival_skew_ns", title: "skew", number: true, format: (value) => formatNs(value) },
  { name: "last_rank", title: "last rank", number: true, format: (value) => value ?? "unknown" },
  { name: "transfer_ns", title: "transfer", number: true, format: (value) => formatNs(value) },
  { name: "bus_gbps", title: "bus GB/s", number: true, format: (value) => formatNumber(value) },
];

/** @type {[import("./messages").Traits["spread"], string][]} */
const SPREADS = [
  ["late", "how late they arrive"],
  ["wait", "how long they wait"],
  ["transfer", "how long the transfer takes"],
  ["duration", "how long the kernel takes"],
];
/** Ranks that have a row each; of more there is a histogram. */
const FEW = 32;

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const root = h("div", { class: "lp-collectives" });
  el.append(root);
  const theme = followTheme(root, model, () => panels.forEach((panel) => panel.redraw()));
  const says = status(model, root);
  /** @type {import("../base/js/plot.mjs").Panel[]} */
  const panels = [];
  /** @type {import("./messages").Messages["view"]["answers"] | null} */
  let view = null;
  /** @type {import("./messages").Messages["call"]["answers"] | null} */
  let one = null; // the picked call
  /** @type {{before?: number | null, after?: number | null}} */
  let beside = {}; // the calls before and after it
  let close = false; // whether only its transfer is shown
  /** @type {Record<string, HTMLElement>} */
  let places = {}; // parts that are shown only where they have something to show

  /** @param {Partial<import("./messages").Traits>} values */
  const set = (values) => setTraits(model, values);
  /** @param {string} name */
  const colour = (name) => model.get("colours").collective[name];
  /** @param {number | null | undefined} call */
  const pick = (call) => {
    if (call === null || call === undefined) return;
    clicks = [];
    ask(model, "pick", { call, kind: model.get("kind"), phase: model.get("phase") }).catch(says.failed);
  };
  /** @param {import("./charts.mjs").Chart} options */
  const add = (options) => {
    const panel = plotPanel({ colours: () => theme.now(), ...options });
    panels.push(panel);
    return panel;
  };
  const options = { view: () => view, colour, rank: () => model.get("rank") };
  const latency = add(callLatency(options));
  const sizes = add(callSizes(options));
  const bandwidth = add(callBandwidth(options));
  const arrivals = add(
    callArrivals({ ...options, pick: (rank) => set({ rank: model.get("rank") === rank ? null : rank }) }),
  );
  const overTime = add(
    callsOverTime({
      ...options,
      rank: () => model.get("only").rank ?? null,
      window: () => model.get("window"),
      light: () => theme.name() === "light",
      pick,
      setWindow: (window) => set({ window }),
    }),
  );
  const ranks = add(callRanks({ call: () => one, close: () => close, colour }));

  /** @type {import("./messages").Messages["spread"]["answers"] | null} */
  let spread = null; // ranks by value, where there are many
  let many = false;
  /** @type {number[] | null} */
  let among = null; // the ranks of the histogram; all if null
  const everyRank = () => {
    among = null;
    loadSpread();
  };
  const onlyPicked = () => {
    const picked = model.get("picked");
    if (!picked.length) return;
    among = [...picked];
    loadSpread();
  };
  const histogram = add(
    ranksSpread({
      shown: () => spread,
      title: () => spread?.meaning ?? "",
      colour: () => colour(model.get("spread")),
      picked: () => model.get("picked"),
      toggle: (ranks) => set({ picked: spreadToggled(model.get("picked"), ranks) }),
      take: (ranks) => set({ picked: [...ranks].sort((a, b) => a - b) }),
      keys: { 0: everyRank, o: onlyPicked },
    }),
  );

  const note = h("p", { class: "lp-note" });
  const spreadNote = h("p", { class: "lp-note", role: "status" });
  const callNote = h("p", { class: "lp-note" });
  const list = h("div", {});
  const moves = h("span", { class: "lp-label" });

  const load = async () => {
    const kind = model.get("kind");
    if (kind === null) return;
    const { rank = null, window = null } = model.get("only");
    const args = { kind, phase: model.get("phase"), rank, window };
    try {
      const { msg } = await ask(model, "view", args);
      view = msg;
      drawView(msg);
      root.dataset.shown = JSON.stringify(args);
    } catch (error) {
      says.failed(error);
    }
  };
  const loadSpread = async () => {
    const kind = model.get("kind");
    if (!many || kind === null) return;
    const { window = null } = model.get("only");
    const call = model.get("spread_of") === "call" ? model.get("call") : null;
    const args = { measure: model.get("spread"), kind, phase: model.get("phase"), window, call, ranks: among };
    try {
      ({ msg: spread } = await ask(model, "spread", args));
      histogram.redraw();
      tellPicked();
      root.dataset.spread = JSON.stringify([args.measure, args.call, args.ranks?.length ?? null]);
    } catch (error) {
      says.failed(error);
    }
  };
  const tellPicked = () => {
    const [picked, parts] = [model.get("picked"), [spread?.words ?? ""]];
    if (spread?.unknown)
      parts.push(
        `Of ${formatNumber(spread.unknown)} ranks it is unknown: no call of theirs was seen on all of its ranks.`,
      );
    parts.push(
      picked.length
        ? `${formatNumber(picked.length)} ${picked.length === 1 ? "rank is" : "ranks are"} picked: .selected has their calls, .timeline() opens them alone.`
        : "Pick bars to choose their ranks.",
    );
    spreadNote.textContent = parts.filter(Boolean).join(" ");
  };
  /** @param {import("./charts.mjs").View} view */
  const drawView = (view) => {
    const { rank = null } = model.get("only");
    says.error("");
    const parts = [`${formatNumber(view.count)} kernels${rank === null ? " on all ranks" : ` on rank ${rank}`}.`];
    parts.push(
      view.matched
        ? "Wait: from a rank's own start until the last rank has started the same call; transfer: the rest."
        : "Wait and transfer are unknown: no call could be matched over all of its ranks.",
    );
    if (view.matched && view.matched < view.count)
      parts.push(`Both are known for ${formatNumber(view.matched)} of them.`);
    if (view.peak_gbps === null) parts.push(`No peak of a link is known for ${view.device ?? "this device"}.`);
    note.textContent = parts.join(" ");
    places.sizes.hidden = !view.sizes.some((row) => row.bytes !== null);
    places.bandwidth.hidden = !view.sizes.some((row) => row.bus_gbps !== null);
    places.arrivals.hidden = !many && !view.matched;
    for (const name of ["call", "calls"]) places[name].hidden = !view.matched;
    const names = view.matched ? ["duration", "wait", "transfer"] : ["duration"];
    fill(places.legend, plotLegend(names.map((name) => [name, colour(name)])));
    panels.forEach((panel) => panel.redraw());
    drawList();
  };
  const drawList = () => {
    const calls = view?.calls ?? [];
    const known = CALL_COLUMNS.filter(({ name }) => calls.some((call) => call[name] !== null));
    const table = plotTable(known, calls, {
      caption: "Calls with the greatest arrival skew",
      pick: (row) => pick(row.call),
      chosen: (row) => row.call === model.get("call"),
    });
    whenReleased(list, () => fill(list, table));
  };
  const loadCall = async () => {
    try {
      ({ msg: one } = await ask(model, "call", {
        call: model.get("call"),
        kind: model.get("kind"),
        phase: model.get("phase"),
        ranks: model.get("picked"),
      }));
    } catch (error) {
      says.failed(error);
      return;
    }
    if (!going) beside = one;
    const first = one.rows[0];
    const where = first
      ? [
          first.step === null ? "" : `step ${first.step}`,
          first.layer === null ? "" : `layer ${first.layer}`,
          callSize(first) === "unknown" ? "size unknown" : callSize(first),
        ]
          .filter(Boolean)
          .join(", ")
      : "";
    callNote.textContent = first
      ? `Call ${formatNumber(one.call)} (${first.kind}, ${where}): skew ${formatNs(first.arrival_skew_ns)}.`
      : "";
    const closer = h("button", {
      type: "button",
      text: "Transfer only",
      "aria-pressed": String(close),
      disabled: !first,
      onclick: () => {
        close = !close;
        closer.setAttribute("aria-pressed", String(close));
        ranks.redraw();
      },
    });
    fill(moves, move("◀ Call before", "before"), move("Next call ▶", "after"), closer);
    ranks.redraw();
    if (view) drawList();
    root.dataset.call = JSON.stringify(one.call);
  };
  /**
   * @param {string} text
   * @param {"before" | "after"} to
   */
  const move = (text, to) => h("button", { type: "button", text, disabled: one?.[to] === null, onclick: () => go(to) });
  /** @type {("before" | "after")[]} */
  let clicks = []; // which have not been followed yet: each counts from the call of the one before
  let going = false;
  /** @param {"before" | "after"} to */
  const go = async (to) => {
    clicks.push(to);
    if (going) return;
    going = true;
    try {
      for (let next = clicks.shift(); next; next = clicks.shift()) {
        const call = beside[next];
        if (call === null || call === undefined) continue;
        const { kind, phase } = { kind: model.get("kind"), phase: model.get("phase") };
        beside = (await ask(model, "pick", { call, kind, phase })).msg;
      }
    } catch (error) {
      says.failed(error);
    }
    going = false;
    clicks = [];
  };

  const start = async () => {
    let choices;
    try {
      choices = (await ask(model, "choices")).msg;
    } catch (error) {
      return says.failed(error);
    }
    if (!choices.kinds.length)
      return fill(root, says.el, h("p", { class: "lp-empty", text: "No collective was found in this trace." }));
    /**
     * @param {(string | number)[]} names
     */
    const optional = (names) => [["", "all"], ...names.map((name) => [name, String(name)])];
    const selects = {
      kind: labelled(
        "Collective",
        choices.kinds.map(([kind, count]) => [kind, `${kind} (${formatNumber(count)})`]),
        model.get("kind"),
        (value) => set({ kind: value }),
      ),
      phase: labelled("Phase", optional(choices.phases), model.get("phase") ?? "", (value) =>
        set({ phase: value || null }),
      ),
      rank: labelled("Rank", optional(choices.ranks), model.get("only").rank ?? "", (value) =>
        setFilter(model, "rank", value === "" ? null : Number(value)),
      ),
    };
    for (const name of /** @type {const} */ (["kind", "phase"])) {
      model.on(`change:${name}`, () => {
        selects[name].select.value = String(model.get(name) ?? "");
        load();
        loadCall();
        loadSpread();
      });
    }
    model.on("change:only", () => {
      selects.rank.select.value = String(model.get("only").rank ?? "");
      load();
      loadSpread();
    });
    model.on("change:window change:rank", () => {
      arrivals.redraw();
      overTime.redraw();
    });
    model.on("change:call", () => {
      loadCall();
      if (model.get("spread_of") === "call") loadSpread();
    });
    many = choices.ranks.length > FEW;
    const spreads = {
      spread: labelled("Show", SPREADS, model.get("spread"), (value) =>
        set({ spread: SPREADS.find(([name]) => name === value)?.[0] ?? "late" }),
      ),
      spread_of: labelled(
        "of",
        [
          ["calls", "all calls shown, the median of each rank"],
          ["call", "the picked call"],
        ],
        model.get("spread_of"),
        (value) => set({ spread_of: value === "call" ? "call" : "calls" }),
      ),
    };
    for (const name of /** @type {const} */ (["spread", "spread_of"])) {
      model.on(`change:${name}`, () => {
        spreads[name].select.value = model.get(name);
        loadSpread();
      });
    }
    model.on("change:picked", () => {
      histogram.redraw();
      tellPicked();
      loadCall();
    });
    const which = h(
      "div",
      { class: "lp-bar" },
      spreads.spread.el,
      spreads.spread_of.el,
      labelledButton("Only these ranks", "Only the picked ranks (o)", onlyPicked),
      labelledButton("All ranks", "All ranks (0)", everyRank),
      labelledButton("Pick none", "Pick no ranks", () => set({ picked: [] })),
    );
    const speeds = plotLegend(["algorithm bandwidth", "bus bandwidth"].map((name) => [name, colour(name)]));
    const bar = h("div", { class: "lp-bar" }, selects.kind.el, selects.phase.el, selects.rank.el);
    places = {
      legend: h("div", {}),
      sizes: plotPart("By message size: median, 10th to 90th percentile", sizes.el).el,
      bandwidth: plotPart("Bandwidth against the link", speeds, bandwidth.el).el,
      arrivals: many
        ? plotPart("How the ranks differ", which, histogram.el, spreadNote).el
        : plotPart("Who is late: bar the median, line the 90th percentile", arrivals.el).el,
      call: plotPart("Ranks of a call", moves, callNote, ranks.el).el,
      calls: plotPart("Calls, greatest arrival skew first", list).el,
    };
    fill(
      root,
      bar,
      says.el,
      note,
      places.legend,
      h(
        "div",
        { class: "lp-columns" },
        plotPart("Latency", latency.el).el,
        places.sizes,
        places.bandwidth,
        places.arrivals,
      ),
      plotPart("Over time", overTime.el).el,
      h("div", { class: "lp-columns" }, places.call, places.calls),
    );
    load();
    loadSpread();
    return loadCall();
  };

  fill(root, says.el);
  start();
  return () => {
    theme.stop();
    says.stop();
    panels.forEach((panel) => panel.stop());
  };
}

export default { render: orPicture(render) };
