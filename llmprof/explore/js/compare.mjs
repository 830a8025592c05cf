// Two traces side by side: bars of the phases, a table of changes, steps and kernels of the row that is picked.
import { FONT, fitText, textWidth } from "./canvas.mjs";
import { fill, h, labelled, status } from "./dom.mjs";
import { formatNs, formatNumber } from "./format.mjs";
import { plotAxes, plotLabel, plotLegend, plotLine, plotLinear, plotPanel, plotPart, plotTable, plotText, plotTicks, plotUnit } from "./plot.mjs";
import { TABLE_BLOCK, tableGrid } from "./table.mjs";
import { followTheme, inkOn } from "./theme.mjs";
import { ask, Superseded, table } from "./wire.mjs";

const COMPARE_ANY = "\u0000any";
const COMPARE_ALIGNED = [
  ["stage,category", "stage and category"],
  ["layer,stage", "layer and stage"],
  ["category", "category"],
  ["stage,name", "stage and kernel"],
  ["name", "kernel"],
];
const COMPARE_LABELS = ["phase", "layer", "stage", "category", "name"];

/** Change in words: the difference with its sign, and the factor. */
export function compareChange({ delta_ns: delta, ratio }) {
  if (delta === null || delta === undefined) return "";
  const size = `${delta > 0 ? "+" : delta < 0 ? "−" : ""}${formatNs(Math.abs(delta))}`;
  return !ratio ? size : `${size} (×${ratio.toFixed(2)})`;
}

/** Segments of the bars of a phase, in their order: {side, stage, from, to, a_ns, b_ns}; null times are no bar. */
export function compareSegments(phase) {
  const found = [];
  for (const side of ["a", "b"]) {
    let at = 0;
    for (const stage of phase.stages) {
      const ns = stage[`${side}_ns`];
      if (!ns) continue;
      found.push({ side, phase: phase.phase, ...stage, from: at, to: at + ns });
      at += ns;
    }
  }
  return found;
}

function compareBars(bars, names, model, colours, pick) {
  const phases = bars.filter((phase) => phase.a_steps || phase.b_steps);
  const each = 76;
  const tall = 6 + phases.length * each;
  const stageColour = (stage) => model.get("colours").stage[stage] ?? model.get("colours").stage.other;
  const draw = (context, width, height, now) => {
    context.font = `12px ${FONT}`;
    const named = names.map((name) => fitText(context, name, 12, Math.min(150, width / 4)));
    const left = 16 + Math.max(...named.map((name) => textWidth(context, name, 12)));
    const right = width - 76;
    const marks = [];
    phases.forEach((phase, i) => {
      const segments = compareSegments(phase);
      const scale = plotLinear([0, Math.max(1, ...segments.map((segment) => segment.to))], [left, right]);
      const top = 6 + i * each;
      if (i) plotLine(context, [8, top - 4], [width - 8, top - 4], now.faint);
      plotText(context, phase.phase, 8, top + 8, now.ink, { bold: true });
      ["a", "b"].forEach((side, row) => {
        const y = top + 18 + row * 25;
        const mine = segments.filter((segment) => segment.side === side);
        plotText(context, named[row], 8, y + 11, now.muted);
        for (const segment of mine) {
          const x = scale.to(segment.from);
          const wide = Math.max(0.5, scale.to(segment.to) - x);
          const colour = stageColour(segment.stage);
          context.fillStyle = colour;
          context.fillRect(x, y, Math.max(0.5, wide - 0.5), 21);
          const text = fitText(context, segment.stage ?? "other", 11, wide - 8);
          if (text) plotText(context, text, x + wide / 2, y + 11, inkOn(colour), { size: 11, align: "center" });
          marks.push({ x, y, w: wide, h: 21, data: segment });
        }
        const total = mine.length ? mine[mine.length - 1].to : 0;
        const said = phase[`${side}_steps`] ? formatNs(total) : "no such step";
        plotText(context, said, scale.to(total) + 6, y + 11, now.ink);
      });
    });
    return marks;
  };
  const describe = (segment) => [
    `${segment.phase}, ${segment.stage ?? "other"}`,
    [names[0], segment.a_ns === null ? "not there" : formatNs(segment.a_ns)],
    [names[1], segment.b_ns === null ? "not there" : formatNs(segment.b_ns)],
  ];
  const label = "Time of a step by stage in both traces, a pair of bars a phase; arrow keys move, Enter picks a stage";
  return plotPanel({ label, height: tall, colours, draw, describe, pick: (s) => pick({ phase: s.phase, stage: s.stage }), reach: 3 });
}

/** Time of a row in each step of its phase, in both traces. */
function compareSteps(sides, names, colours) {
  const shades = (now) => [now.muted, now.accent];
  const draw = (context, width, height, now) => {
    const area = { left: 60, top: 26, right: width - 12, bottom: height - 44 };
    const all = sides.flatMap((side) => Array.from({ length: side.length }, (_, i) => [side.get("place", i), side.get("busy_ns", i)]));
    const high = Math.max(1, ...all.map(([, ns]) => ns)) * 1.08;
    const last = Math.max(1, ...all.map(([place]) => place));
    const unit = plotUnit(high);
    const x = plotLinear([0, last], [area.left + 8, area.right - 8]);
    const y = plotLinear([0, high], [area.bottom, area.top]);
    plotAxes(context, area, now, {
      x: { scale: x, ticks: plotTicks(0, last, Math.min(last, width / 110)).filter(Number.isInteger), format: plotLabel, title: "step of the phase" },
      y: { scale: y, ticks: plotTicks(0, high / unit.ns, 4).map((t) => t * unit.ns), format: (t) => plotLabel(t / unit.ns), title: `time a step (${unit.symbol})` },
    });
    const marks = [];
    sides.forEach((side, s) => {
      context.fillStyle = shades(now)[s];
      for (let i = 0; i < side.length; i += 1) {
        const [px, py] = [x.to(side.get("place", i)), y.to(side.get("busy_ns", i))];
        context.beginPath();
        if (s) context.rect(px - 3.5, py - 3.5, 7, 7);
        else context.arc(px, py, 4, 0, 7);
        context.fill();
        marks.push({ x: px - 4, y: py - 4, w: 8, h: 8, data: { name: names[s], step: side.get("step", i), ns: side.get("busy_ns", i) } });
      }
    });
    return marks;
  };
  const describe = (data) => [data.name, ["step", String(data.step)], ["time", formatNs(data.ns)]];
  return plotPanel({ label: "Time in every step of both traces", height: 200, colours, draw, describe, reach: 8 });
}

function compareColumns(by, names, model, largest) {
  const colours = model.get("colours");
  const square = (kind) => (row) => {
    const el = h("span", { class: "lp-square" });
    el.style.background = colours[kind][row[kind]] ?? colours[kind].other;
    return h("span", { class: "lp-key" }, el, h("span", { text: row[kind] ?? "other" }));
  };
  const texts = { phase: 84, layer: 64, stage: 138, category: 126, name: 300 };
  const label = (name) => ({
    name,
    title: name === "name" ? "kernel" : name,
    width: texts[name],
    number: name === "layer",
    cell: name === "stage" || name === "category" ? square(name) : (row) => String(row[name] ?? ""),
  });
  const time = (name, title) => ({ name, title, number: true, width: 84, cell: (row) => (row[name] === null ? "" : formatNs(row[name])) });
  const word = (row) => h("span", { class: `lp-verdict lp-${row.status}`, text: model.get("statuses")[row.status] });
  const bar = (row) => {
    const el = h("span", { class: "lp-change" }, h("i"), h("span", { text: compareChange(row) }));
    const share = largest() ? Math.abs(row.delta_ns ?? 0) / largest() : 0;
    el.firstChild.className = row.delta_ns > 0 ? "lp-more" : "lp-less";
    el.firstChild.style.width = `${share * 70}px`;
    return el;
  };
  const count = (name, title) => ({ name, title, number: true, width: 84, cell: (row) => (row[name] === null ? "" : formatNumber(row[name])) });
  return [
    ...COMPARE_LABELS.filter((name) => name === "phase" || by.includes(name)).map(label),
    { name: "status", title: "verdict", width: 126, cell: word },
    time("a_ns", names[0]),
    time("b_ns", names[1]),
    { name: "delta_ns", title: "change", tip: "by its size", number: true, width: 250, cell: bar },
    count("a_count", `events in ${names[0]}`),
    count("b_count", `events in ${names[1]}`),
  ].map((column) => ({ ...column, width: Math.max(column.width, 22 + 7.2 * column.title.length) }));
}

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
    if (!(error instanceof Superseded)) state.error(error.message);
  };
  const set = (values) => {
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    model.save_changes();
  };
  const search = h("input", { type: "search", placeholder: "stage, category or kernel", "aria-label": "Search rows" });
  search.value = model.get("search");
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ search: search.value }), 150);
  });
  const controls = (phases) => {
    const phase = model.get("phase") ?? COMPARE_ANY;
    const by = model.get("by").join(",");
    const tolerance = String(model.get("tolerance"));
    const aligned = COMPARE_ALIGNED.some(([key]) => key === by) ? COMPARE_ALIGNED : [...COMPARE_ALIGNED, [by, model.get("by").join(", ")]];
    const shares = [["0", "0 %"], ["0.01", "1 %"], ["0.02", "2 %"], ["0.05", "5 %"], ["0.1", "10 %"], ["0.2", "20 %"]];
    if (!shares.some(([key]) => key === tolerance)) shares.push([tolerance, `${formatNumber(100 * tolerance)} %`]);
    const index = [...bar.querySelectorAll("select, input")].indexOf(document.activeElement);
    fill(
      bar,
      search,
      labelled("phase", [[COMPARE_ANY, "all"], ...phases.map((p) => [p, p])], phase, (text) => set({ phase: text === COMPARE_ANY ? null : text })).el,
      labelled("align by", aligned, by, (text) => set({ by: text.split(","), picked: null })).el,
      labelled("same up to", shares, tolerance, (text) => set({ tolerance: Number(text) })).el,
    );
    if (index >= 0) [...bar.querySelectorAll("select, input")][index]?.focus();
  };
  const verdicts = (counts, shown, all) => {
    const now = model.get("status");
    const index = [...note.querySelectorAll("button")].indexOf(document.activeElement);
    const one = ([key, word]) => h("button", {
      type: "button",
      class: `lp-verdict lp-${key}`,
      "aria-pressed": String(now === key),
      text: `${formatNumber(counts[key])} ${word}`,
      onclick: () => set({ status: now === key ? null : key }),
    });
    fill(note, Object.entries(model.get("statuses")).map(one), h("span", { class: "lp-muted", role: "status", text: `${formatNumber(shown)} of ${formatNumber(all)} rows` }));
    if (index >= 0) note.querySelectorAll("button")[index]?.focus();
  };
  const chosen = (row) => {
    const picked = model.get("picked");
    return picked !== null && Object.entries(picked).every(([name, value]) => row[name] === value);
  };
  const viewed = ["by", "tolerance", "phase", "status", "search", "sort"];
  // what is asked about goes with the request: traits may reach the kernel after it
  const view = () => Object.fromEntries(viewed.map((name) => [name, model.get(name)]));
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
    try {
      const asked = view();
      const { msg } = await ask(model, "table", { view: asked, count: TABLE_BLOCK });
      shown = asked;
      state.error("");
      largest = msg.largest;
      controls(msg.phases);
      verdicts(msg.counts, msg.total, msg.all);
      grid.order(model.get("sort"));
      grid.show(msg.total, msg.rows);
      if (drawn !== JSON.stringify(msg.bars)) {
        drawn = JSON.stringify(msg.bars);
        bars?.stop();
        bars = compareBars(msg.bars, model.get("names"), model, theme.now, (picked) => set({ picked }));
        const stages = model.get("colours").stage;
        const there = new Set(msg.bars.flatMap((phase) => phase.stages.map((stage) => stage.stage)));
        fill(legend, plotLegend(Object.entries(stages).filter(([name]) => there.has(name))));
        fill(top, msg.bars.length ? bars.el : h("p", { class: "lp-empty", text: "No step of either trace has device events." }));
        bars.redraw();
      }
    } catch (error) {
      if (error instanceof Superseded) return;
      grid.show(0, []);
      state.error(error.message);
    }
  };

  const detail = async () => {
    const mine = (round += 1);
    grid.paint();
    panels.forEach((panel) => panel.stop());
    panels = [];
    const picked = model.get("picked");
    if (picked === null) {
      fill(details, h("p", { class: "lp-empty", text: "Pick a row or a part of a bar to see its steps and kernels in both traces." }));
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
      const title = Object.values(picked).map((value) => value ?? "other").join(", ");
      const rows = [
        { name: "name", title: "kernel" },
        { name: "status", title: "verdict", format: (v) => model.get("statuses")[v] },
        { name: "a_ns", title: names[0], number: true, format: (v) => (v === null ? "" : formatNs(v)) },
        { name: "b_ns", title: names[1], number: true, format: (v) => (v === null ? "" : formatNs(v)) },
        { name: "delta_ns", title: "change", number: true, format: (_, row) => compareChange(row) },
        { name: "a_count", title: `events in ${names[0]}`, number: true, format: (v) => (v === null ? "" : formatNumber(v)) },
        { name: "b_count", title: `events in ${names[1]}`, number: true, format: (v) => (v === null ? "" : formatNumber(v)) },
      ];
      const now = theme.now();
      fill(
        details,
        h("div", { class: "lp-kernel" }, h("h3", {}, h("span", { text: title }))),
        plotPart("In every step of the phase, mean of the ranks", plotLegend([[`${names[0]} (round)`, now.muted], [`${names[1]} (square)`, now.accent]]), steps.el).el,
        plotPart(`Its kernels, time a step and rank (${formatNumber(msg.kernels.total)})`, plotTable(rows, msg.kernels.rows, { caption: "Kernels of the row" })).el,
      );
      steps.redraw();
    } catch (error) {
      failed(error);
    }
  };

  fill(el, top, legend, bar, note, place, state.el, details);
  newGrid();
  controls([]);
  const queue = new Set();
  const later = (work) => {
    if (!queue.size) {
      queueMicrotask(() => {
        const todo = [...queue];
        queue.clear();
        if (todo.includes(newGrid)) newGrid();
        if (todo.includes(show)) show();
        if (todo.includes(detail)) detail();
      });
    }
    queue.add(work);
  };
  model.on("change:phase change:status change:search change:sort change:tolerance", () => {
    if (search.value !== model.get("search") && document.activeElement !== search) search.value = model.get("search");
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
