// Hardware metrics of one kernel: speed of light, roofline, stalls, advice, glossary. Names begin with "metric".
import { fill, h, labelled } from "../base/js/dom.mjs";
import { formatBytes, formatNs, formatNumber, formatShare } from "../base/js/format.mjs";
import {
  plotAxes,
  plotLabel,
  plotLine,
  plotLog,
  plotLogTicks,
  plotPanel,
  plotPart,
  plotText,
} from "../base/js/plot.mjs";

/**
 * Number of a metric in words, in the unit of its base.
 * @param {{value?: number | null, text?: string | null, unit?: string | null}} metric
 */
export function metricText({ value, text, unit }) {
  if (value === null || value === undefined) return text ?? "";
  if (unit === "B") return formatBytes(value);
  if (unit === "ns") return formatNs(value);
  if (unit === "%") return `${formatNumber(value)} %`;
  /** @type {[number, string][]} */
  const sizes = [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
  ];
  const [size, prefix] = sizes.find(([s]) => Math.abs(value) >= s) ?? [1, ""];
  const said = formatNumber(value / size);
  return unit === "1" || !unit ? `${said}${prefix ? ` ${prefix}` : ""}` : `${said} ${prefix}${unit}`;
}

/**
 * Ranges of the roofline's axes: all points and ridges, with room around.
 * @param {{bandwidth: number | null, peaks: Record<string, number>, points: Record<string, any>[]}} roofline
 * @returns {{x: [number, number], y: [number, number]}}
 */
export function metricPlane(roofline) {
  const { bandwidth } = roofline;
  const ridges = bandwidth ? Object.values(roofline.peaks).map((peak) => peak / bandwidth) : [];
  const xs = [...roofline.points.map((p) => p.intensity), ...ridges];
  const ys = [...roofline.points.map((p) => p.flop_per_s), ...Object.values(roofline.peaks)];
  return { x: [Math.min(...xs) / 2.5, Math.max(...xs) * 2.5], y: [Math.min(...ys) / 3, Math.max(...ys) * 2] };
}

/**
 * A bar of a share, with its name and its number; a name that is explained opens to its glossary text.
 * @param {string} name
 * @param {number} share
 * @param {string} said
 * @param {string} colour
 * @param {HTMLElement[] | null} [gloss]
 */
function metricBar(name, share, said, colour, gloss = null) {
  const bar = h("div", { class: "lp-meter", role: "img", "aria-label": `${name}: ${said}` });
  const inner = h("div");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  inner.style.background = colour;
  bar.append(inner);
  const [head, body] = gloss ?? [h("span", { text: name }), null];
  return h("div", { class: "lp-bar3" }, head, bar, h("span", { class: "lp-number", text: said }), body);
}

/** @typedef {import("./messages").Messages} Messages */
/** @typedef {(metric: string) => Promise<Messages["explain"]["answers"] | undefined>} Explain */

/**
 * A button that shows and hides a glossary text, and the text, which is asked for when it is first shown.
 * @param {string} name
 * @param {string} metric
 * @param {Explain} explain
 */
function metricName(name, metric, explain) {
  const body = h("div", { class: "lp-gloss", hidden: true });
  const head = h("button", { type: "button", class: "lp-link lp-explain", text: name, "aria-expanded": "false" });
  head.addEventListener("click", async () => {
    body.hidden = !body.hidden;
    head.setAttribute("aria-expanded", String(!body.hidden));
    if (body.childElementCount) return;
    const said = await explain(metric);
    if (!said) {
      body.hidden = true; // another name was asked for meanwhile
      head.setAttribute("aria-expanded", "false");
      return;
    }
    const lines = [
      ["", said.meaning],
      ["Good: ", said.good],
      ["Otherwise: ", said.action],
      ["Source: ", said.source],
    ];
    const shown = lines.filter(([, text]) => text).map(([first, text]) => h("p", {}, h("b", { text: first }), text));
    fill(body, h("p", { class: "lp-head", text: said.title }), shown);
  });
  return [head, body];
}

/**
 * Points under the roofs of a device; those that are `mine` stand out.
 * @param {import("./messages").Roofline} roofline
 * @param {object} options
 * @param {(point: Record<string, any>) => boolean} options.mine
 * @param {(point: Record<string, any>, mine: boolean) => number} options.radius
 * @param {(point: Record<string, any>) => [string, ...[string, string][]]} options.facts
 * @param {string} options.label
 * @param {() => import("../base/js/theme.mjs").Colours} options.colours
 * @param {(point: Record<string, any>) => void} [options.pick]
 */
export function metricRoofline(roofline, { mine: isMine, radius, facts, label, colours, pick }) {
  /** @type {import("../base/js/plot.mjs").Chart["draw"]} */
  const draw = (context, width, height, now) => {
    const area = { left: 58, top: 26, right: width - 14, bottom: height - 44 };
    const plane = metricPlane(roofline);
    /** @type {[number, string][]} */
    const units = [
      [1e12, "TFLOP/s"],
      [1e9, "GFLOP/s"],
    ];
    const unit = units.find(([size]) => plane.y[1] >= size) ?? [1e6, "MFLOP/s"];
    const x = plotLog(plane.x, [area.left, area.right]);
    const y = plotLog(plane.y, [area.bottom, area.top]);
    plotAxes(context, area, now, {
      x: { scale: x, ticks: plotLogTicks(...plane.x), format: plotLabel, title: "arithmetic intensity (FLOP/B)" },
      y: { scale: y, ticks: plotLogTicks(...plane.y, 6), format: (t) => plotLabel(t / unit[0]), title: unit[1] },
    });
    for (const [dtype, peak] of Object.entries(roofline.peaks)) {
      const ridge = roofline.bandwidth ? peak / roofline.bandwidth : plane.x[0];
      plotLine(context, [x.to(Math.max(ridge, plane.x[0])), y.to(peak)], [area.right, y.to(peak)], now.ink, {
        width: 1.5,
      });
      plotText(context, dtype, area.right, y.to(peak) - 9, now.ink, { align: "right" });
    }
    const top = Math.max(...Object.values(roofline.peaks), 0);
    if (roofline.bandwidth && top) {
      const from = Math.max(plane.x[0], plane.y[0] / roofline.bandwidth);
      plotLine(
        context,
        [x.to(from), y.to(from * roofline.bandwidth)],
        [x.to(top / roofline.bandwidth), y.to(top)],
        now.ink,
        { width: 1.5 },
      );
    }
    const marks = roofline.points.map((point) => ({
      point,
      x: x.to(point.intensity),
      y: y.to(point.flop_per_s),
    }));
    marks.sort((a, b) => Number(isMine(a.point)) - Number(isMine(b.point)));
    return marks.map(({ point, x: px, y: py }) => {
      const mine = isMine(point);
      const r = radius(point, mine);
      context.beginPath();
      context.arc(px, py, r, 0, 7);
      context.fillStyle = mine ? now.accent : now.rule;
      context.fill();
      context.strokeStyle = mine ? now.ink : now.muted;
      context.lineWidth = 1;
      context.stroke();
      const half = Math.max(5, r);
      return { x: px - half, y: py - half, w: 2 * half, h: 2 * half, data: point };
    });
  };
  /** @type {import("../base/js/plot.mjs").Chart["describe"]} */
  const describe = (point) => {
    const [name, ...more] = facts(point);
    return [
      name,
      ...more,
      ["FLOP/B", formatNumber(point.intensity)],
      ["rate", `${formatNumber(point.flop_per_s / 1e12)} TFLOP/s`],
    ];
  };
  return plotPanel({ label, height: 250, colours, draw, describe, pick });
}

/** @param {Record<string, any>} rule  as in the answer */
function metricSaid(rule) {
  const gain =
    rule.estimated_speedup_pct === null
      ? ""
      : ` (estimated gain ${formatNumber(rule.estimated_speedup_pct)} %, ${rule.speedup_scope ?? "scope unknown"})`;
  return h(
    "li",
    {},
    h("b", { text: rule.rule }),
    h("span", { class: "lp-muted", text: gain }),
    h("div", { text: rule.text }),
  );
}

/**
 * Everything that was measured of a kernel. `request` asks the Python side, `looked.text` is the search of the kernel
 * before; returns {el, panels}.
 * @param {Messages["metrics"]["answers"]} msg
 * @param {object} options
 * @param {() => import("../base/js/theme.mjs").Colours} options.colours
 * @param {<K extends keyof Messages>(what: K, args: Messages[K]["asks"]) => Promise<{msg: Messages[K]["answers"]}>} options.request
 * @param {(kernelId: number) => void} options.choose
 * @param {{text: string}} options.looked
 * @param {(error: unknown) => void} options.failed
 */
export function metricView(msg, { colours, request, choose, looked, failed }) {
  /** @type {Explain} */
  const explain = async (metric) => (await request("explain", { metric }).catch(failed))?.msg;
  const { chosen = null } = msg;
  const [speed, stalled, advice] = [msg.speed ?? {}, msg.stalls ?? [], msg.rules ?? []];
  const launches = msg.launches.map((l) => [
    String(l.kernel_id),
    `launch ${l.kernel_id}: grid ${l.grid ?? "unknown"}, ${formatNs(l.other_dur_ns)} (same ${l.evidence}, confidence ${formatNumber(l.confidence, 2)})`,
  ]);
  const chooser = labelled("profiled", launches, String(chosen), (id) => choose(Number(id))).el;
  const facts = [
    ["bound by", speed.bound_by ?? "unknown"],
    ["duration", formatNs(speed.dur_ns)],
    ["arithmetic", metricText({ value: speed.flop_per_s, unit: "FLOP/s" })],
    ["memory", metricText({ value: speed.bytes_per_s, unit: "B/s" })],
    ["intensity", typeof speed.intensity !== "number" ? "" : `${formatNumber(speed.intensity)} FLOP/B`],
    ["type", speed.dtype ?? ""],
  ].filter(([, said]) => said);
  const list = h(
    "dl",
    { class: "lp-facts" },
    facts.map(([name, said]) => h("div", {}, h("dt", { text: name }), h("dd", { text: said }))),
  );
  const bars = (msg.bars ?? []).flatMap(({ label, share, metric }) => {
    if (share === null) return [];
    const name = metric ? metricName(label, metric, explain) : null;
    return [metricBar(label, share, `${formatNumber(100 * share)} %`, "var(--lp-accent)", name)];
  });
  const light = plotPart(
    "Speed of light",
    list,
    bars.length ? bars : h("p", { class: "lp-note", text: msg.note || "It was not measured." }),
  ).el;
  const stalls = plotPart(
    "What warps wait for (share of the time between two instructions)",
    stalled.length
      ? stalled
          .slice(0, 8)
          .map((s) =>
            metricBar(s.reason, s.share, formatShare(s.share), "#CC6677", metricName(s.reason, s.reason, explain)),
          )
      : h("p", { class: "lp-note", text: "Warp states were not measured." }),
  ).el;
  const panel = msg.roofline
    ? metricRoofline(msg.roofline, {
        colours,
        label: "Roofline of all profiled launches; this one is larger",
        mine: (point) => point.kernel_id === chosen,
        radius: (_point, mine) => (mine ? 7 : 4),
        facts: (point) => [
          point.function,
          ["launch", String(point.kernel_id)],
          ["duration", formatNs(point.ns)],
          ["type", point.dtype ?? "unknown"],
        ],
      })
    : null;
  const roof = plotPart(
    msg.roofline?.device ? `Roofline, ${msg.roofline.device}` : "Roofline",
    panel
      ? panel.el
      : h("p", { class: "lp-note", text: "No floating-point operations or no memory traffic were measured." }),
  ).el;
  const rules = plotPart(
    "Advice of Nsight Compute",
    advice.length
      ? h("ul", { class: "lp-rules", tabindex: "0" }, advice.map(metricSaid))
      : h("p", { class: "lp-note", text: "No rule was recorded." }),
  ).el;
  const found = h("div", { class: "lp-values", tabindex: "0", role: "region", "aria-label": "Metrics" });
  const count = h("p", { class: "lp-note", role: "status" });
  const search = h("input", { type: "search", placeholder: "name of a metric", "aria-label": "Search metrics" });
  const look = async () => {
    if (chosen === null) return;
    const answer = await request("values", { kernel_id: chosen, search: search.value }).catch(failed);
    if (!answer) return;
    const { msg: some } = answer;
    /** @param {Record<string, any>} metric  as in the answer */
    const row = (metric) =>
      h(
        "tr",
        {},
        h("td", {}, metricName(metric.metric, metric.metric, explain)),
        h("td", { class: "lp-number", text: metricText(metric) }),
        h("td", { text: metric.title }),
      );
    const head = h(
      "tr",
      {},
      ["metric", "value", "what it is"].map((text) =>
        h("th", { scope: "col", class: text === "value" ? "lp-number" : undefined, text }),
      ),
    );
    fill(found, h("table", {}, h("thead", {}, head), h("tbody", {}, some.rows.map(row))));
    count.textContent = `${some.rows.length} of ${formatNumber(some.total)} metrics; a name opens its glossary text.`;
  };
  search.value = looked.text;
  search.addEventListener("input", () => {
    looked.text = search.value;
    look();
  });
  look();
  const all = plotPart("All metrics", search, count, found).el;
  const el = h(
    "div",
    {},
    h("div", { class: "lp-bar" }, chooser),
    h("div", { class: "lp-columns" }, light, roof, stalls, rules),
    all,
  );
  return { el, panels: panel ? [panel] : [] };
}
