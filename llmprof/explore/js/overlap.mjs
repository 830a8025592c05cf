// Compute, communication, copies and idle time: bars of steps, and the lanes of a window.
import { fitText, textWidth } from "./canvas.mjs";
import { fill, h, labelled, status } from "./dom.mjs";
import { formatNs, formatNumber, formatShare } from "./format.mjs";
import { aroundSpan, panWindow, zoomWindow } from "./geometry.mjs";
import { PLOT_TEXT, plotAxes, plotEvery, plotLabel, plotLegend, plotLinear, plotPanel, plotPart, plotTable, plotText, plotTicks, plotUnit } from "./plot.mjs";
import { followTheme, inkOn } from "./theme.mjs";
import { Superseded, ask, table, typed } from "./wire.mjs";

const CLASSES = ["compute", "communication", "copy"];
const LANE = 24;

/** Rows of the lanes of one side: {lane, y} with the streams set apart, and the height of all. */
export function overlapRows(lanes) {
  const rows = [];
  let y = 0;
  let streams = false;
  for (const lane of lanes) {
    if (lane.stream && !streams) y += 8;
    streams = lane.stream;
    rows.push({ lane, y });
    y += LANE;
  }
  return { rows, height: y };
}

/** Heights (px, bottom to top) of the parts of a bar, as times or as shares of its total. */
export function overlapStack(values, total, share, scale) {
  let sum = 0;
  return values.map((value) => {
    const part = share ? (total > 0 ? (100 * value) / total : 0) : value;
    const [from, to] = [scale.to(sum), scale.to(sum + part)];
    sum += part;
    return { y: to, h: Math.max(0, from - to) };
  });
}

function render({ model, el }) {
  const root = h("div", { class: "lp-overlap" });
  el.append(root);
  const panels = new Set();
  const theme = followTheme(root, model, () => panels.forEach((panel) => panel.redraw()));
  const says = status(model, root);
  let choices = null;
  let bars = []; // sides: {label, rank, rows}
  let lanes = null; // {sides, buffers, summary, whole}

  const report = (error) => error instanceof Superseded || says.error(error.message);
  const set = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const rank = () => model.get("rank") ?? model.get("default_rank");
  const colourOf = (part, now) => (part === "idle" ? now.faint : model.get("colours").part[part]);
  const sideName = (side, i) => (lanes.sides.length > 1 ? `${"AB"[i]}: ${side.of ? `${side.of}, ` : ""}rank ${side.rank}` : `rank ${side.rank}`);

  // --- bars of steps
  const barsPanel = plotPanel({
    label: "Parts of the time of each step. Arrow keys move, Enter shows a step below.",
    height: () => Math.max(1, bars.length) * 150 + 26,
    colours: () => theme.now(),
    draw: (context, width, tall, now) => bars.flatMap((side, i) => drawBars(context, width, now, side, i)),
    describe: ({ side, row }) => {
      const get = (name) => side.rows.get(name, row);
      const [first, last, total] = [get("first"), get("last"), get("total_ns")];
      const where = first === last ? `step ${first}` : `steps ${first} to ${last} (means)`;
      const lines = choices.parts.map((part) => [part, `${formatNs(get(part))} (${formatShare(get(part) / total)})`]);
      return [`${side.label ? `${side.label}: ` : ""}${where}, rank ${side.rank}`, ["phase", get("phase") ?? "unknown"], ["total", formatNs(total)], ...lines];
    },
    pick: ({ side, row }) => pickSteps(side.rows.get("first", row), side.rows.get("last", row)),
    drag: (from, to) => {
      const side = bars[0];
      if (!side?.area || !side.rows.length) return;
      const at = (x) => Math.min(side.rows.length - 1, Math.max(0, Math.floor(((x - side.area.left) / (side.area.right - side.area.left)) * side.rows.length)));
      pickSteps(side.rows.get("first", at(from)), side.rows.get("last", at(to)));
    },
    reach: 1,
  });
  const pickSteps = (first, last) => ask(model, "steps", { rank: rank(), first, last }).catch(report);

  const drawBars = (context, width, now, side, i) => {
    const n = side.rows.length;
    const top = i * 150 + 26;
    const area = { left: 52, top, right: width - 14, bottom: top + 104 };
    side.area = area;
    const share = model.get("bars") === "share";
    const totals = bars.flatMap((one) => Array.from({ length: one.rows.length }, (_, row) => one.rows.get("total_ns", row)));
    const unit = share ? { symbol: "%", ns: 1 } : plotUnit(Math.max(1, ...totals));
    const most = share ? 100 : Math.max(1, ...totals) / unit.ns;
    const y = plotLinear([0, most], [area.bottom, area.top]);
    const last = i === bars.length - 1;
    const title = `${side.label ? `${side.label}: ` : ""}rank ${side.rank}, ${share ? "share of the step's device time (%)" : `device time of a step (${unit.symbol})`}`;
    plotAxes(context, area, now, { y: { scale: y, ticks: plotTicks(0, most, 4), title } });
    if (!n) {
      plotText(context, "no steps", (area.left + area.right) / 2, (area.top + area.bottom) / 2, now.muted, { align: "center" });
      return [];
    }
    const slot = Math.min(92, (area.right - area.left) / Math.max(...bars.map((one) => one.rows.length)));
    area.right = area.left + slot * n;
    const gap = slot > 5 ? Math.min(6, slot * 0.2) : 0;
    const every = plotEvery(n, slot, textWidth(context, String(side.rows.get("last", n - 1)), PLOT_TEXT) + 14);
    const window = model.get("window");
    const marks = [];
    for (let row = 0; row < n; row += 1) {
      const get = (name) => side.rows.get(name, row);
      const x = area.left + row * slot;
      const values = choices.parts.map((part) => get(part) / (share ? 1 : unit.ns));
      overlapStack(values, get("total_ns"), share, y).forEach((part, k) => {
        context.fillStyle = colourOf(choices.parts[k], now);
        context.fillRect(x + gap / 2, part.y, Math.max(0.6, slot - gap), part.h);
      });
      const [from, to] = [get("start_ns"), get("end_ns")];
      if (window && i === 0 && Math.min(to, window[1]) - Math.max(from, window[0]) > 0.2 * Math.min(to - from, window[1] - window[0])) {
        context.fillStyle = now.accent;
        context.fillRect(x + gap / 2, area.bottom + 1, Math.max(0.6, slot - gap), 3);
      }
      if (row % every === 0) plotText(context, String(get("first")), x + slot / 2, area.bottom + 6, now.muted, { align: "center", base: "top" });
      marks.push({ x, y: area.top, w: slot, h: area.bottom - area.top, data: { side, row } });
    }
    if (last) plotText(context, "step", (area.left + area.right) / 2, area.bottom + 23, now.muted, { align: "center", base: "top" });
    return marks;
  };

  // --- lanes of the window
  const gutter = (width) => (width < 640 ? 104 : 168);
  const lanesHeight = () => (lanes?.sides.length ? lanes.sides.reduce((sum, side) => sum + overlapRows(side.lanes).height + 34, 0) + 46 : 60);
  const lanesPanel = plotPanel({
    label: "Lanes of the window. Drag to look closer; + and - zoom, a and d move, 0 shows all, Enter goes to an interval.",
    height: lanesHeight,
    colours: () => theme.now(),
    draw: (context, width, tall, now) => drawLanes(context, width, now),
    describe: (data) => {
      const lines = [data.title];
      if (data.name) lines.push(data.name);
      if (data.share !== undefined) return [...lines, ["covered", formatShare(data.share)]];
      return [...lines, ["start", formatNs(data.start, 6)], ["duration", formatNs(data.dur)]];
    },
    pick: (data) => data.share === undefined && go(aroundSpan(data.start - data.shift, data.start - data.shift + data.dur, lanes.whole, 1.5)),
    drag: (from, to) => {
      const { area, window } = lanes;
      const at = (x) => window[0] + (Math.min(area.right, Math.max(area.left, x)) - area.left) * ((window[1] - window[0]) / (area.right - area.left));
      go([at(from), at(to)]);
    },
    keys: {
      "+": () => zoom(0.5), "=": () => zoom(0.5), w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2), a: () => pan(-0.25), d: () => pan(0.25), 0: () => set("window", null),
    },
    reach: 2,
  });
  panels.add(barsPanel);
  panels.add(lanesPanel);
  const go = (window) => window[1] - window[0] >= 1 && set("window", window);
  const zoom = (factor, at = 0.5) => lanes?.whole && go(zoomWindow(lanes.window, factor, at, lanes.whole));
  const pan = (share) => lanes?.whole && go(panWindow(lanes.window, share, lanes.whole));
  lanesPanel.canvas.addEventListener("wheel", (event) => {
    if (!lanes?.whole || !(event.ctrlKey || document.activeElement === lanesPanel.canvas)) return;
    event.preventDefault();
    const at = (event.offsetX - lanes.area.left) / (lanes.area.right - lanes.area.left);
    zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.01), Math.min(1, Math.max(0, at)));
  }, { passive: false });

  const drawLanes = (context, width, now) => {
    if (!lanes?.sides.length) {
      plotText(context, "Nothing ran on this rank.", 8, 24, now.muted);
      return [];
    }
    const left = gutter(width);
    const marks = [];
    let top = 6;
    lanes.sides.forEach((side, i) => {
      plotText(context, sideName(side, i), 2, top + 10, now.ink, { bold: true });
      top += 24;
      const { rows, height } = overlapRows(side.lanes);
      const area = { left, top, right: width - 14, bottom: top + height };
      if (i === 0) lanes.area = area;
      for (const { lane, y } of rows) drawLane(context, area, top + y, lane, side, i, now, marks);
      top += height + 10;
    });
    const unit = plotUnit(lanes.window[1]);
    const area = { ...lanes.area, bottom: top - 6 };
    const scale = plotLinear(lanes.window.map((ns) => ns / unit.ns), [area.left, area.right]);
    const ticks = plotTicks(...scale.domain, Math.max(2, (area.right - area.left) / 110));
    const title = `time from the start of the trace (${unit.symbol})${lanes.sides[1]?.of ? ", of A" : ""}`;
    plotAxes(context, area, now, { x: { scale, ticks, title } });
    return marks;
  };

  const drawLane = (context, area, y, lane, side, i, now, marks) => {
    const [top, tall] = [y + 2, LANE - 5];
    const name = fitText(context, area.left < 140 ? lane.name.replace("communication", "comm.") : lane.name, PLOT_TEXT, area.left - 10);
    plotText(context, name, area.left - 8, y + LANE / 2, now.muted, { align: "right" });
    context.fillStyle = now.lane;
    context.fillRect(area.left, top, area.right - area.left, tall);
    const window = side.window;
    const width = area.right - area.left;
    const per = width / (window[1] - window[0]);
    const title = lanes.sides.length > 1 ? `${"AB"[i]}: ${lane.name}` : lane.name;
    if (lane.kind === "bins") {
      const covered = typed(lanes.buffers[side.first + lane.buffers[0]], "f4");
      const bins = covered.length / lane.classes.length;
      for (let bin = 0; bin < bins; bin += 1) {
        const [x, next] = [Math.round(area.left + (bin * width) / bins), Math.round(area.left + ((bin + 1) * width) / bins)];
        let base = top + tall;
        let sum = 0;
        lane.classes.forEach((part, k) => {
          const share = Math.min(1, covered[k * bins + bin]);
          context.fillStyle = part === "idle" ? now.rule : colourOf(part, now);
          context.fillRect(x, base - share * tall, next - x, share * tall);
          base -= share * tall;
          sum += share;
        });
        if (sum > 0) marks.push({ x: area.left + (bin * width) / bins, y: top, w: width / bins, h: tall, data: { title, share: Math.min(1, sum) } });
      }
      return;
    }
    const pairs = typed(lanes.buffers[side.first + lane.buffers[0]], "f8");
    const which = lane.stream ? typed(lanes.buffers[side.first + lane.buffers[1]], "u4") : null;
    const kinds = lane.stream ? typed(lanes.buffers[side.first + lane.buffers[2]], "u1") : null;
    for (let k = 0; k < pairs.length / 2; k += 1) {
      const [from, to] = [pairs[2 * k], pairs[2 * k + 1]];
      const x = area.left + from * per;
      const w = Math.max(0.7, (to - from) * per);
      const part = kinds ? CLASSES[kinds[k]] : lane.name;
      context.fillStyle = part === "idle" ? now.rule : colourOf(part, now);
      context.fillRect(x, top, w > 3 ? w - 0.5 : w, tall);
      const text = which ? side.names[which[k]] : "";
      if (text && w > 60) plotText(context, fitText(context, text, 11, w - 8), x + 4, y + LANE / 2, inkOn(colourOf(part, now)), { size: 11 });
      const data = { title: which ? `${title}, ${part}` : title, name: text, start: window[0] + from, dur: to - from, shift: window[0] - lanes.window[0] };
      marks.push({ x, y: top, w, h: tall, data });
    }
  };

  // --- requests
  const loadBars = async () => {
    if (rank() === null) return;
    try {
      const { msg, buffers } = await ask(model, "bars", { rank: rank(), phase: model.get("phase"), against: model.get("against") });
      let at = 0;
      bars = msg.sides.map((side) => {
        const rows = table(side.columns, buffers.slice(at, at + side.buffers));
        at += side.buffers;
        return { label: side.label, rank: side.rank, rows };
      });
      says.error("");
      barsPanel.redraw();
    } catch (error) {
      report(error);
    }
  };
  const sums = h("div", {});
  const loadLanes = async () => {
    if (rank() === null) return;
    try {
      const { msg, buffers } = await ask(model, "lanes", { rank: rank(), window: model.get("window"), against: model.get("against"), step: model.get("step"), pixels: Math.max(100, Math.floor(root.clientWidth - gutter(root.clientWidth) - 14)) });
      lanes = { ...msg, buffers, window: msg.sides[0]?.window ?? [0, 1] };
      says.error("");
      lanesPanel.redraw();
      drawSums();
    } catch (error) {
      report(error);
    }
  };
  const drawSums = () => {
    if (!lanes.sides.length) return fill(sums);
    const ns = (value) => formatNs(value);
    const signed = (value) => `${value > 0 ? "+" : ""}${formatNs(value)}`;
    const columns = [{ name: "part", title: "part of the time" }, { name: "a_ns", title: lanes.sides.length > 1 ? "A" : "time", number: true, format: ns }, { name: "a_share", title: lanes.sides.length > 1 ? "A, share" : "share", number: true, format: formatShare }];
    if (lanes.sides.length > 1) {
      columns.push({ name: "b_ns", title: "B", number: true, format: ns }, { name: "b_share", title: "B, share", number: true, format: formatShare }, { name: "delta_ns", title: "B − A", number: true, format: signed });
    }
    const length = formatNs(lanes.window[1] - lanes.window[0]);
    const events = lanes.sides.map((side) => formatNumber(side.lanes.filter((lane) => lane.stream).reduce((sum, lane) => sum + lane.count, 0)));
    const where = lanes.chosen ? `In the window of ${length}` : `In the whole recording of the rank (${length})`;
    const shifted = lanes.sides[1]?.of ? " B is aligned at the start of the same step." : "";
    return fill(sums, h("p", { class: "lp-note", text: `${where}, ${events.join(" and ")} device events. Communication is hidden while compute runs beside it.${shifted}` }), plotTable(columns, lanes.summary, { caption: "Parts of the time of the window" }));
  };

  const start = async () => {
    try {
      choices = (await ask(model, "choices")).msg;
    } catch (error) {
      return report(error);
    }
    if (!choices.ranks.length) return fill(root, says.el, h("p", { class: "lp-empty", text: "Nothing ran on a device in this trace." }));
    const sides = () => [["", "nothing"], ...choices.ranks.filter((r) => r !== rank()).map((r) => [`rank:${r}`, `rank ${r}`]), ...choices.others.map((r) => [`other:${r}`, `other trace, rank ${r}`])];
    const selects = {
      rank: labelled("Rank", choices.ranks.map((r) => [r, String(r)]), rank(), (value) => set("rank", Number(value))),
      against: labelled("Compare with", sides(), model.get("against"), (value) => set("against", value)),
      phase: labelled("Phase", [["", "all"], ...choices.phases.map((p) => [p, p])], model.get("phase") ?? "", (value) => set("phase", value || null)),
      bars: labelled("Bars", [["time", "time"], ["share", "share"]], model.get("bars"), (value) => set("bars", value)),
    };
    const changed = (name, ...then) => model.on(`change:${name}`, () => {
      if (selects[name]) selects[name].select.value = String((name === "rank" ? rank() : model.get(name)) ?? "");
      then.forEach((one) => one());
    });
    const offer = () => {
      selects.against.select.replaceChildren(...sides().map(([value, text]) => h("option", { value, text, selected: value === model.get("against") })));
    };
    changed("rank", offer, loadBars, loadLanes);
    changed("against", loadBars, loadLanes);
    changed("phase", loadBars);
    changed("bars", () => barsPanel.redraw());
    changed("window", () => barsPanel.redraw(), loadLanes);
    const button = (text, label, onclick) => h("button", { type: "button", text, "aria-label": label, title: label, onclick });
    const zooms = h("span", { class: "lp-label" }, button("+", "Zoom in (+)", () => zoom(0.5)), button("−", "Zoom out (-)", () => zoom(2)), button("◀", "Earlier (a)", () => pan(-0.5)), button("▶", "Later (d)", () => pan(0.5)), button("Whole recording", "Whole recording (0)", () => set("window", null)));
    const legend = h("div", {});
    const key = () => fill(legend, plotLegend(choices.parts.map((part) => [part, colourOf(part, theme.now())])));
    key();
    model.on("change:theme", key);
    const bar = h("div", { class: "lp-bar" }, selects.rank.el, selects.against.el, selects.phase.el, selects.bars.el);
    const upper = plotPart("Steps", legend, barsPanel.el);
    const lower = plotPart("Window", zooms, lanesPanel.el);
    fill(root, bar, says.el, upper.el, lower.el, h("div", { class: "lp-part" }, sums));
    loadBars();
    return loadLanes();
  };
  let width = 0;
  const resized = new ResizeObserver(() => {
    if (Math.abs(root.clientWidth - width) < 40) return;
    const first = width === 0;
    width = root.clientWidth;
    if (!first && choices?.ranks.length) loadLanes();
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

export default { render };
