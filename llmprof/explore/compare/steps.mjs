// Time of the picked row in every step of its phase.
import { formatNs } from "../base/js/format.mjs";
import { plotAxes, plotLabel, plotLinear, plotPanel, plotTicks, plotUnit } from "../base/js/plot.mjs";

/** @typedef {import("../base/js/theme.mjs").Colours} Colours */
/** @typedef {import("../base/js/plot.mjs").Chart<{name: string, step: number, ns: number}>} Chart */

/**
 * Time of a row in each step of its phase, in both traces.
 * @param {import("../base/js/wire.mjs").Table[]} sides
 * @param {string[]} names
 * @param {() => Colours} colours
 */
export function compareSteps(sides, names, colours) {
  /** @param {Colours} now */
  const shades = (now) => [now.muted, now.accent];
  /** @type {Chart["draw"]} */
  const draw = (context, width, height, now) => {
    const area = { left: 60, top: 26, right: width - 12, bottom: height - 44 };
    const all = sides.flatMap((side) =>
      Array.from({ length: side.length }, (_, i) => [side.get("place", i), side.get("busy_ns", i)]),
    );
    const high = Math.max(1, ...all.map(([, ns]) => ns)) * 1.08;
    const last = Math.max(1, ...all.map(([place]) => place));
    const unit = plotUnit(high);
    const x = plotLinear([0, last], [area.left + 8, area.right - 8]);
    const y = plotLinear([0, high], [area.bottom, area.top]);
    plotAxes(context, area, now, {
      x: {
        scale: x,
        ticks: plotTicks(0, last, Math.min(last, width / 110)).filter(Number.isInteger),
        format: plotLabel,
        title: "step of the phase",
      },
      y: {
        scale: y,
        ticks: plotTicks(0, high / unit.ns, 4).map((t) => t * unit.ns),
        format: (t) => plotLabel(t / unit.ns),
        title: `time a step (${unit.symbol})`,
      },
    });
    /** @type {import("../base/js/plot.mjs").Mark[]} */
    const marks = [];
    sides.forEach((side, s) => {
      context.fillStyle = shades(now)[s];
      for (let i = 0; i < side.length; i += 1) {
        const [px, py] = [x.to(side.get("place", i)), y.to(side.get("busy_ns", i))];
        context.beginPath();
        if (s) context.rect(px - 3.5, py - 3.5, 7, 7);
        else context.arc(px, py, 4, 0, 7);
        context.fill();
        marks.push({
          x: px - 4,
          y: py - 4,
          w: 8,
          h: 8,
          data: { name: names[s], step: side.get("step", i), ns: side.get("busy_ns", i) },
        });
      }
    });
    return marks;
  };
  /** @type {Chart["describe"]} */
  const describe = (data) => [data.name, ["step", String(data.step)], ["time", formatNs(data.ns)]];
  return plotPanel({ label: "Time in every step of both traces", height: 200, colours, draw, describe, reach: 8 });
}
