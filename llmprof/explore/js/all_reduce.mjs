// Collectives: latencies, sizes, bandwidth, arrivals, calls over time, and the ranks of one call.
import { textWidth } from "./canvas.mjs";
import { fill, h, labelled, status } from "./dom.mjs";
import { formatBytes, formatNs, formatNumber, formatShare } from "./format.mjs";
import { PLOT_TEXT, plotAxes, plotLabel, plotLegend, plotLine, plotLinear, plotLog, plotLogTicks, plotPanel, plotPart, plotTable, plotText, plotTicks, plotUnit } from "./plot.mjs";
import { followTheme } from "./theme.mjs";
import { Superseded, ask } from "./wire.mjs";

/** Domain of a logarithmic axis around positive values, and one decade where there are none. */
export function callDomain(values, least = 1.15) {
  const known = values.filter((value) => value !== null && value > 0);
  if (!known.length) return [1, 10];
  return [Math.min(...known) / least, Math.max(...known) * least];
}

/** Name of a group of calls by size. */
export function callSize(row) {
  return row.bytes === null ? "unknown" : formatBytes(row.bytes);
}

function render({ model, el }) {
  const root = h("div", { class: "lp-collectives" });
  el.append(root);
  const theme = followTheme(root, model, () => panels.forEach((panel) => panel.redraw()));
  const says = status(model, root);
  const panels = [];
  let view = null;
  let one = null; // the picked call
  let close = false; // whether only its transfer is shown

  const report = (error) => error instanceof Superseded || says.error(error.message);
  const set = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const colour = (name) => model.get("colours").collective[name];
  const pick = (call) => (call === null || call === undefined ? null : ask(model, "pick", { call }).catch(report));
  const add = (options) => {
    const panel = plotPanel({ colours: () => theme.now(), ...options });
    panels.push(panel);
    return panel;
  };
  const nothing = (context, width, tall, now, text) => {
    plotText(context, text, width / 2, tall / 2, now.muted, { align: "center" });
    return [];
  };

  // --- latency distribution
  const latency = add({
    label: "Distribution of the latencies of the kernels.",
    height: 230,
    draw: (context, width, tall, now) => {
      const rows = [["duration", "duration, waiting included"], ["transfer", "transfer alone"]].filter(([name]) => view?.histogram[name].length);
      if (!rows.length) return nothing(context, width, tall, now, "no call has a duration");
      const unit = plotUnit(Math.sqrt(callDomain(rows.flatMap(([name]) => view.histogram[name].map((bin) => bin[0]))).reduce((a, b) => a * b)));
      const domain = callDomain(rows.flatMap(([name]) => view.histogram[name].flatMap((bin) => [bin[0] / unit.ns, bin[1] / unit.ns])), 1.05);
      const x = plotLog(domain, [46, width - 14]);
      const marks = [];
      const each = (tall - 44) / rows.length;
      rows.forEach(([name, words], i) => {
        const bins = view.histogram[name];
        const area = { left: 46, right: width - 14, top: i * each + 26, bottom: (i + 1) * each - 2 };
        const most = Math.max(...bins.map((bin) => bin[2]));
        const y = plotLinear([0, most], [area.bottom, area.top]);
        const last = i === rows.length - 1;
        const xAxis = last ? { scale: x, ticks: plotLogTicks(...domain), title: `time of a call on a rank (${unit.symbol}, log scale)` } : undefined;
        plotAxes(context, area, now, { y: { scale: y, ticks: plotTicks(0, most, 2), title: `kernels: ${words}, median ${formatNs(view.medians[name])}` }, x: xAxis });
        for (const [from, to, count] of bins) {
          const [x0, x1, top] = [x.to(from / unit.ns), x.to(to / unit.ns), y.to(count)];
          context.fillStyle = colour(name);
          context.fillRect(x0, top, Math.max(1, x1 - x0 - 0.6), area.bottom - top);
          marks.push({ x: x0, y: area.top, w: x1 - x0, h: area.bottom - area.top, data: { words, from, to, count } });
        }
        const median = view.medians[name];
        if (median > 0) {
          const at = x.to(median / unit.ns);
          plotLine(context, [at, area.top - 4], [at, area.bottom], now.ink, { width: 1.5, dash: [4, 2] });
        }
      });
      return marks;
    },
    describe: ({ words, from, to, count }) => [words, ["from", formatNs(from)], ["to", formatNs(to)], ["kernels", formatNumber(count)]],
  });

  // --- by message size
  const slots = (width, left) => {
    const n = Math.max(1, view.sizes.length);
    const slot = Math.min(150, (width - left - 14) / n);
    return { slot, at: (i) => left + (i + 0.5) * slot };
  };
  const sizeLabels = (context, area, now, { slot, at }) => {
    const several = new Set(view.sizes.map((row) => row.algorithm)).size > 1;
    view.sizes.forEach((row, i) => {
      const lines = [callSize(row), several ? (row.algorithm ?? "") : ""];
      lines.forEach((text, k) => {
        const half = textWidth(context, text, 11) / 2;
        if (2 * half <= slot - 4 || (k === 0 && i % Math.ceil((2 * half + 6) / slot) === 0)) plotText(context, text, at(i), area.bottom + 6 + 14 * k, now.muted, { size: 11, align: "center", base: "top" });
      });
    });
    const base = Math.round(area.bottom) + 0.5;
    plotLine(context, [area.left, base], [area.right, base], now.rule);
    plotText(context, "message size of a call", (area.left + area.right) / 2, area.bottom + (several ? 36 : 24), now.muted, { align: "center", base: "top" });
  };
  const sizes = add({
    label: "Time by message size: median, and 10th to 90th percentile.",
    height: 230,
    draw: (context, width, tall, now) => {
      if (!view?.sizes.length) return nothing(context, width, tall, now, "no calls");
      const kinds = ["duration", "transfer"].map((name, k) => [name, k ? "transfer" : "dur"]);
      const every = view.sizes.flatMap((row) => kinds.flatMap(([, key]) => ["p10", "median", "p90"].map((q) => row[`${key}_${q}_ns`])));
      const unit = plotUnit(callDomain(every)[1] / 10);
      const domain = callDomain(every.map((ns) => (ns === null ? null : ns / unit.ns)), 1.4);
      const area = { left: 52, right: width - 14, top: 26, bottom: tall - 58 };
      const y = plotLog(domain, [area.bottom, area.top]);
      plotAxes(context, area, now, { y: { scale: y, ticks: plotLogTicks(...domain, 6), title: `time of a call on a rank (${unit.symbol}, log scale)` } });
      const place = slots(width, area.left);
      sizeLabels(context, area, now, place);
      const marks = [];
      view.sizes.forEach((row, i) => {
        kinds.forEach(([name, key], k) => {
          const median = row[`${key}_median_ns`];
          if (median === null || median <= 0) return;
          const x = place.at(i) + (k ? 1 : -1) * Math.min(12, place.slot / 5);
          const [low, middle, high] = ["p10", "median", "p90"].map((q) => y.to(row[`${key}_${q}_ns`] / unit.ns));
          plotLine(context, [x, low], [x, high], colour(name), { width: 3 });
          context.fillStyle = colour(name);
          context.beginPath();
          context.arc(x, middle, 5, 0, 2 * Math.PI);
          context.fill();
          marks.push({ x: x - 6, y: Math.min(high, middle - 6), w: 12, h: Math.max(12, low - high), data: { row, name, key } });
        });
      });
      return marks;
    },
    describe: ({ row, name, key }) => [`${name}, ${callSize(row)}`, ["algorithm", row.algorithm ?? "unknown"], ["median", formatNs(row[`${key}_median_ns`])], ["10th to 90th percentile", `${formatNs(row[`${key}_p10_ns`])} to ${formatNs(row[`${key}_p90_ns`])}`], ["kernels", formatNumber(row.count)]],
  });

  // --- bandwidth
  const bandwidth = add({
    label: "Algorithm and bus bandwidth by message size, against the peak of the link.",
    height: 230,
    draw: (context, width, tall, now) => {
      const known = view?.sizes.filter((row) => row.bus_gbps !== null) ?? [];
      if (!known.length) return nothing(context, width, tall, now, "sizes or transfers were not captured");
      const domain = callDomain([...known.flatMap((row) => [row.bus_gbps, row.algorithm_gbps]), view.peak_gbps], 1.5);
      const area = { left: 52, right: width - 14, top: 26, bottom: tall - 58 };
      const y = plotLog(domain, [area.bottom, area.top]);
      plotAxes(context, area, now, { y: { scale: y, ticks: plotLogTicks(...domain, 6), title: "bandwidth of the transfer (GB/s, log scale)" } });
      const place = slots(width, area.left);
      sizeLabels(context, area, now, place);
      if (view.peak_gbps) {
        plotLine(context, [area.left, y.to(view.peak_gbps)], [area.right, y.to(view.peak_gbps)], now.ink, { dash: [6, 3], width: 1.5 });
        plotText(context, `peak of the link, one direction: ${formatNumber(view.peak_gbps)} GB/s`, area.right, y.to(view.peak_gbps) + 9, now.ink, { size: 11, align: "right" });
      }
      const marks = [];
      view.sizes.forEach((row, i) => {
        ["algorithm", "bus"].forEach((name, k) => {
          const value = row[`${name}_gbps`];
          if (value === null) return;
          const [x, at] = [place.at(i) + (k ? 1 : -1) * Math.min(10, place.slot / 5), y.to(value)];
          context.fillStyle = colour(`${name} bandwidth`);
          context.beginPath();
          context.arc(x, at, 5.5, 0, 2 * Math.PI);
          context.fill();
          marks.push({ x: x - 6, y: at - 6, w: 12, h: 12, data: { row, name, value } });
        });
      });
      return marks;
    },
    describe: ({ row, name, value }) => [`${name} bandwidth, ${callSize(row)}`, ["algorithm", row.algorithm ?? "unknown"], ["median", `${formatNumber(value)} GB/s`], ["bus, of the peak", formatShare(row.share_of_peak)], ["kernels", formatNumber(row.count)]],
  });

  // --- arrivals
  const arrivals = add({
    label: "How late each rank arrives at the calls.",
    height: () => Math.max(110, (view?.arrivals.length ?? 0) * 26 + 72),
    draw: (context, width, tall, now) => {
      const rows = view?.arrivals ?? [];
      if (!rows.length) return nothing(context, width, tall, now, "calls could not be matched over the ranks");
      const left = Math.max(...rows.map((row) => textWidth(context, `rank ${row.rank}`, PLOT_TEXT))) + 14;
      const area = { left, right: width - 104, top: 22, bottom: 22 + rows.length * 26 };
      const most = Math.max(1, ...rows.map((row) => row.late_p90_ns));
      const unit = plotUnit(most);
      const x = plotLinear([0, most / unit.ns], [area.left, area.right]);
      plotAxes(context, area, now, { x: { scale: x, ticks: plotTicks(0, most / unit.ns, Math.max(2, (area.right - left) / 80)), title: `start after the first rank (${unit.symbol})` } });
      plotText(context, "last to arrive", area.right + 96, 11, now.muted, { align: "right" });
      return rows.map((row, i) => {
        const y = area.top + i * 26;
        const [median, p90] = [x.to(row.late_median_ns / unit.ns), x.to(row.late_p90_ns / unit.ns)];
        plotText(context, `rank ${row.rank}`, left - 8, y + 13, now.ink, { align: "right", bold: model.get("rank") === row.rank });
        context.fillStyle = colour("late");
        context.fillRect(left, y + 5, Math.max(1, median - left), 16);
        plotLine(context, [median, y + 13], [p90, y + 13], now.ink, { width: 1.5 });
        plotLine(context, [p90, y + 8], [p90, y + 18], now.ink, { width: 1.5 });
        plotText(context, formatShare(row.share_last), area.right + 96, y + 13, now.ink, { align: "right", bold: row.share_last > 1.5 / rows.length });
        return { x: 0, y, w: width, h: 26, data: row };
      });
    },
    describe: (row) => [`rank ${row.rank}`, ["last to arrive", `${formatNumber(row.last)} of ${formatNumber(row.calls)} calls`], ["late, median", formatNs(row.late_median_ns)], ["late, 90th percentile", formatNs(row.late_p90_ns)], ["late, at most", formatNs(row.late_max_ns)], ["waits in all", formatNs(row.wait_ns)], ["transfers in all", formatNs(row.transfer_ns)]],
    pick: (row) => set("rank", model.get("rank") === row.rank ? null : row.rank),
  });

  // --- over time
  const overTime = add({
    label: "Wait and transfer over time. Enter picks the longest call of a bar; drag sets the window.",
    height: 250,
    draw: (context, width, tall, now) => {
      const rows = view?.over_time ?? [];
      if (!rows.length) return nothing(context, width, tall, now, "no calls");
      const names = view.matched ? ["wait", "transfer"] : ["dur"];
      const [first, last] = [rows[0].first_ns, Math.max(...rows.map((row) => row.last_ns))];
      const unit = plotUnit(last);
      const x = plotLinear([first / unit.ns, Math.max(last, first + 1) / unit.ns], [52, width - 14]);
      overTime.scale = { x, unit };
      const each = (tall - 46) / names.length;
      const w = Math.max(1.5, Math.min(9, (width - 66) / rows.length - 1));
      const marks = [];
      names.forEach((name, i) => {
        const area = { left: 52, right: width - 14, top: i * each + 26, bottom: (i + 1) * each - 2 };
        const values = rows.map((row) => row[`${name}_ns`]);
        const most = Math.max(1, ...values.map((value) => value ?? 0));
        const per = plotUnit(most);
        const y = plotLinear([0, most / per.ns], [area.bottom, area.top]);
        const words = { wait: "wait for the last rank", transfer: "transfer", dur: "duration" }[name];
        const lower = i === names.length - 1;
        const xAxis = lower ? { scale: x, ticks: plotTicks(...x.domain, Math.max(2, width / 120)), title: `time from the start of the trace (${unit.symbol})` } : undefined;
        const title = `${words}, mean of ${model.get("rank") === null ? "all ranks" : `rank ${model.get("rank")}`} (${per.symbol})`;
        plotAxes(context, area, now, { y: { scale: y, ticks: plotTicks(0, most / per.ns, 3), title }, x: xAxis });
        rows.forEach((row, k) => {
          const at = x.to(row.first_ns / unit.ns);
          if (values[k] !== null) {
            const top = y.to(values[k] / per.ns);
            context.fillStyle = colour(name === "dur" ? "duration" : name);
            context.fillRect(at, top, w, Math.max(0.8, area.bottom - top));
            if (name === "wait" && theme.name() === "light") plotLine(context, [at, top], [at + w, top], colour("transfer"));
          }
          marks.push({ x: at, y: area.top, w, h: area.bottom - area.top, data: row });
        });
        const window = model.get("in_window") ? null : model.get("window");
        if (window) {
          const [a, b] = window.map((ns) => Math.min(area.right, Math.max(area.left, x.to(ns / unit.ns))));
          context.fillStyle = now.shade;
          context.fillRect(a, area.top, Math.max(2, b - a), area.bottom - area.top);
        }
      });
      return marks;
    },
    describe: (row) => [row.kernels > 1 ? `${formatNumber(row.kernels)} kernels from ${formatNs(row.first_ns, 6)}` : `at ${formatNs(row.first_ns, 6)}`, ["wait, mean", formatNs(row.wait_ns)], ["transfer, mean", formatNs(row.transfer_ns)], ["duration, mean", formatNs(row.dur_ns)], ["longest in call", row.call === null ? "not matched" : formatNumber(row.call)]],
    pick: (row) => pick(row.call),
    drag: (from, to) => {
      const { x, unit } = overTime.scale;
      set("window", [from, to].map((px) => Math.max(0, x.from(Math.min(Math.max(px, x.range[0]), x.range[1])) * unit.ns)));
    },
  });

  // --- one call
  const ranks = add({
    label: "Ranks of the picked call, aligned at the start of the first one.",
    height: () => Math.max(70, (one?.rows.length ?? 0) * 28 + 60),
    draw: (context, width, tall, now) => {
      const rows = one?.rows ?? [];
      if (!rows.length) return nothing(context, width, tall, now, "Pick a call: a bar over time, or a row of the list.");
      const left = Math.max(...rows.map((row) => textWidth(context, `rank ${row.rank}`, PLOT_TEXT))) + 14;
      const area = { left, right: width - 78, top: 8, bottom: 8 + rows.length * 28 };
      const most = Math.max(1, ...rows.map((row) => row.aligned_ns + row.dur_ns));
      const unit = plotUnit(most);
      const last = rows.find((row) => row.rank === row.last_rank);
      const transfer = last ? most - last.aligned_ns : most;
      const low = close && last ? Math.max(0, last.aligned_ns - transfer) : 0;
      const x = plotLinear([low / unit.ns, most / unit.ns], [area.left, area.right]);
      plotAxes(context, area, now, { x: { scale: x, ticks: plotTicks(...x.domain, Math.max(2, (area.right - left) / 80)), title: `time from the first rank's start (${unit.symbol})` } });
      if (last) {
        const at = x.to(last.aligned_ns / unit.ns);
        plotLine(context, [at, area.top], [at, area.bottom], now.ink, { dash: [4, 3] });
      }
      return rows.map((row, i) => {
        const y = area.top + i * 28;
        const [from, middle, to] = [row.aligned_ns, row.aligned_ns + (row.wait_ns ?? 0), row.aligned_ns + row.dur_ns].map((ns) => Math.max(area.left, x.to(ns / unit.ns)));
        plotText(context, `rank ${row.rank}`, left - 8, y + 14, now.ink, { align: "right", bold: row.rank === row.last_rank });
        context.fillStyle = colour("wait");
        context.fillRect(from, y + 5, middle - from, 18);
        context.fillStyle = colour(row.wait_ns === null ? "duration" : "transfer");
        context.fillRect(middle, y + 5, Math.max(1.5, to - middle), 18);
        context.lineWidth = 1;
        context.strokeStyle = now.rule;
        context.strokeRect(from + 0.5, y + 5.5, Math.max(1, to - from - 1), 17);
        plotText(context, row.rank === row.last_rank ? `${formatNs(row.dur_ns)}, last` : formatNs(row.dur_ns), to + 6, y + 14, now.ink, { size: 11 });
        return { x: from, y, w: Math.max(2, to - from), h: 28, data: row };
      });
    },
    describe: (row) => [`rank ${row.rank}`, ["late by", formatNs(row.aligned_ns)], ["waits", formatNs(row.wait_ns)], ["transfer", formatNs(row.transfer_ns)], ["bus bandwidth", row.bus_gbps === null ? "unknown" : `${formatNumber(row.bus_gbps)} GB/s`], ["kernel", row.name]],
  });

  const note = h("p", { class: "lp-note" });
  const callNote = h("p", { class: "lp-note" });
  const list = h("div", {});
  const moves = h("span", { class: "lp-label" });

  const load = async () => {
    if (model.get("kind") === null) return;
    const window = model.get("in_window") ? model.get("window") : null;
    try {
      ({ msg: view } = await ask(model, "view", { kind: model.get("kind"), phase: model.get("phase"), rank: model.get("rank"), window }));
    } catch (error) {
      report(error);
      return;
    }
    says.error("");
    const parts = [`${formatNumber(view.count)} kernels${model.get("rank") === null ? " on all ranks" : ` on rank ${model.get("rank")}`}.`];
    parts.push(view.matched ? "Wait: from a rank's own start until the last rank has started the same call; transfer: the rest." : "Wait and transfer are unknown: no call could be matched over all of its ranks.");
    if (view.matched && view.matched < view.count) parts.push(`Both are known for ${formatNumber(view.matched)} of them.`);
    if (view.peak_gbps === null) parts.push(`The peak of the link of ${view.device ?? "this device"} is not known.`);
    note.textContent = parts.join(" ");
    panels.forEach((panel) => panel.redraw());
    drawList();
  };
  const drawList = () => {
    const columns = [
      { name: "call", title: "call", format: (value) => formatNumber(value) },
      { name: "step", title: "step", number: true, format: (value) => value ?? "none" },
      { name: "layer", title: "layer", number: true, format: (value) => value ?? "none" },
      { name: "bytes", title: "size", number: true, format: (value) => formatBytes(value) },
      { name: "arrival_skew_ns", title: "skew", number: true, format: (value) => formatNs(value) },
      { name: "last_rank", title: "last rank", number: true, format: (value) => value ?? "unknown" },
      { name: "transfer_ns", title: "transfer", number: true, format: (value) => formatNs(value) },
      { name: "bus_gbps", title: "bus GB/s", number: true, format: (value) => formatNumber(value) },
    ];
    fill(list, plotTable(columns, view?.calls ?? [], { caption: "Calls with the greatest arrival skew", pick: (row) => pick(row.call), chosen: (row) => row.call === model.get("call"), empty: "no call has a match on another rank" }));
  };
  const loadCall = async () => {
    try {
      ({ msg: one } = await ask(model, "call", { call: model.get("call"), kind: model.get("kind"), phase: model.get("phase") }));
    } catch (error) {
      report(error);
      return;
    }
    const first = one.rows[0];
    const where = first ? [first.step === null ? "" : `step ${first.step}`, first.layer === null ? "" : `layer ${first.layer}`, callSize(first) === "unknown" ? "size unknown" : callSize(first)].filter(Boolean).join(", ") : "";
    callNote.textContent = first ? `Call ${formatNumber(one.call)} (${first.kind}, ${where}): skew ${formatNs(first.arrival_skew_ns)}.` : "";
    const closer = h("button", { type: "button", text: "Transfer only", "aria-pressed": String(close), disabled: !first, onclick: () => {
      close = !close;
      closer.setAttribute("aria-pressed", String(close));
      ranks.redraw();
    } });
    fill(moves, move("◀ Call before", one.before), move("Next call ▶", one.after), closer);
    ranks.redraw();
    if (view) drawList();
  };
  const move = (text, call) => h("button", { type: "button", text, disabled: call === null, onclick: () => pick(call) });

  const start = async () => {
    let choices;
    try {
      choices = (await ask(model, "choices")).msg;
    } catch (error) {
      return report(error);
    }
    if (!choices.kinds.length) return fill(root, says.el, h("p", { class: "lp-empty", text: "No collective was found in this trace." }));
    const optional = (names, text, all) => [["", all], ...names.map((name) => [name, text(name)])];
    const selects = {
      kind: labelled("Collective", choices.kinds.map(([kind, count]) => [kind, `${kind} (${formatNumber(count)})`]), model.get("kind"), (value) => set("kind", value)),
      phase: labelled("Phase", optional(choices.phases, String, "all"), model.get("phase") ?? "", (value) => set("phase", value || null)),
      rank: labelled("Rank", optional(choices.ranks, String, "all"), model.get("rank") ?? "", (value) => set("rank", value === "" ? null : Number(value))),
    };
    const within = h("input", { type: "checkbox", onchange: () => set("in_window", within.checked) });
    within.checked = model.get("in_window");
    for (const name of ["kind", "phase", "rank"]) {
      model.on(`change:${name}`, () => {
        selects[name].select.value = String(model.get(name) ?? "");
        load();
        if (name !== "rank") loadCall();
      });
    }
    model.on("change:in_window", () => {
      within.checked = model.get("in_window");
      load();
    });
    model.on("change:window", () => (model.get("in_window") ? load() : overTime.redraw()));
    model.on("change:call", loadCall);
    const legend = plotLegend(["duration", "wait", "transfer"].map((name) => [name, colour(name)]));
    const speeds = plotLegend(["algorithm bandwidth", "bus bandwidth"].map((name) => [name, colour(name)]));
    const bar = h("div", { class: "lp-bar" }, selects.kind.el, selects.phase.el, selects.rank.el, h("label", { class: "lp-label" }, within, h("span", { text: "only calls in the window" })));
    const parts = [
      plotPart("Latency", latency.el), plotPart("By message size: median, 10th to 90th percentile", sizes.el),
      plotPart("Bandwidth against the link", speeds, bandwidth.el), plotPart("Who is late: bar the median, line the 90th percentile", arrivals.el),
    ];
    const call = plotPart("Ranks of a call", moves, callNote, ranks.el);
    const calls = plotPart("Calls, greatest arrival skew first", list);
    fill(root, bar, says.el, note, legend, h("div", { class: "lp-columns" }, parts.map((part) => part.el)), plotPart("Over time", overTime.el).el, h("div", { class: "lp-columns" }, call.el, calls.el));
    load();
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

export default { render };
