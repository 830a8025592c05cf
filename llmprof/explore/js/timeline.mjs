// Timeline: ranks, streams, threads, steps and layers on one axis of time.
import { fitCanvas } from "./canvas.mjs";
import { fill, h, status } from "./dom.mjs";
import { formatNs, formatShare } from "./format.mjs";
import { aroundSpan, clampWindow, panWindow, toNs, toPx, zoomWindow } from "./geometry.mjs";
import { followTheme } from "./theme.mjs";
import { ask, Superseded } from "./wire.mjs";
import { eventLines, makeCard, makeDetails, makeHelp } from "./tl_card.mjs";
import { binImage, drawArrows, drawMinimap, drawOutline, drawPane, drawRuler, makePaints } from "./tl_draw.mjs";
import { fillGutter } from "./tl_gutter.mjs";
import { followMinimap, followPointer } from "./tl_input.mjs";
import { actionOf, wheelAction } from "./tl_keys.mjs";
import { foldedAtFirst, itemAt, layOut, visibleItems } from "./tl_rows.mjs";
import { makeTools } from "./tl_tools.mjs";
import { binAt, eventAt, laneKey, readView, unknownNames } from "./tl_view.mjs";

const MAP_HEIGHT = 38;
const RULER_HEIGHT = 22;
const SYNC_MS = 120;
const LEAST_ROOM = 120;

function render({ model, el }) {
  const timeline = new TimelineView(model, el);
  timeline.start();
  return () => timeline.stop();
}

class TimelineView {
  constructor(model, el) {
    this.model = model;
    this.host = el;
    this.state = { closed: new Set(), folded: new Set(), pinned: new Set() };
    this.names = new Map();
    this.binCanvas = document.createElement("canvas");
    this.described = null;
    this.view = null;
    this.overview = null;
    this.window = null;
    this.hit = null;
    this.flows = [];
    this.dimmed = null;
    this.frame = 0;
    this.timings = { first: 0, draw: [], exact: [], bytes: 0 }; // for benchmarks
    el.llmprofTimings = this.timings;
    this.stopped = false;
    this.build();
  }

  build() {
    const { model, host } = this;
    this.theme = followTheme(host, model, () => this.draw());
    host.classList.add("lpt");
    // JupyterLab's own shortcuts must not see the keys that are typed here
    host.dataset.lmSuppressShortcuts = "true";
    this.status = status(model, host);
    this.tools = makeTools(this);
    this.head = h("canvas", { class: "lpt-head", role: "img", "aria-label": "Overview of the whole trace and time axis" });
    this.pinnedPane = this.makePane("lpt-pinned");
    this.mainPane = this.makePane("lpt-main");
    this.mainPane.canvas.tabIndex = 0;
    this.mainPane.canvas.setAttribute("role", "application");
    this.mainPane.canvas.setAttribute("aria-label", "Timeline. Press question mark for the keys.");
    this.cross = h("div", { class: "lpt-cross", "aria-hidden": "true" });
    this.edge = h("div", { class: "lpt-edge" });
    this.body = h("div", { class: "lpt-body" },
      h("div", { class: "lpt-corner" }, this.edge), this.head, this.pinnedPane.el, this.mainPane.el, this.cross);
    this.message = h("p", { class: "lpt-empty", hidden: true });
    this.legend = h("div", { class: "lpt-legend", "aria-label": "Colours" });
    this.details = makeDetails();
    this.said = h("div", { class: "lp-hidden", "aria-live": "polite" });
    this.tools.el.append(this.status.el);
    fill(host, this.tools.el, this.body, this.message, this.legend, this.details.el, this.said);
    this.card = makeCard(this.body);
    this.help = makeHelp(host);
  }

  makePane(name) {
    const gutter = h("div", { class: "lpt-gutter" });
    const canvas = h("canvas", {});
    const inner = h("div", { class: "lpt-inner" }, gutter, canvas);
    const el = h("div", { class: `lpt-pane ${name}` }, inner);
    return { el, inner, gutter, canvas, items: [], shown: [], height: 0 };
  }

  async start() {
    const { model } = this;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.host);
    this.mainPane.el.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.host.addEventListener("keydown", (event) => this.key(event));
    for (const pane of [this.pinnedPane, this.mainPane]) followPointer(this, pane);
    followMinimap(this, this.head, MAP_HEIGHT);
    for (const target of [this.head, this.pinnedPane.canvas, this.mainPane.canvas]) {
      target.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    }
    model.on("change:window", () => this.windowFromPython());
    model.on("change:selection", () => this.selectionFromPython());
    model.on("change:span", () => this.spanFromPython());
    model.on("change:by", () => this.recolour());
    model.on("change:height", () => this.resize());
    await this.load();
    this.find();
  }

  stop() {
    this.stopped = true;
    this.observer.disconnect();
    this.theme.stop();
    this.status.stop();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.syncing);
  }

  /** Ask; shows errors, and gives null for them and for requests that were superseded. */
  async get(what, args = {}) {
    try {
      const answer = await ask(this.model, what, args);
      this.status.error("");
      return this.stopped ? null : answer;
    } catch (error) {
      if (!(error instanceof Superseded)) this.status.error(error.message);
      return null;
    }
  }

  async load() {
    const answer = await this.get("rows");
    if (!answer) return;
    const first = !this.described;
    this.described = answer.msg;
    this.paints = makePaints(answer.msg.keys);
    answer.msg.names.forEach((name, number) => this.names.set(number, name));
    if (first) {
      this.state.folded = foldedAtFirst(answer.msg);
      const wanted = this.model.get("window");
      this.window = clampWindow(wanted ?? answer.msg.whole, answer.msg.whole);
      this.spanFromPython();
    }
    const empty = !answer.msg.rows.length;
    this.body.hidden = empty;
    this.message.hidden = !empty && !answer.msg.missing;
    this.message.textContent = empty ? "This trace has no events to draw." : answer.msg.missing;
    this.tools.update(answer.msg);
    this.showLegend();
    this.arrange();
    if (first) this.selectionFromPython();
    this.resize();
  }

  async find() {
    if (!this.described?.rows.length) return;
    if (!this.described.found) {
      const answer = await this.get("find");
      if (!answer) return;
    }
    await this.load();
    this.recolour();
    if (this.hit) this.selectionFromPython();
  }

  recolour() {
    this.overview = null;
    this.showLegend();
    this.tools.colour(this.by);
    this.request();
  }

  get by() {
    return this.model.get("by") ?? "stage";
  }

  get whole() {
    return this.described?.whole ?? [0, 1];
  }

  // ---- size and rows

  arrange() {
    if (!this.described) return;
    const laid = layOut(this.described, this.state);
    this.mainPane.items = laid.items;
    this.mainPane.content = laid.height;
    this.pinnedPane.items = laid.pinned;
    this.pinnedPane.content = laid.pinnedHeight;
    const act = (kind, item) => this.act(kind, item);
    fillGutter(this.mainPane.gutter, laid.items, false, act);
    fillGutter(this.pinnedPane.gutter, laid.pinned, true, act);
    this.pinnedPane.el.hidden = !laid.pinned.length;
    this.resize();
  }

  act(kind, item) {
    const set = { close: this.state.closed, fold: this.state.folded, pin: this.state.pinned }[kind];
    const key = kind === "close" ? item.rank : item.number;
    if (!set.delete(key)) set.add(key);
    this.arrange();
  }

  resize() {
    if (!this.described || this.stopped) return;
    const total = this.body.clientWidth;
    if (!total) return;
    const gutter = total < 520 ? 84 : total < 900 ? 132 : 168;
    this.host.style.setProperty("--lpt-gutter", `${gutter}px`);
    this.host.classList.toggle("lpt-narrow", total < 520);
    const bar = this.mainPane.el.offsetWidth - this.mainPane.el.clientWidth;
    this.gutter = gutter;
    this.width = Math.max(LEAST_ROOM, total - gutter - bar);
    const pinned = this.pinnedPane;
    pinned.height = Math.min(pinned.content ?? 0, 200);
    const room = (this.model.get("height") ?? 460) - MAP_HEIGHT - RULER_HEIGHT - pinned.height;
    this.mainPane.height = Math.max(60, Math.min(room, this.mainPane.content ?? 60));
    for (const pane of [pinned, this.mainPane]) {
      pane.el.style.height = `${pane.height}px`;
      pane.inner.style.height = `${Math.max(pane.content ?? 0, pane.height)}px`;
    }
    this.draw();
    this.request();
  }

  scrolled() {
    this.draw();
    this.card.hide();
    this.request();
  }

  // ---- data

  /** Rows on the screen, and some beyond, so that scrolling shows something at once. */
  wantedRows() {
    const { el, height, items } = this.mainPane;
    const near = visibleItems(items, el.scrollTop - 80, height + 160);
    return [...this.pinnedPane.items, ...near].filter((item) => item.type === "row").map((item) => item.number);
  }

  async request() {
    if (!this.described || !this.window || !this.width) return;
    if (!this.overview) this.requestOverview();
    const asked = { window: this.window, width: this.width, rows: this.wantedRows(), by: this.by };
    const answer = await this.get("view", asked);
    if (!answer) return;
    this.view = readView(answer.msg, answer.buffers);
    this.view.of = asked.window;
    this.stale = true; // its bins are painted with the next picture
    const bytes = answer.buffers.reduce((sum, buffer) => sum + buffer.byteLength, 0);
    this.timings.bytes = Math.max(this.timings.bytes, bytes);
    this.draw();
    const missing = unknownNames(this.view, this.names);
    if (missing.length) this.requestNames(missing);
  }

  async requestOverview() {
    this.overview = { lanes: new Map(), columns: 1 };
    const answer = await this.get("overview", { width: this.width, by: this.by });
    if (!answer) return;
    this.overview = readView(answer.msg, answer.buffers);
    this.draw();
  }

  async requestNames(numbers) {
    const answer = await this.get("names", { numbers: numbers.slice(0, 5000) });
    if (!answer) return;
    if (this.names.size > 50000) this.names.clear();
    for (const [number, name] of Object.entries(answer.msg.names)) this.names.set(Number(number), name);
    this.draw();
  }

  // ---- window

  move(window, { sync = true } = {}) {
    this.movedAt ??= performance.now();
    this.window = clampWindow(window, this.whole);
    this.draw();
    this.request();
    if (!sync) return;
    clearTimeout(this.syncing);
    this.syncing = setTimeout(() => this.syncWindow(), SYNC_MS);
  }

  syncWindow() {
    this.sent = [...this.window];
    this.model.set("window", this.sent);
    this.model.save_changes();
  }

  windowFromPython() {
    const wanted = this.model.get("window");
    const same = (a, b) => a && b && Math.abs(a[0] - b[0]) < 1 && Math.abs(a[1] - b[1]) < 1;
    if (!this.described || same(wanted, this.sent) || same(wanted, this.window)) return;
    clearTimeout(this.syncing);
    this.move(wanted ?? this.whole, { sync: false });
  }

  zoom(factor, at = 0.5) {
    this.move(zoomWindow(this.window, factor, at, this.whole));
  }

  wheel(event) {
    if (!this.window) return;
    const action = wheelAction(event, this.width);
    const [lo, hi] = this.window;
    const out = action.zoom > 1 && hi - lo >= this.whole[1] - this.whole[0];
    if (out) return; // nothing to zoom out to: the page scrolls
    event.preventDefault();
    this.card.hide();
    if (action.pan !== undefined) this.move(panWindow(this.window, action.pan, this.whole));
    else this.zoom(action.zoom, this.shareAt(event));
  }

  shareAt(event) {
    const left = this.head.getBoundingClientRect().left;
    return Math.max(0, Math.min(1, (event.clientX - left) / this.width));
  }

  // ---- keys

  key(event) {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && this.help.open()) {
      this.help.toggle(false);
      event.stopPropagation();
      return;
    }
    if (typing || !this.window) {
      event.stopPropagation();
      return;
    }
    if (event.target.closest("button") && (event.key === "Enter" || event.key === " ")) return;
    const action = actionOf(event);
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    this.perform(action);
  }

  perform(action) {
    const scroll = (by) => this.mainPane.el.scrollBy({ top: by });
    const todo = {
      in: () => this.zoom(0.7),
      out: () => this.zoom(1 / 0.7),
      left: () => this.move(panWindow(this.window, -0.2, this.whole)),
      right: () => this.move(panWindow(this.window, 0.2, this.whole)),
      up: () => scroll(-60),
      down: () => scroll(60),
      whole: () => this.move(this.whole),
      fit: () => this.fit(),
      previous: () => this.neighbour(-1),
      next: () => this.neighbour(1),
      rowup: () => this.otherRow(-1),
      rowdown: () => this.otherRow(1),
      pin: () => this.actOnSelected("pin"),
      fold: () => this.actOnSelected("fold"),
      search: () => this.tools.focusSearch(),
      clear: () => this.clear(),
      help: () => this.help.toggle(),
    };
    todo[action]();
  }

  fit() {
    if (this.hit) this.move(aroundSpan(this.hit.start, this.hit.end, this.whole, 0.6));
    else if (this.span) this.move(aroundSpan(this.span[0], this.span[1], this.whole, 0.02));
  }

  actOnSelected(kind) {
    const row = this.hit ? this.described.rows[this.hit.row] : null;
    if (row) this.act(kind, { ...row, number: this.hit.row });
  }

  async neighbour(by) {
    if (!this.hit) {
      this.otherRow(1);
      return;
    }
    const { row, level, id } = this.hit;
    const answer = await this.get("neighbour", { row, level, id, by });
    if (answer?.msg.hit) this.choose(answer.msg.hit, { show: true });
  }

  async otherRow(by) {
    const rows = [...this.pinnedPane.items, ...this.mainPane.items].filter((item) => item.type === "row" && item.count);
    const at = rows.findIndex((item) => item.number === this.hit?.row);
    const item = rows[at < 0 ? 0 : (at + by + rows.length) % rows.length];
    if (!item) return;
    const time = (this.window[0] + this.window[1]) / 2;
    const reach = (this.window[1] - this.window[0]) / 2;
    const answer = await this.get("pick", { row: item.number, level: 0, time, reach });
    if (answer?.msg.hit) this.choose(answer.msg.hit, { show: true });
  }

  // ---- selection

  /** What is under a place of a pane: {item, level, time, event} or with a bin; null beside the rows. */
  under(pane, x, y) {
    const found = itemAt(pane.items, y + pane.el.scrollTop);
    if (!found || found.item.type !== "row" || found.level < 0 || !this.view) return null;
    const time = toNs(x, this.window, this.width);
    const lane = this.view.lanes.get(laneKey(found.item.number, found.level));
    const reach = (3 * (this.window[1] - this.window[0])) / this.width;
    const event = lane ? eventAt(this.view, lane, time, reach) : -1;
    const bin = lane && event < 0 ? binAt(this.view, lane, time) : null;
    return { ...found, time, reach, lane, event, bin };
  }

  hover(pane, x, y, offset) {
    this.cross.style.transform = `translateX(${this.gutter + x}px)`;
    this.cross.style.display = "block";
    const found = this.under(pane, x, y);
    const { left, top } = offset;
    if (found?.event >= 0) {
      const key = `${found.item.number}/${this.view.id[found.event]}`;
      const name = this.names.get(this.view.name[found.event]) ?? "";
      const more = this.hovered?.key === key ? (this.hovered.facts ?? []) : [];
      const lines = more.length ? more : eventLines(this.view, found.event, found.item, this.described.keys);
      this.card.show(left, top, name, lines);
      if (this.hovered?.key !== key) this.hoverFacts(key, found, left, top, name);
      else this.hovered.at = [left, top];
    } else if (found?.bin && found.item.kind !== "counter") {
      const key = this.described.keys[found.bin.code];
      this.card.show(left, top, found.item.label, [["busy", formatShare(found.bin.busy)], ["mostly", key.name]]);
    } else if (found?.lane && found.item.kind === "counter") {
      this.counterCard(found, left, top);
    } else {
      this.card.hide();
      this.hovered = null;
    }
    return found;
  }

  counterCard({ item, lane, time }, left, top) {
    const { columns, samples, window } = this.view;
    const column = Math.floor(((time - window[0]) / (window[1] - window[0])) * columns);
    const value = samples[lane.bins * 2 * columns + columns + column];
    if (Number.isFinite(value)) this.card.show(left, top, item.label, [["value", `${value.toPrecision(4)} ${item.unit}`]]);
    else this.card.hide();
  }

  /** Facts for the card, asked for when the pointer has rested a moment. */
  hoverFacts(key, found, left, top, name) {
    this.hovered = { key, at: [left, top] };
    clearTimeout(this.resting);
    this.resting = setTimeout(async () => {
      const answer = await this.get("hover", { row: found.item.number, id: this.view.id[found.event] });
      if (!answer || this.hovered?.key !== key) return;
      this.hovered.facts = answer.msg.facts.slice(0, 14);
      this.card.show(...this.hovered.at, answer.msg.hit.name.slice(0, 240) || name, this.hovered.facts);
    }, 90);
  }

  leave() {
    this.cross.style.display = "none";
    this.card.hide();
    this.hovered = null;
    clearTimeout(this.resting);
  }

  async click(pane, x, y) {
    const found = this.under(pane, x, y);
    if (!found) {
      this.clear();
      return null;
    }
    const time = found.event >= 0 ? this.view.window[0] + this.view.start[found.event] + this.view.dur[found.event] / 2 : found.time;
    const asked = { row: found.item.number, level: found.level, time, reach: found.reach };
    const answer = await this.get("pick", asked);
    if (!answer) return null;
    if (answer.msg.hit) this.choose(answer.msg.hit);
    else this.clear();
    return answer.msg.hit;
  }

  async doubleClick(pane, x, y) {
    const hit = (await this.click(pane, x, y)) ?? this.hit;
    if (hit) this.move(aroundSpan(hit.start, hit.end, this.whole, 0.6));
  }

  /** Select a span and show what is known of it; show moves the picture where it would not be seen. */
  async choose(hit, { show = false, sync = true } = {}) {
    this.hit = hit;
    this.flows = [];
    this.setSpan(null);
    if (sync) {
      this.model.set("selection", { row: hit.row, id: hit.id });
      this.model.save_changes();
    }
    if (show) this.reveal(hit);
    this.draw();
    const answer = await this.get("describe", { row: hit.row, id: hit.id });
    if (!answer || this.hit?.id !== hit.id || this.hit?.row !== hit.row) return;
    this.flows = answer.msg.flows;
    this.showDetails(answer.msg);
    this.draw();
  }

  showDetails({ facts, label }) {
    const { hit } = this;
    const where = this.described.groups.find((group) => group.rank === this.described.rows[hit.row].rank)?.label ?? "";
    const actions = [
      ["Zoom to it", "F", () => this.fit()],
      ["Previous", "[", () => this.neighbour(-1)],
      ["Next", "]", () => this.neighbour(1)],
      ["Clear", "Esc", () => this.clear()],
    ];
    this.details.show(hit.name, this.paints.colour[hit.code], [["row", `${where} · ${label}`], ...facts], actions);
    this.said.textContent = `${hit.name}, ${facts.slice(0, 3).map((fact) => fact.join(" ")).join(", ")}`;
  }

  reveal(hit) {
    const [lo, hi] = this.window;
    const px = ((hit.end - hit.start) / (hi - lo)) * this.width;
    if (hit.start < lo || hit.end > hi || px < 2) {
      const long = hit.end - hit.start;
      const span = px < 2 ? long * 40 : Math.max(hi - lo, long * 1.5);
      const middle = (hit.start + hit.end) / 2;
      this.move([middle - span / 2, middle + span / 2]);
    }
    const rank = this.described.rows[hit.row].rank;
    if (this.state.closed.delete(rank) || (hit.level > 0 && this.state.folded.delete(hit.row))) this.arrange();
    const item = this.mainPane.items.find((one) => one.number === hit.row);
    if (!item) return;
    const { el, height } = this.mainPane;
    const y = item.top + (item.levels[hit.level]?.y ?? 0);
    if (y < el.scrollTop || y + 24 > el.scrollTop + height) el.scrollTop = Math.max(0, y - height / 2);
  }

  clear() {
    this.hit = null;
    this.flows = [];
    this.setSpan(null);
    this.details.empty();
    this.model.set("selection", null);
    this.model.save_changes();
    this.draw();
  }

  async selectionFromPython() {
    const wanted = this.model.get("selection");
    if (!this.described) return;
    if (!wanted) {
      if (this.hit) {
        this.hit = null;
        this.flows = [];
        this.details.empty();
        this.draw();
      }
      return;
    }
    const known = this.hit && wanted.row === this.hit.row && wanted.id === this.hit.id;
    const answer = await this.get("describe", wanted);
    if (!answer) return;
    this.hit = answer.msg.hit;
    this.flows = answer.msg.flows;
    if (!known) this.reveal(this.hit);
    this.showDetails(answer.msg);
    this.draw();
  }

  setSpan(span, { sync = true } = {}) {
    this.span = span;
    if (sync && JSON.stringify(this.model.get("span")) !== JSON.stringify(span)) {
      this.model.set("span", span);
      this.model.save_changes();
    }
  }

  spanFromPython() {
    const span = this.model.get("span");
    if (JSON.stringify(span ?? null) === JSON.stringify(this.span ?? null)) return;
    this.setSpan(span, { sync: false });
    if (span) this.showSpan();
    else if (!this.hit) this.details.empty();
    this.draw();
  }

  /** A range of time was dragged over. */
  select(from, to) {
    this.hit = null;
    this.flows = [];
    this.model.set("selection", null);
    this.setSpan([Math.min(from, to), Math.max(from, to)]);
    this.showSpan();
    this.draw();
  }

  async showSpan() {
    const { span } = this;
    const answer = await this.get("summary", { span });
    if (!answer || this.span !== span) return;
    const actions = [["Zoom to it", "F", () => this.fit()], ["Clear", "Esc", () => this.clear()]];
    const title = `${formatNs(span[1] - span[0])} selected`;
    this.details.show(title, null, answer.msg.facts, actions);
    this.said.textContent = title;
  }

  // ---- drawing

  draw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    if (!this.described || !this.window || !this.width || this.stopped) return;
    const began = performance.now();
    if (this.stale) binImage(this.view, this.paints, this.binCanvas);
    this.stale = false;
    const scene = {
      view: this.view, bins: this.binCanvas, window: this.window, whole: this.whole, width: this.width,
      theme: this.theme.now(), paints: this.paints, names: this.names, dimmed: this.dimmed,
      span: this.dragged ?? this.span,
    };
    const head = fitCanvas(this.head, this.width, MAP_HEIGHT + RULER_HEIGHT);
    drawMinimap(head, MAP_HEIGHT, scene, this.overview);
    drawRuler(head, MAP_HEIGHT, RULER_HEIGHT, scene);
    for (const pane of [this.pinnedPane, this.mainPane]) if (pane.height) this.paintPane(pane, scene);
    this.edge.textContent = `${formatNs(this.window[1] - this.window[0])} shown`;
    this.host.dataset.shown = JSON.stringify(this.window.map(Math.round));
    this.measure(began);
  }

  paintPane(pane, scene) {
    const scroll = pane.el.scrollTop;
    const context = fitCanvas(pane.canvas, this.width, pane.height);
    const items = visibleItems(pane.items, scroll, pane.height);
    drawPane(context, items, scroll, pane.height, scene);
    const item = this.hit && items.find((one) => one.number === this.hit.row);
    if (item) drawOutline(context, this.hit, item, scroll, scene);
    if (this.flows.length) {
      const ends = this.flows.map((flow) => flow.map((end) => this.placeOf(pane, end, scroll)));
      drawArrows(context, ends.filter(([a, b]) => a && b), scene.theme);
    }
  }

  placeOf(pane, { row, level, time }, scroll) {
    const item = pane.items.find((one) => one.number === row);
    if (!item) return null;
    const at = item.levels[Math.min(level, item.levels.length - 1)];
    return { x: toPx(time, this.window, this.width), y: item.top - scroll + at.y + at.height / 2 };
  }

  showLegend() {
    if (!this.described) return;
    const codes = this.described.present[this.by] ?? [];
    const chip = (code) => {
      const swatch = h("i", { class: "lpt-swatch" });
      swatch.style.background = this.paints.colour[code];
      return h("span", { class: "lpt-chip" }, swatch, this.described.keys[code].name.replaceAll("_", " "));
    };
    fill(this.legend, codes.map(chip));
  }

  /** Note how long drawing took, and how long after it was asked for the picture has all its detail. */
  measure(began) {
    const now = performance.now();
    const { timings } = this;
    timings.draw.push(now - began);
    if (this.view?.of === this.window) {
      timings.first ||= performance.timeOrigin + now;
      if (this.movedAt) timings.exact.push(now - this.movedAt);
      this.movedAt = null;
    }
    for (const list of [timings.draw, timings.exact]) if (list.length > 2000) list.splice(0, 1000);
  }
}

export default { render };
