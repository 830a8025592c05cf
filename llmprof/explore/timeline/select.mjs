// What is under the pointer and what is selected: methods of the timeline.
import { formatNs, formatShare } from "../base/js/format.mjs";
import { aroundSpan, toNs } from "../base/js/geometry.mjs";
import { setTraits } from "../base/js/wire.mjs";
import { areaPanel } from "./area.mjs";
import { eventLines } from "./card.mjs";
import { formatSample } from "./draw.mjs";
import { arrangementOf, itemAt, levelOf, PATH } from "./rows.mjs";
import { binAt, eventAt, laneKey } from "./view.mjs";

/** @typedef {[string, string, () => void]} Action  Text, key and what it does. */

const DETAILS_ONLY = new Set(["start", "grid", "block", "registers a thread", "confidence"]);

/**
 * @satisfies {ThisType<import("./timeline.mjs").Timeline>}
 */
export const selecting = {
  /**
   * What is under a place of a pane: {row, number, level, time, event} or with a bin; null beside the rows.
   * @param {import("./timeline.mjs").Pane} pane
   * @param {number} x
   * @param {number} y
   */
  under(pane, x, y) {
    const found = itemAt(pane.items, y + pane.el.scrollTop);
    const { view } = this;
    if (!found || found.level < 0 || !view) return null;
    const time = toNs(x, this.window, this.width);
    const reach = (3 * (this.window[1] - this.window[0])) / this.width;
    const { y: top } = found.item.levels[found.level];
    /** @param {import("./types").Level} place */
    const at = (place) => {
      const lane = view.lanes.get(laneKey(place.row, place.level));
      const event = lane ? eventAt(view, lane, time, reach) : -1;
      const bin = lane && event < 0 ? binAt(view, lane, time) : null;
      const row = this.described.rows[place.row];
      return { row, number: place.row, level: place.level, time, reach, lane, event, bin };
    };
    // waits and idle time of a closed rank share a height
    const there = found.item.levels.filter((place) => place.y === top).map(at);
    return there.find((one) => one.event >= 0) ?? there.find((one) => one.bin) ?? there[0];
  },

  /**
   * @param {import("./timeline.mjs").Pane} pane
   * @param {number} x
   * @param {number} y
   * @param {{left: number, top: number}} offset
   */
  hover(pane, x, y, offset) {
    this.pointed = toNs(x, this.window, this.width);
    this.cross.style.transform = `translateX(${this.gutter + x}px)`;
    this.cross.style.display = "block";
    if (this.help.open()) return null; // a card would cover it
    const found = this.under(pane, x, y);
    const { left, top } = offset;
    const { view } = this;
    if (found && view && found.event >= 0) {
      const key = `${found.number}/${view.id[found.event]}`;
      const name = this.names.get(view.name[found.event]) ?? "";
      const more = this.hovered?.key === key ? (this.hovered.facts ?? []) : [];
      const lines = more.length ? more : eventLines(view, found.event, found.row, this.described.keys);
      this.card.show(left, top, name, lines);
      if (found.row.kind === PATH && found.level) this.hovered = null;
      else if (this.hovered?.key !== key) this.hoverFacts(key, found, left, top, name);
      else if (this.hovered) this.hovered.at = [left, top];
    } else if (found?.bin && found.row.kind !== "counter") {
      const key = this.described.keys[found.bin.code];
      this.card.show(left, top, found.row.label, [
        ["busy", formatShare(found.bin.busy)],
        ["mostly", key.name],
      ]);
    } else if (found?.lane && found.row.kind === "counter") {
      this.counterCard(found, left, top);
    } else {
      this.card.hide();
      this.hovered = null;
    }
    return found;
  },

  /**
   * @param {{row: import("./messages").Described, number: number, level: number, time: number, reach: number, lane: import("./types").Lane | undefined, event: number, bin: {busy: number, code: number} | null}} found
   * @param {number} left
   * @param {number} top
   */
  counterCard({ row, lane, time }, left, top) {
    if (!lane || !this.view) return;
    const { columns, samples, window } = this.view;
    const column = Math.floor(((time - window[0]) / (window[1] - window[0])) * columns);
    const value = samples[lane.bins * 2 * columns + columns + column];
    if (Number.isFinite(value)) this.card.show(left, top, row.label, [["value", formatSample(value, row.unit)]]);
    else this.card.hide();
  },

  /**
   * Facts for the card, asked for when the pointer has rested a moment.
   * @param {string} key
   * @param {{row: import("./messages").Described, number: number, level: number, time: number, reach: number, lane: import("./types").Lane | undefined, event: number, bin: {busy: number, code: number} | null}} found
   * @param {number} left
   * @param {number} top
   * @param {string} name
   */
  hoverFacts(key, found, left, top, name) {
    /** @type {[number, number]} */
    const at = [left, top];
    this.hovered = { key, at };
    clearTimeout(this.resting);
    if (!this.view) return;
    const asked = { row: found.number, id: this.view.id[found.event] }; // another view may be there in a moment
    this.resting = setTimeout(async () => {
      const answer = await this.get("hover", asked);
      if (!answer || this.hovered?.key !== key) return;
      this.hovered.facts = answer.msg.facts.filter(([label]) => !DETAILS_ONLY.has(label)).slice(0, 14);
      this.card.show(...this.hovered.at, answer.msg.hit.name.slice(0, 240) || name, this.hovered.facts);
    }, 90);
  },

  leave() {
    this.pointed = null;
    this.cross.style.display = "none";
    this.card.hide();
    this.hovered = null;
    clearTimeout(this.resting);
  },

  /**
   * @param {import("./timeline.mjs").Pane} pane
   * @param {number} x
   * @param {number} y
   * @returns {Promise<import("./messages").Hit | null | undefined>}
   */
  click(pane, x, y) {
    return this.inTurn((current) => this.choosePlace(pane, x, y, current), { anew: true });
  },

  /**
   * @param {import("./timeline.mjs").Pane} pane
   * @param {number} x
   * @param {number} y
   * @param {() => boolean} current
   */
  async choosePlace(pane, x, y, current) {
    const found = this.under(pane, x, y);
    if (!found) {
      this.clear();
      return null;
    }
    const { view } = this;
    const whose = found.row.kind === PATH && found.level > 0; // a rank of the critical path: the part there is meant
    const time =
      view && found.event >= 0 && !whose
        ? view.window[0] + view.start[found.event] + view.dur[found.event] / 2
        : found.time;
    const asked = { row: found.number, level: found.level, time, reach: found.reach };
    const answer = await this.get("pick", asked);
    if (!answer || !current()) return null;
    if (answer.msg.hit) this.choose(answer.msg.hit);
    else this.clear();
    return answer.msg.hit;
  },

  /**
   * @param {import("./timeline.mjs").Pane} pane
   * @param {number} x
   * @param {number} y
   */
  async doubleClick(pane, x, y) {
    const hit = (await this.click(pane, x, y)) ?? this.hit;
    if (hit) this.move(aroundSpan(hit.start, hit.end, this.whole, 0.6));
  },

  /**
   * Select a span that does not follow from the selection, such as a hit of a list.
   * @param {import("./messages").Hit} hit
   */
  goTo(hit) {
    return this.inTurn(() => this.choose(hit, { show: true }), { anew: true });
  },

  /**
   * Select a span and show what is known of it; show moves the picture where it would not be seen.
   * @param {import("./messages").Hit} hit
   * @param {{show?: boolean, sync?: boolean}} [options]
   */
  async choose(hit, { show = false, sync = true } = {}) {
    this.hit = hit;
    this.flows = [];
    this.target = null;
    this.setSpan(null);
    if (sync) {
      this.model.set("selection", { row: hit.row, id: hit.id });
      this.model.save_changes();
    }
    if (show) this.reveal(hit);
    this.showHit([], this.described.rows[hit.row].label, true); // keys act on it from now on
    this.draw();
    this.flame.update();
    const answer = await this.get("describe", { row: hit.row, id: hit.id });
    if (!answer || !this.chosen(hit)) return;
    this.showDetails(answer.msg);
    this.draw();
  },

  /**
   * Whether a span is the one that is selected.
   * @param {{row: number, id: number} | Record<string, any>} span
   */
  chosen({ row, id }) {
    return this.hit?.row === row && this.hit?.id === id;
  },

  /**
   * @param {Omit<import("./messages").Messages["describe"]["answers"], "hit" | "kind">} answer
   */
  showDetails({ facts, label, flows, target = null }) {
    const { hit } = this;
    if (!hit) return;
    this.flows = flows;
    this.target = target;
    if (target) this.revealRow(target);
    this.showHit(facts, label);
    this.said.textContent = `${hit.name}, ${facts
      .slice(0, 3)
      .map((fact) => fact.join(" "))
      .join(", ")}`;
  },

  /**
   * @param {[string, string][]} facts
   * @param {string} label
   * @param {boolean} [waits]
   */
  showHit(facts, label, waits = false) {
    const { hit } = this;
    if (!hit) return;
    const where = this.described.groups.find((group) => group.rank === this.described.rows[hit.row].rank)?.label ?? "";
    const across = this.across();
    /** @type {Action[]} */
    const actions = [
      ...(across ? [/** @type {Action} */ ([across.text, "G", () => this.perform("across")])] : []),
      ["Zoom to it", "F", () => this.perform("fit")],
      ["Previous", "[", () => this.perform("previous")],
      ["Next", "]", () => this.perform("next")],
      ["Copy as Python", "", () => this.copy()],
      ["Clear", "Esc", () => this.clear()],
    ];
    this.details.show(
      hit.name,
      this.paints.colour[hit.code],
      [["row", [where, label].filter(Boolean).join(" · ")], ...facts],
      actions,
      { waits },
    );
  },

  /** Where the selection leads, by its first arrow: {text, end} or {text, hit}; null where there is none. */
  across() {
    if (this.target) return { text: "Go to event", hit: this.target, end: null };
    const flow = this.flows[0];
    if (!flow || !this.hit) return null;
    const launched = flow[1].row === this.hit.row;
    return { text: launched ? "Go to launch" : "Go to kernel", end: flow[launched ? 0 : 1], hit: null };
  },

  /**
   * Select what launched the selected kernel, the first kernel of the selected call, or the event of a part.
   * @param {() => boolean} current
   */
  async goAcross(current) {
    const across = this.across();
    if (!across) return;
    if (across.hit) {
      await this.choose(across.hit, { show: true });
      return;
    }
    if (!across.end) return;
    const { row, level, time } = across.end;
    const answer = await this.get("pick", { row, level, time, reach: 1 });
    if (answer?.msg.hit && current()) await this.choose(answer.msg.hit, { show: true });
  },

  /**
   * @param {import("./messages").Hit} hit
   */
  reveal(hit) {
    const [lo, hi] = this.window;
    const px = ((hit.end - hit.start) / (hi - lo)) * this.width;
    if (hit.start < lo || hit.end > hi || px < 2) {
      const long = hit.end - hit.start;
      const span = px < 2 ? long * 40 : Math.max(hi - lo, long * 1.5);
      const middle = (hit.start + hit.end) / 2;
      this.move([middle - span / 2, middle + span / 2]);
    }
    this.revealRow(hit);
  },

  /**
   * Open and scroll to the row of a span where it is not seen.
   * @param {import("./messages").Hit} hit
   */
  revealRow(hit) {
    if (levelOf(this.pinnedPane.items, hit.row, hit.level)) return;
    const shown = () => levelOf(this.mainPane.items, hit.row, hit.level);
    if (!shown()?.place) {
      this.state.closed.delete(this.described.rows[hit.row].rank);
      this.state.folded.delete(hit.row);
      this.rearranged();
    }
    const found = shown();
    if (!found) return;
    const { el, height } = this.mainPane;
    const y = found.item.top + (found.place?.y ?? 0);
    if (y < el.scrollTop || y + 24 > el.scrollTop + height) el.scrollTop = Math.max(0, y - height / 2);
  },

  clear() {
    this.anew();
    this.hit = null;
    this.flows = [];
    this.target = null;
    this.setSpan(null);
    this.details.empty();
    this.model.set("selection", null);
    this.model.save_changes();
    this.flame.update();
    this.draw();
  },

  /**
   * Show the selection that Python has set; what a user selects while it is looked up stays.
   * @param {{again?: boolean}} [options] again: more may be known of it
   */
  async selectionFromPython({ again = false } = {}) {
    const wanted = this.model.get("selection");
    if (!this.described) return;
    if (!wanted) {
      if (this.hit) {
        this.hit = null;
        this.flows = [];
        this.target = null;
        this.details.empty();
        this.flame.update();
        this.draw();
      }
      return;
    }
    if (!again && this.chosen(wanted)) return;
    const answer = await this.get("describe", { row: wanted.row, id: wanted.id });
    if (!answer || !alike(this.model.get("selection"), wanted)) return;
    const known = this.chosen(wanted);
    this.hit = answer.msg.hit;
    if (!known) this.reveal(this.hit);
    this.showDetails(answer.msg);
    this.flame.update();
    this.draw();
  },

  /**
   * @param {import("./types").Window | null} span
   * @param {number[] | null} [rows]
   * @param {{sync?: boolean}} [options]
   */
  setSpan(span, rows = null, { sync = true } = {}) {
    this.span = span;
    this.spanRows = span ? rows : null;
    if (!sync) return;
    const values = { span, span_rows: this.spanRows, span_kind: null };
    const same = alike(this.model.get("span"), span) && alike(this.model.get("span_rows"), this.spanRows);
    if (!same) setTraits(this.model, values);
  },

  spanFromPython() {
    const [span, rows] = [this.model.get("span"), this.model.get("span_rows")];
    if (alike(span, this.span) && alike(rows, this.spanRows)) return;
    this.setSpan(span, rows, { sync: false });
    if (span) this.showSpan();
    else if (!this.hit) this.details.empty();
    if (rows?.length) this.showRow(rows[0]);
    this.flame.update();
    this.draw();
  },

  /**
   * Scroll to a row where it is not seen.
   * @param {number} number
   */
  showRow(number) {
    const item = this.mainPane.items.find((one) => one.levels.some((place) => place.row === number));
    if (!item) return;
    const { el, height } = this.mainPane;
    const outside = item.top < el.scrollTop || item.top + item.height > el.scrollTop + height;
    if (outside) el.scrollTop = Math.max(0, item.top - height / 3);
  },

  /**
   * Rows that are drawn between two heights of a pane.
   * @param {import("./timeline.mjs").Pane} pane
   * @param {number} from
   * @param {number} to
   */
  rowsBetween(pane, from, to) {
    const [low, high] = [from, to].map((y) => y + pane.el.scrollTop).sort((a, b) => a - b);
    /** @param {import("./types").Item} item */
    const inside = (item) =>
      item.levels.filter((place) => item.top + place.y <= high && item.top + place.y + place.height >= low);
    return [...new Set(pane.items.flatMap((item) => inside(item).map((place) => place.row)))];
  },

  /**
   * A range of time was dragged over, in some rows.
   * @param {number} from
   * @param {number} to
   * @param {number[] | null} rows
   */
  select(from, to, rows) {
    this.anew();
    this.hit = null;
    this.flows = [];
    this.target = null;
    this.model.set("selection", null);
    this.setSpan([Math.min(from, to), Math.max(from, to)], rows?.length ? rows : null);
    this.showSpan();
    this.flame.update();
    this.draw();
  },

  /** What is in the selected range. */
  async showSpan() {
    const { span, spanRows } = this;
    if (!span) return;
    const asked = { span, rows: spanRows, kind: this.model.get("span_kind"), color_by: this.colourBy };
    const answer = await this.get("span", asked);
    if (!answer || this.span !== span) return;
    /** @type {Action[]} */
    const actions = [
      ["Zoom to it", "F", () => this.perform("fit")],
      ["Flame graph", "T", () => this.flame.toggle(true)],
      ...(spanRows ? [/** @type {Action} */ (["All streams", "", () => this.select(span[0], span[1], null)])] : []),
      ["Copy as Python", "", () => this.copy()],
      ["Clear", "Esc", () => this.clear()],
    ];
    const title = `${formatNs(span[1] - span[0])} of ${answer.msg.title || "nothing"}`;
    const table = areaPanel(answer.msg, this.paints.colour, {
      pick: (name) => this.tools.find(name),
      choose: (kind) => setTraits(this.model, { span_kind: kind }),
    });
    this.details.show(title, null, answer.msg.facts, actions, { more: table });
    this.said.textContent = title;
  },

  /** The view as Python that shows it again, of this trace only. */
  async copy() {
    /** @type {Record<string, unknown>} */
    const view = {
      trace: this.described.trace,
      window: this.window.map(Math.round),
      color_by: this.colourBy,
      arrangement: arrangementOf(this.described, this.state),
    };
    if (this.span) view.span = this.span.map(Math.round);
    if (this.spanRows) view.span_rows = this.spanRows;
    if (this.hit) view.selection = { row: this.hit.row, id: this.hit.id };
    if (this.described.queries.length) view.queries = this.described.queries;
    if (this.model.get("search")) view.search = this.model.get("search");
    const text = `explore.timeline(trace, view=${pythonOf(view)})`;
    await navigator.clipboard?.writeText(text).catch(() => {});
    this.said.textContent = `Copied: ${text}`;
    this.copied = text;
  },
};

/**
 * A value as Python writes it.
 * @param {unknown} value
 * @returns {string}
 */
export function pythonOf(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object") {
    const parts = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonOf(one)}`);
    return `{${parts.join(", ")}}`;
  }
  return JSON.stringify(value);
}

/**
 * @param {unknown} a
 * @param {unknown} b
 */
function alike(a, b) {
  return JSON.stringify(a ?? null) === JSON.stringify(b ?? null);
}
