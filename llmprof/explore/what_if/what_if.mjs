// Explorer of what would be gained: changes with sliders, the predicted step time beside the recorded one.
import { textWidth } from "../base/js/canvas.mjs";
import { copyButton, fill, h, labelled, labelledButton, orPicture, status } from "../base/js/dom.mjs";
import { formatNs, formatNumber } from "../base/js/format.mjs";
import {
  PLOT_TEXT,
  plotAxes,
  plotLegend,
  plotLine,
  plotLinear,
  plotPanel,
  plotPart,
  plotTable,
  plotText,
  plotTicks,
  plotUnit,
} from "../base/js/plot.mjs";
import { inHand } from "../base/js/press.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, setTraits } from "../base/js/wire.mjs";
import { changeText, changeValues, SLIDER, sliderPlace, sliderValue } from "./changes.mjs";

/**
 * @typedef {import("./messages").Offer} Offer
 * @typedef {import("./messages").ChangeField} Field
 * @typedef {import("./messages").Predicted} Predicted
 * @typedef {import("./messages").Made} Made
 * @typedef {[string, string][]} Works
 */
/** @typedef {{el: HTMLElement, read: () => string, write: (value: string) => void}} Control */
/** @typedef {{el: HTMLElement, name: string, read: () => string, write: (text: string) => void,
 *   tell: (made: Made | undefined) => void}} Row */

const DEBOUNCE_MS = 150;
const NAMED = "\u0000name"; // in a list of work: by a kernel's name
const LINE = 17;
const BETWEEN = 12;

/**
 * A number with its slider; an optional one has a box that says whether it is given.
 * @param {Field} field
 * @param {() => void} changed
 * @returns {Control}
 */
function numberControl(field, changed) {
  const { low = 0, high = 1, step = 0, unit = "" } = field;
  const even = step > 0;
  let value = Number(field.value || (even ? low : sliderValue(SLIDER / 3, low, high)));
  const slider = h("input", {
    type: "range",
    "aria-label": field.label,
    min: even ? low : 0,
    max: even ? high : SLIDER,
    step: even ? step : 1,
  });
  const said = h("output", {});
  const given = field.optional ? h("input", { type: "checkbox", "aria-label": `give the ${field.label}` }) : null;
  const show = () => {
    const words = unit === "x" ? `${formatNumber(value, 2)} x as long` : `${formatNumber(value)} ${unit}`;
    said.textContent = given && !given.checked ? "as recorded" : words;
    slider.setAttribute("aria-valuetext", said.textContent);
    slider.disabled = Boolean(given && !given.checked);
  };
  const place = () => {
    slider.value = String(even ? value : sliderPlace(value, low, high));
  };
  if (given) given.checked = field.value !== "";
  place();
  show();
  slider.addEventListener("input", () => {
    value = even ? Number(slider.value) : sliderValue(Number(slider.value), low, high);
    show();
    changed();
  });
  given?.addEventListener("change", () => {
    show();
    changed();
  });
  return {
    el: h("span", { class: "lp-label" }, given, h("span", { text: field.label }), slider, said),
    read: () => (given && !given.checked ? "" : String(value)),
    write: (text) => {
      if (given) given.checked = text !== "";
      if (text !== "" && Number.isFinite(Number(text))) value = Number(text);
      if (!inHand(slider)) place();
      show();
    },
  };
}

/**
 * A text, which counts when it is finished.
 * @param {Field} field
 * @param {() => void} changed
 * @returns {Control}
 */
function textControl(field, changed) {
  const input = h("input", { type: "text", "aria-label": field.label, value: field.value, onchange: changed });
  return {
    el: h("label", { class: "lp-label" }, h("span", { text: field.label }), input),
    read: () => input.value,
    write: (text) => {
      if (!inHand(input.parentElement)) input.value = text;
    },
  };
}

/**
 * Work of the devices: a stage, a category, the host, or kernels by their name.
 * @param {Field} field
 * @param {Works} works
 * @param {() => void} changed
 * @returns {Control}
 */
function workControl(field, works, changed) {
  const host = /** @type {Works} */ (field.host ? [["host", "host (all that it does)"]] : []);
  const options = [...works, ...host, [NAMED, "kernels by name …"]];
  const name = h("input", { type: "text", "aria-label": `${field.label}: part of a kernel's name`, onchange: changed });
  const known = (/** @type {string} */ text) => options.some(([key]) => key === text);
  const list = labelled(field.label, options, known(field.value) ? field.value : NAMED, (text) => {
    name.hidden = text !== NAMED;
    if (text !== NAMED || name.value) changed();
    else name.focus();
  });
  name.hidden = list.select.value !== NAMED;
  if (!name.hidden) name.value = field.value;
  return {
    el: h("span", { class: "lp-label lp-work" }, list.el, name),
    read: () => (list.select.value === NAMED ? name.value : list.select.value),
    write: (text) => {
      if (inHand(list.el) || inHand(name.parentElement)) return;
      list.select.value = known(text) ? text : NAMED;
      name.hidden = known(text);
      if (!known(text)) name.value = text;
    },
  };
}

/**
 * @param {Field} field
 * @param {Works} works
 * @param {() => void} changed
 * @returns {Control}
 */
function control(field, works, changed) {
  if (field.kind === "number") return numberControl(field, changed);
  if (field.kind === "text") return textControl(field, changed);
  if (field.kind === "work") return workControl(field, works, changed);
  const list = labelled(field.label, field.options ?? [], field.value, changed);
  return {
    el: list.el,
    read: () => list.select.value,
    write: (text) => {
      if (!inHand(list.el)) list.select.value = text;
    },
  };
}

/**
 * A change as an entry of the list, with its controls.
 * @param {Offer} offer
 * @param {Works} works
 * @param {{changed: () => void, remove: (row: Row) => void}} does
 * @returns {Row}
 */
function changeRow(offer, works, { changed, remove }) {
  const controls = offer.fields.map((field) => control(field, works, changed));
  const words = h("p", { text: offer.words });
  const error = h("p", { class: "lp-error", role: "alert", hidden: true });
  const away = labelledButton("✕", `Remove: ${offer.title}`, () => remove(row));
  const fields = h(
    "span",
    { class: "lp-fields" },
    controls.map((one) => one.el),
  );
  const head = h("div", { class: "lp-changehead" }, h("b", { text: offer.title }), away);
  const el = h("li", {}, head, controls.length ? fields : null, words, error);
  /** @type {Row} */
  const row = {
    el,
    name: offer.name,
    read: () =>
      changeText(
        offer,
        controls.map((one) => one.read()),
      ),
    write: (text) => {
      const values = changeValues(offer, text);
      controls.forEach((one, i) => one.write(values[i]));
    },
    tell: (made) => {
      el.classList.toggle("lp-refused", Boolean(made?.error));
      error.hidden = !made?.error;
      error.textContent = made?.error ? `Left out: ${made.error}` : "";
      words.textContent = made?.unknown ? `${offer.words} Not known: ${made.unknown}.` : offer.words;
    },
  };
  return row;
}

/**
 * What the times are of: a step, or the whole recording where it has no steps.
 * @param {Predicted[]} rows
 */
const timed = (rows) =>
  rows.some((row) => row.phase !== null)
    ? "a step"
    : rows.some((row) => row.steps > 1)
      ? "the whole recording on a rank"
      : "the whole recording";

/**
 * Recorded and predicted time of a step of each phase, and the interval.
 * @param {{rows: () => Predicted[]}} options
 * @returns {import("../base/js/plot.mjs").Chart<Predicted>}
 */
function stepTimes({ rows }) {
  const tall = 2 * LINE + BETWEEN;
  return {
    label: "Times as recorded and as predicted, by phase. Arrow keys move.",
    height: () => Math.max(1, rows().length) * tall + 58,
    draw: (context, width, _height, now) => {
      const shown = rows();
      if (!shown.length) return [];
      const named = shown.map((row) => row.phase ?? "the recording");
      const mean = shown.some((row) => row.steps > 1) ? "mean " : "";
      const left = Math.max(...named.map((name) => textWidth(context, name, PLOT_TEXT))) + 18;
      const most = Math.max(1, ...shown.flatMap((row) => [row.recorded_ns, row.predicted_ns, row.high_ns]));
      const area = { left, top: 8, right: Math.max(left + 60, width - 92), bottom: 8 + shown.length * tall };
      const unit = plotUnit(most);
      const x = plotLinear([0, most / unit.ns], [area.left, area.right]);
      const ticks = plotTicks(0, most / unit.ns, Math.max(2, (area.right - left) / 90));
      for (const tick of ticks) plotLine(context, [x.to(tick), area.top], [x.to(tick), area.bottom], now.faint);
      plotAxes(context, area, now, {
        x: { scale: x, ticks, title: `${mean}time of ${timed(shown)} (${unit.symbol})`, over: 60 },
      });
      return shown.map((row, i) => {
        const y = area.top + i * tall + BETWEEN / 2;
        plotText(context, named[i], left - 8, y + LINE, now.ink, { align: "right" });
        const [recorded, predicted, low, high] = [row.recorded_ns, row.predicted_ns, row.low_ns, row.high_ns].map(
          (ns) => x.to(ns / unit.ns),
        );
        context.fillStyle = now.muted;
        context.fillRect(left, y, Math.max(1, recorded - left), LINE - 3);
        plotText(context, formatNs(row.recorded_ns), recorded + 6, y + LINE / 2 - 1, now.muted);
        const middle = y + LINE + LINE / 2 - 1;
        context.fillStyle = now.accent;
        context.fillRect(left, y + LINE, Math.max(1, predicted - left), LINE - 3);
        if (high - low > 1) {
          plotLine(context, [low, middle], [high, middle], now.ink, { width: 1.5 });
          for (const end of [low, high])
            plotLine(context, [end, middle - 4], [end, middle + 4], now.ink, { width: 1.5 });
        }
        plotText(context, formatNs(row.predicted_ns), Math.max(predicted, high) + 6, middle, now.ink, {
          bold: true,
        });
        return { x: 2, y: y - 2, w: width - 4, h: 2 * LINE, data: row };
      });
    },
    describe: (row) => [
      `${row.phase ?? "the recording"}: ${formatNumber(row.steps)} ${row.phase === null ? "ranks" : "steps"}`,
      ["recorded", formatNs(row.recorded_ns)],
      ["predicted", formatNs(row.predicted_ns)],
      ["between", `${formatNs(row.low_ns)} and ${formatNs(row.high_ns)}`],
      ["gain", formatNs(row.gain_ns)],
      ["gain between", `${formatNs(row.gain_low_ns)} and ${formatNs(row.gain_high_ns)}`],
    ],
  };
}

/** @type {import("../base/js/plot.mjs").TableColumn[]} */
const TIMES = [
  { name: "recorded_ns", title: "recorded", number: true, format: (value) => formatNs(value) },
  { name: "predicted_ns", title: "predicted", number: true, format: (value) => formatNs(value) },
  { name: "low_ns", title: "least", number: true, format: (value) => formatNs(value) },
  { name: "high_ns", title: "most", number: true, format: (value) => formatNs(value) },
  { name: "gain_ns", title: "gain", number: true, format: (value) => formatNs(value) },
  { name: "speedup", title: "times as fast", number: true, format: (value) => formatNumber(value) },
];

/**
 * @param {Predicted[]} rows
 * @returns {import("../base/js/plot.mjs").TableColumn[]}
 */
function columns(rows) {
  const stepped = rows.some((row) => row.phase !== null);
  return [
    { name: "phase", title: stepped ? "phase" : "", format: (value) => value ?? "the recording" },
    {
      name: "steps",
      title: stepped ? "steps, all ranks" : "ranks",
      number: true,
      format: (value) => formatNumber(value),
    },
    ...TIMES,
  ];
}

/**
 * Text to be copied, with its button.
 * @param {string} label
 */
function copied(label) {
  const text = h("pre", { class: "lp-code", tabindex: "0", role: "group", "aria-label": label });
  const button = copyButton(`Copy the ${label}`, () => text.textContent);
  return { el: h("div", {}, h("div", { class: "lp-bar" }, h("span", { text: label }), button), text), text };
}

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const root = h("div", { class: "lp-what_if" });
  el.append(root);
  const theme = followTheme(root, model, () => {
    panel.redraw();
    drawLegend();
  });
  const says = status(model, root);
  /** @type {import("./messages").Messages["choices"]["answers"] | null} */
  let choices = null;
  /** @type {Predicted[]} */
  let predicted = [];
  /** @type {Row[]} */
  let rows = [];
  const panel = plotPanel({ colours: () => theme.now(), ...stepTimes({ rows: () => predicted }) });
  const list = h("ol", { class: "lp-changes", "aria-label": "Changes, in their order" });
  const gain = h("p", { class: "lp-gain", role: "status" });
  const table = h("div", {});
  const legend = h("div", {});
  const python = copied("Python");
  const command = copied("command");
  const adds = h("div", { class: "lp-bar", role: "group", "aria-label": "Add a change" });

  const drawLegend = () => {
    const now = theme.now();
    fill(
      legend,
      plotLegend([
        ["recorded", now.muted],
        ["predicted; the line is its interval", now.accent],
      ]),
    );
  };
  let typing = 0;
  const texts = () => rows.map((row) => row.read());
  const now = () => {
    clearTimeout(typing);
    typing = 0;
    setTraits(model, { changes: texts() });
  };
  const changed = () => {
    clearTimeout(typing);
    typing = setTimeout(now, DEBOUNCE_MS);
  };
  const remove = (/** @type {Row} */ row) => {
    rows = rows.filter((one) => one !== row);
    drawRows();
    now();
  };
  const drawRows = () => {
    fill(
      list,
      rows.map((row) => row.el),
    );
    list.hidden = !rows.length;
  };
  /** @param {Offer} offer */
  const newRow = (offer) => changeRow(offer, choices?.works ?? [], { changed, remove });
  /** Rows as the trait has them: those that are there stay, since one of them may be in hand. */
  const follow = () => {
    const wanted = model.get("changes");
    if (typing) return; // a slider was moved since, and is about to be told
    if (JSON.stringify(wanted) === JSON.stringify(texts())) return;
    const offered = new Map((choices?.offers ?? []).map((offer) => [offer.name, offer]));
    const before = rows;
    rows = wanted.flatMap((text, i) => {
      const name = text.split(":")[0];
      const offer = offered.get(name) ?? { name: text, title: text, words: "", fields: [], why: "" };
      const row = before[i]?.name === offer.name ? before[i] : newRow(offer);
      row.write(text);
      return [row];
    });
    drawRows();
  };

  const predict = async () => {
    const changes = model.get("changes");
    try {
      const { msg } = await ask(model, "predict", { changes });
      says.error("");
      predicted = msg.rows;
      gain.textContent = msg.words;
      rows.forEach((row, i) => row.tell(msg.made[i]?.change === row.read() ? msg.made[i] : undefined));
      python.text.textContent = msg.python;
      command.text.textContent = msg.command;
      const caption = `Time of ${timed(predicted)}, recorded and predicted`;
      fill(table, plotTable(columns(predicted), predicted, { caption }));
      panel.redraw();
      root.dataset.shown = JSON.stringify({ changes });
    } catch (error) {
      says.failed(error);
    }
  };

  const start = async () => {
    try {
      choices = (await ask(model, "choices")).msg;
    } catch (error) {
      return says.failed(error);
    }
    if (choices.why) return fill(root, says.el, h("p", { class: "lp-empty", text: choices.why }));
    const add = (/** @type {Offer} */ offer) => {
      const button = labelledButton(`+ ${offer.title}`, offer.why || offer.words, () => {
        rows = [...rows, newRow(offer)];
        drawRows();
        now();
      });
      button.removeAttribute("aria-label");
      button.disabled = Boolean(offer.why);
      return button;
    };
    fill(adds, choices.offers.map(add));
    const cannot = choices.offers.filter((offer) => offer.why).map((offer) => `${offer.title}: ${offer.why}`);
    const impossible = cannot.length
      ? h(
          "details",
          { class: "lp-note" },
          h("summary", { text: `Not possible with this recording (${cannot.length})` }),
          h(
            "ul",
            {},
            cannot.map((text) => h("li", { text })),
          ),
        )
      : null;
    const interval =
      "Predicted by replaying the recorded dependencies. The interval holds what the changes cannot know and how much the steps differ, not what the profiler costs.";
    drawLegend();
    fill(
      root,
      says.el,
      plotPart("Changes", adds, impossible, list).el,
      gain,
      legend,
      h("div", { class: "lp-part" }, panel.el),
      h("div", { class: "lp-part" }, table),
      h("p", { class: "lp-note", text: interval }),
      plotPart("The same as code", python.el, command.el).el,
    );
    follow();
    drawRows();
    model.on("change:changes", () => {
      follow();
      predict();
    });
    return predict();
  };

  fill(root, says.el);
  start();
  return () => {
    clearTimeout(typing);
    theme.stop();
    says.stop();
    panel.stop();
  };
}

export default { render: orPicture(render) };
