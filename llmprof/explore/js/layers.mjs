// Layers over steps as a heat map, and what is inside a cell.
import { textWidth } from "./canvas.mjs";
import { fill, h, labelled, status } from "./dom.mjs";
import { formatNs, formatNumber, formatShare } from "./format.mjs";
import { PLOT_TEXT, plotEvery, plotLabel, plotLinear, plotLine, plotPanel, plotPart, plotRamp, plotTable, plotText, plotTicks, plotUnit } from "./plot.mjs";
import { followTheme, inkOn } from "./theme.mjs";
import { Superseded, ask, typed } from "./wire.mjs";

// viridis (van der Walt and Smith) from dark to bright, and blue - white - red for gaps
const VIRIDIS = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140], [40, 174, 128], [94, 201, 98], [173, 220, 48], [253, 231, 37]];
const GAPS = [[33, 102, 172], [103, 169, 207], [209, 229, 240], [247, 247, 247], [253, 219, 199], [239, 138, 98], [178, 24, 43]];
const GAPS_DARK = [[103, 169, 207], [58, 110, 160], [38, 58, 82], [30, 36, 43], [86, 46, 42], [178, 86, 60], [244, 165, 130]];

/** Ramp of a picture: what is long stands out from the page in either theme. */
export function layerRamp(diverging, theme) {
  if (diverging) return theme === "dark" ? GAPS_DARK : GAPS;
  return theme === "dark" ? VIRIDIS : [...VIRIDIS].reverse();
}

/** Share (0..1) of the scale of colours at which a value lies. */
export function layerShare(value, { low, high, log }) {
  if (high <= low) return 0.5;
  if (!log) return (value - low) / (high - low);
  return Math.log(Math.max(value, low) / low) / Math.log(high / low);
}

/** Where the heat map lies on its canvas. */
export function layerArea(width, layers, steps) {
  const row = Math.min(15, Math.max(3, Math.floor(420 / Math.max(1, layers))));
  const tall = Math.max(row * layers, Math.min(60, 15 * layers));
  const left = 38;
  const room = Math.max(40, width - left - 12);
  const across = Math.min(room, Math.max(steps, 4) * 92);
  return { left, top: 62, right: left + across, bottom: 62 + tall };
}

/** Marks of the cells, column after column. */
export function layerMarks(area, columns, layers) {
  const [w, tall] = [(area.right - area.left) / columns, (area.bottom - area.top) / layers];
  return Array.from({ length: columns * layers }, (_, at) => {
    const [column, row] = [Math.floor(at / layers), at % layers];
    return { x: area.left + column * w, y: area.top + row * tall, w, h: tall, data: { column, row } };
  });
}

function render({ model, el }) {
  const root = h("div", { class: "lp-layers" });
  el.append(root);
  const theme = followTheme(root, model, () => heat.redraw());
  const says = status(model, root);
  const bar = h("div", { class: "lp-bar" });
  const note = h("p", { class: "lp-note" });
  const detail = h("div", {});
  let shown = null; // {head, values, outliers}
  let range = null; // first and last step that are shown; all if null
  let image = null;
  let grid = null; // the marks of the cells, made once for a picture

  const report = (error) => error instanceof Superseded || says.error(error.message);
  const chosenRank = () => model.get("rank") ?? model.get("default_rank");
  const set = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };

  const heat = plotPanel({
    label: "Heat map of layers over steps. Arrow keys move, Enter opens a cell.",
    height: () => (shown ? layerArea(0, shown.head.layers.length, 1).bottom + 44 : 60),
    colours: () => theme.now(),
    draw: (context, width, tall, now) => (shown ? drawHeat(context, width, now) : []),
    describe: ({ column, row }) => {
      const { head, values, outliers } = shown;
      const [first, last, phase] = head.columns[column];
      const at = column * head.layers.length + row;
      const value = values[at];
      const where = first === last ? `step ${first}` : `steps ${first} to ${last}`;
      const lines = [`layer ${head.layers[row]}, ${where}`, ["phase", phase ?? "unknown"]];
      lines.push([head.title.toLowerCase(), Number.isNaN(value) ? "not captured" : signed(value, head.diverging)]);
      if (outliers[at]) lines.push(["", "outlier of its step"]);
      return lines;
    },
    pick: ({ column, row }) => {
      const { head } = shown;
      const args = { rank: head.rank, step: head.columns[column][0], layer: head.layers[row] };
      ask(model, "pick", args).catch(report);
    },
    drag: (from, to) => {
      const { head, area } = shown;
      const at = (x) => Math.min(head.columns.length - 1, Math.max(0, Math.floor(((x - area.left) / (area.right - area.left)) * head.columns.length)));
      zoomTo([head.columns[at(from)][0], head.columns[at(to)][1]]);
    },
    keys: { "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => zoomTo(null) },
    reach: 2,
  });

  const drawHeat = (context, width, now) => {
    const { head, values, outliers } = shown;
    const [n, m] = [head.columns.length, head.layers.length];
    if (!n || !m) return [];
    const area = layerArea(width, m, n);
    shown.area = area;
    const ramp = layerRamp(head.diverging, theme.name());
    if (!image || image.of !== shown || image.theme !== theme.name()) image = paintCells(head, values, ramp);
    context.imageSmoothingEnabled = false;
    context.drawImage(image.canvas, area.left, area.top, area.right - area.left, area.bottom - area.top);
    const [w, t] = [(area.right - area.left) / n, (area.bottom - area.top) / m];
    drawLegend(context, width, now, head, ramp);
    drawPhases(context, area, head, w);
    const layerStep = plotEvery(m, t, PLOT_TEXT + 4);
    for (let i = 0; i < m; i += layerStep) {
      plotText(context, String(head.layers[i]), area.left - 6, area.top + (i + 0.5) * t, now.muted, { align: "right" });
    }
    const widest = textWidth(context, String(head.columns[n - 1][1]), PLOT_TEXT);
    const stepStep = plotEvery(n, w, widest + 14);
    for (let i = 0; i < n; i += stepStep) {
      const x = area.left + (i + 0.5) * w;
      plotLine(context, [x, area.bottom], [x, area.bottom + 4], now.rule);
      plotText(context, String(head.columns[i][0]), x, area.bottom + 6, now.muted, { align: "center", base: "top" });
    }
    plotText(context, "step", (area.left + area.right) / 2, area.bottom + 23, now.muted, { align: "center", base: "top" });
    plotText(context, "layer", 2, area.top - 10, now.muted);
    if (!grid || grid.of !== shown || grid.width !== width) grid = { of: shown, width, marks: layerMarks(area, n, m) };
    const radius = Math.max(1.2, Math.min(3.2, w / 3, t / 3));
    grid.marks.forEach((mark, at) => {
      if (outliers[at]) drawOutlier(context, mark.x + w / 2, mark.y + t / 2, radius);
      else if (w > 9 && t > 9 && Number.isNaN(values[at])) plotText(context, "×", mark.x + w / 2, mark.y + t / 2, now.muted, { align: "center" });
    });
    const chosen = chosenCell(head);
    if (chosen) {
      context.lineWidth = 2;
      context.strokeStyle = now.select;
      context.strokeRect(area.left + chosen[0] * w, area.top + chosen[1] * t, w, t);
      context.lineWidth = 1;
      context.strokeStyle = now.background;
      context.strokeRect(area.left + chosen[0] * w - 1.5, area.top + chosen[1] * t - 1.5, w + 3, t + 3);
    }
    return grid.marks;
  };

  const chosenCell = (head) => {
    const [step, layer] = [model.get("step"), model.get("layer")];
    const column = step === null ? -1 : head.columns.findIndex(([first, last]) => first <= step && step <= last);
    const row = head.layers.indexOf(layer);
    return column < 0 || row < 0 ? null : [column, row];
  };

  const paintCells = (head, values, ramp) => {
    const [n, m] = [head.columns.length, head.layers.length];
    const canvas = document.createElement("canvas");
    canvas.width = n;
    canvas.height = m;
    const context = canvas.getContext("2d");
    const cells = context.createImageData(n, m);
    const none = theme.name() === "dark" ? [52, 60, 69] : [211, 215, 221];
    for (let column = 0; column < n; column += 1) {
      for (let row = 0; row < m; row += 1) {
        const value = values[column * m + row];
        const colour = Number.isNaN(value) ? none : plotRamp(ramp, layerShare(value, head));
        cells.data.set([...colour, 255], (row * n + column) * 4);
      }
    }
    context.putImageData(cells, 0, 0);
    return { canvas, of: shown, theme: theme.name() };
  };

  const drawLegend = (context, width, now, head, ramp) => {
    const unit = plotUnit(head.high);
    const title = `${head.title} (${unit.symbol}${head.log ? ", log scale" : ""})`;
    const left = Math.round(50 + textWidth(context, title, PLOT_TEXT));
    const size = Math.min(240, Math.max(60, width - left - 14));
    for (let i = 0; i < size; i += 1) {
      context.fillStyle = `rgb(${plotRamp(ramp, i / (size - 1)).join(",")})`;
      context.fillRect(left + i, 3, 1, 12);
    }
    plotText(context, title, 38, 9, now.muted);
    const ends = [head.low, head.high].map((ns) => plotLabel(Number((ns / unit.ns).toPrecision(3))));
    plotText(context, `${head.diverging ? "≤ " : ""}${ends[0]}`, left, 25, now.muted);
    plotText(context, `${head.most > head.high ? "≥ " : ""}${ends[1]}`, left + size, 25, now.muted, { align: "right" });
    if (head.diverging) plotText(context, "0", left + size / 2, 25, now.muted, { align: "center" });
  };

  const drawPhases = (context, area, head, w) => {
    const colours = model.get("colours").phase;
    let from = 0;
    for (let i = 1; i <= head.columns.length; i += 1) {
      const phase = head.columns[from][2];
      if (i < head.columns.length && head.columns[i][2] === phase) continue;
      const colour = colours[phase] ?? "#9AA5B1";
      context.fillStyle = colour;
      context.fillRect(area.left + from * w, area.top - 20, (i - from) * w - (w > 4 ? 1 : 0), 16);
      const text = [phase ?? "", (phase ?? "").slice(0, 1)].find((t) => textWidth(context, t, 11) + 4 <= (i - from) * w);
      const middle = area.left + ((from + i) / 2) * w;
      if (text) plotText(context, text, middle, area.top - 12, inkOn(colour), { size: 11, align: "center" });
      from = i;
    }
  };

  const zoomTo = (next) => {
    range = next;
    refresh();
  };
  const zoomBy = (factor) => {
    const { head } = shown;
    if (!head.columns.length) return;
    const [first, last] = [head.columns[0][0], head.columns[head.columns.length - 1][1]];
    const chosen = model.get("step");
    const middle = chosen !== null && first <= chosen && chosen <= last ? chosen : (first + last) / 2;
    const half = (Math.max(1, last - first) * factor) / 2;
    zoomTo([Math.floor(middle - half), Math.ceil(middle + half)]);
  };

  const refresh = async () => {
    if (chosenRank() === null) return;
    const args = { measure: model.get("measure"), rank: chosenRank(), stage: model.get("stage"), phase: model.get("phase"), steps: range };
    try {
      const { msg, buffers } = await ask(model, "cells", args);
      shown = { head: msg, values: typed(buffers[0], "f4"), outliers: typed(buffers[1], "u1") };
      says.error("");
      note.textContent = notes(msg);
      heat.redraw();
    } catch (error) {
      report(error);
    }
  };

  const notes = (head) => {
    if (!head.columns.length) return "No step of this rank has layers with this stage and phase.";
    const parts = [`Colour: ${head.meaning}.`];
    if (head.outliers) parts.push(`Dots: ${formatNumber(head.outliers)} outliers, off the median layer of their step by over 10 % and 4 robust standard deviations.`);
    if (head.most > head.high) parts.push(`The scale ends at the 99th percentile; the greatest value is ${formatNs(head.most)}.`);
    if (head.missing) parts.push(`Grey: not captured (${formatNumber(head.missing)} cells).`);
    if (head.condensed > 1) parts.push(`A column is the median of ${head.condensed} steps; drag over some to see them alone.`);
    return parts.join(" ");
  };

  const inside = async () => {
    const [step, layer] = [model.get("step"), model.get("layer")];
    if (step === null || layer === null || chosenRank() === null) {
      return fill(detail, h("p", { class: "lp-note", text: "Pick a cell to see its stages, kernels and operators." }));
    }
    try {
      const { msg } = await ask(model, "cell", { rank: chosenRank(), step, layer, stage: model.get("stage") });
      drawDetail(msg);
    } catch (error) {
      report(error);
    }
    return null;
  };

  let stages = null;
  const drawDetail = (msg) => {
    stages?.stop();
    if (!msg.cell) {
      fill(detail, h("p", { class: "lp-note", text: `Rank ${msg.rank} has no layer ${msg.layer} in step ${msg.step}.` }));
      return;
    }
    const { cell } = msg;
    const share = cell.typical_ns ? cell.gap_ns / cell.typical_ns : null;
    const gap = share === null ? "" : `, ${formatShare(Math.abs(share))} ${share < 0 ? "less" : "more"} than the typical layer`;
    const what = msg.stage ? `${msg.stage} of layer ${msg.layer}` : `Layer ${msg.layer}`;
    const title = `${what} in step ${msg.step} (${cell.phase ?? "no phase"}, rank ${msg.rank}): ${formatNs(cell.dur_ns)}${gap}`;
    stages = stageChart(msg.stages);
    const columns = [
      { name: "name", title: "kernel" },
      { name: "total_ns", title: "time", number: true, format: (value) => formatNs(value) },
      { name: "share", title: "share", number: true, format: formatShare },
      { name: "count", title: "runs", number: true, format: (value) => formatNumber(value) },
      { name: "stage", title: "stage" },
      { name: "op", title: "operator", format: (value) => value ?? "unknown" },
    ];
    const table = plotTable(columns, msg.kernels, { caption: "Kernels and operators of the cell" });
    const left = plotPart("Stages: bar this layer, line the typical one", stages.el);
    const right = plotPart(`Kernels and operators${msg.more ? ` (the longest ${msg.kernels.length} of ${msg.kernels.length + msg.more})` : ""}`, table);
    const head = plotPart(title);
    fill(detail, head.el, h("div", { class: "lp-columns" }, left.el, right.el));
  };

  const stageChart = (rows) => {
    const colours = model.get("colours").stage;
    const most = Math.max(1, ...rows.map((row) => Math.max(row.dur_ns, row.typical_ns ?? 0)));
    const unit = plotUnit(most);
    const line = 22;
    return plotPanel({
      label: "Time of each stage of the cell beside the typical layer. Enter looks at one stage only.",
      height: rows.length * line + 44,
      colours: () => theme.now(),
      draw: (context, width, tall, now) => {
        const left = Math.max(...rows.map((row) => textWidth(context, row.stage, PLOT_TEXT)), 20) + 12;
        const scale = plotLinear([0, most / unit.ns], [left, Math.max(left + 40, width - 66)]);
        for (const tick of plotTicks(0, most / unit.ns, Math.max(2, width / 130))) {
          const x = Math.round(scale.to(tick)) + 0.5;
          plotLine(context, [x, 0], [x, rows.length * line], now.faint);
          plotText(context, plotLabel(tick), x, rows.length * line + 4, now.muted, { align: "center", base: "top" });
        }
        plotText(context, `device time (${unit.symbol})`, (left + width - 66) / 2, rows.length * line + 22, now.muted, { align: "center", base: "top" });
        return rows.map((row, i) => {
          const y = i * line;
          const end = scale.to(row.dur_ns / unit.ns);
          const chosen = model.get("stage") === row.stage;
          plotText(context, row.stage, left - 8, y + line / 2, chosen ? now.accent : now.ink, { align: "right", bold: chosen });
          context.fillStyle = colours[row.stage] ?? colours.other;
          context.fillRect(left, y + 4, Math.max(1, end - left), line - 8);
          context.lineWidth = 1;
          context.strokeStyle = now.rule;
          context.strokeRect(left + 0.5, y + 4.5, Math.max(1, end - left - 1), line - 9);
          let text = end;
          if (row.typical_ns !== null) {
            const x = scale.to(row.typical_ns / unit.ns);
            plotLine(context, [x, y + 1], [x, y + line - 1], now.ink, { width: 2 });
            text = Math.max(end, x);
          }
          plotText(context, formatNs(row.dur_ns), text + 5, y + line / 2, now.ink, { size: 11 });
          return { x: 0, y, w: width, h: line, data: row };
        });
      },
      describe: (row) => [row.stage, ["time", formatNs(row.dur_ns)], ["busy", formatNs(row.busy_ns)], ["typical layer", formatNs(row.typical_ns)], ["kernels and copies", formatNumber(row.kernels)]],
      pick: (row) => set("stage", model.get("stage") === row.stage ? null : row.stage),
    });
  };

  const start = async () => {
    let msg;
    try {
      ({ msg } = await ask(model, "choices"));
    } catch (error) {
      return report(error);
    }
    if (!msg.ranks.length) {
      return fill(root, says.el, h("p", { class: "lp-empty", text: "No layers were found: the trace has no device events in steps, or its attention kernels are not recognised." }));
    }
    const all = (names, text) => [["", text], ...names.map((name) => [name, name])];
    const selects = {
      measure: labelled("Show", msg.measures.map((m) => [m.name, m.title]), model.get("measure"), (value) => set("measure", value)),
      rank: labelled("Rank", msg.ranks.map((rank) => [rank, String(rank)]), chosenRank(), (value) => set("rank", Number(value))),
      phase: labelled("Phase", all(msg.phases, "all"), model.get("phase") ?? "", (value) => set("phase", value || null)),
      stage: labelled("Stage", all(msg.stages, "whole layer"), model.get("stage") ?? "", (value) => set("stage", value || null)),
    };
    for (const name of ["measure", "rank", "phase", "stage"]) {
      model.on(`change:${name}`, () => {
        selects[name].select.value = String((name === "rank" ? chosenRank() : model.get(name)) ?? "");
        if (name === "phase") range = null;
        refresh();
        if (name === "rank" || name === "stage") inside();
      });
    }
    for (const name of ["step", "layer"]) {
      model.on(`change:${name}`, () => {
        heat.redraw();
        inside();
      });
    }
    const button = (text, label, onclick) => h("button", { type: "button", text, "aria-label": label, title: label, onclick });
    const zoom = h("span", { class: "lp-label" }, button("+", "Fewer steps (+)", () => zoomBy(0.5)), button("−", "More steps (-)", () => zoomBy(2)), button("All steps", "All steps (0)", () => zoomTo(null)));
    fill(bar, selects.measure.el, selects.rank.el, selects.phase.el, selects.stage.el, zoom);
    fill(root, bar, says.el, h("div", { class: "lp-part" }, heat.el), note, detail);
    refresh();
    return inside();
  };

  const signed = (value, diverging) => `${diverging && value > 0 ? "+" : ""}${formatNs(value)}`;
  fill(root, says.el);
  start();
  return () => {
    theme.stop();
    says.stop();
    heat.stop();
    stages?.stop();
  };
}

function drawOutlier(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = "#ffffff";
  context.fill();
  context.lineWidth = 1;
  context.strokeStyle = "#000000";
  context.stroke();
}

export default { render };
