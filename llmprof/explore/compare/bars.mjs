// Bars of the phases of two traces, parted by stage.
import { FONT, fitText, textWidth } from "../base/js/canvas.mjs";
import { formatNs } from "../base/js/format.mjs";
import { plotLine, plotLinear, plotPanel, plotText } from "../base/js/plot.mjs";
import { inkOn } from "../base/js/theme.mjs";

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

/** Bars of the phases as a panel: a pair for each, parted by stage. */
export function compareBars(bars, names, model, colours, pick) {
  const phases = bars.filter((phase) => phase.a_steps || phase.b_steps);
  const each = 76;
  const tall = 6 + phases.length * each;
  const stageColour = (stage) => model.get("colours").stage[stage] ?? model.get("colours").stage.other;
  const draw = (context, width, _height, now) => {
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
  /** @returns {(string | [string, string])[]} */
  const describe = (segment) => [
    `${segment.phase}, ${segment.stage ?? "other"}`,
    [names[0], segment.a_ns === null ? "not there" : formatNs(segment.a_ns)],
    [names[1], segment.b_ns === null ? "not there" : formatNs(segment.b_ns)],
  ];
  const label = "Time of a step by stage in both traces, a pair of bars a phase; arrow keys move, Enter picks a stage";
  return plotPanel({
    label,
    height: tall,
    colours,
    draw,
    describe,
    pick: (s) => pick({ phase: s.phase, stage: s.stage }),
    reach: 3,
  });
}
