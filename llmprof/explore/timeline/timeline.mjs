// Timeline: ranks, streams, threads, steps and layers on one axis of time.
import { fill, h, orPicture, roving, status } from "../base/js/dom.mjs";
import { clampWindow } from "../base/js/geometry.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, Superseded, wordsOf } from "../base/js/wire.mjs";
import { makeCard, makeDetails, makeHelp } from "./card.mjs";
import { makePaints } from "./draw.mjs";
import { makeFlame } from "./flame.mjs";
import { fillGutter } from "./gutter.mjs";
import { makeHits } from "./hits.mjs";
import { followGutter, followMinimap, followPointer } from "./input.mjs";
import { makeMarks, marking } from "./marks.mjs";
import { moving } from "./move.mjs";
import { drawing, MAP_HEIGHT, RULER_HEIGHT } from "./paint.mjs";
import { makeQuery } from "./query.mjs";
import { arrangementOf, foldable, layOut, movedBy, stateOf, visibleItems } from "./rows.mjs";
import { selecting } from "./select.mjs";
import { makeTools } from "./tools.mjs";
import { readView, unknownNames } from "./view.mjs";

const SYNC_MS = 120;
const LEAST_ROOM = 120;
const LEAST_HEIGHT = 360;
const AROUND = 130;
const NARROW = 520;

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const timeline = new TimelineView(model, el);
  timeline.start();
  return () => timeline.stop();
}

/** @type {new () => typeof moving & typeof selecting & typeof drawing & typeof marking} */
const Behaviour = /** @type {any} */ (class {});
Object.assign(Behaviour.prototype, moving, selecting, drawing, marking);

/** @typedef {import("./types").Pane} Pane */

/** @typedef {TimelineView} Timeline */

class TimelineView extends Behaviour {
  // what build() and start() make
  /** @type {ReturnType<typeof followTheme>} */ theme;
  /** @type {ReturnType<typeof status>} */ status;
  /** @type {ReturnType<typeof makeTools>} */ tools;
  /** @type {Pane} */ pinnedPane;
  /** @type {Pane} */ mainPane;
  /** @type {HTMLElement} */ body;
  /** @type {ReturnType<typeof makeCard>} */ card;
  /** @type {ReturnType<typeof makeFlame>} */ flame;
  /** @type {ReturnType<typeof makeQuery>} */ query;
  /** @type {ReturnType<typeof makeHelp>} */ help;
  /** @type {ReturnType<typeof makeHits>} */ hits;
  /** @type {ReturnType<typeof makeMarks>} */ marks;
  /** @type {ReturnType<typeof makeDetails>} */ details;
  /** @type {ResizeObserver} */ observer;
  /** @type {() => void} */ onScreen;
  // what load() and resize() find out
  /** @type {import("./types").Rows} */ described;
  /** @type {import("./types").Paints} */ paints;
  /** @type {import("./types").Window} */ window;
  /** @type {number} */ width;
  /** @type {number} */ gutter;

  /**
   * @param {import("./messages").Model} model
   * @param {HTMLElement} el
   */
  constructor(model, el) {
    super();
    this.model = model;
    this.host = el;
    this.state = stateOf({ groups: [], rows: [] }, null);
    /** @type {number | null} */ this.pointed = null;
    /** @type {(() => void) | null} */ this.hoverAgain = null;
    /** @type {Map<number, string>} */ this.names = new Map();
    this.binCanvas = document.createElement("canvas");
    /** @type {import("./types").View | null} */ this.view = null;
    /** @type {import("./types").View | null} */ this.overview = null;
    /** @type {import("./messages").Hit | null} */ this.hit = null;
    /** @type {[import("./messages").ArrowEnd, import("./messages").ArrowEnd][]} */ this.flows = [];
    /** @type {import("./messages").Hit | null} the event of the part of the critical path that is selected */
    this.target = null;
    /** @type {Set<number> | null} */ this.dimmed = null;
    /** @type {import("./types").Window | null} */ this.span = null;
    /** @type {number[] | null} */ this.spanRows = null;
    /** @type {import("./types").Window | null} */ this.dragged = null;
    /** @type {number[] | null} */ this.draggedRows = null;
    this.frame = 0;
    /** @type {number | null} */ this.movedAt = null;
    /** @type {{key: string, at: [number, number], facts?: [string, string][]} | null} */
    this.hovered = null;
    this.resting = 0;
    /** @type {import("./types").View["asked"] | null} what the newest request for a view asked for */
    this.asked = null;
    /** @type {Promise<void> | null} what acts on the selection and has not ended yet */
    this.turn = null;
    /** @type {import("./types").Window[]} */ this.past = [];
    /** @type {import("./types").Window[]} */ this.ahead = [];
    this.rested = Number.NEGATIVE_INFINITY;
    this.round = 0; // counts what was selected outright
    this.copied = "";
    /** @type {{first: number, draw: number[], exact: number[], bytes: number}} */
    this.timings = { first: 0, draw: [], exact: [], bytes: 0 }; // for benchmarks
    Object.assign(el, { llmprofTimings: this.timings });
    this.stopped = false;
    this.narrow = false;
    this.gutterStops = () => {};
    this.build();
  }

  build() {
    const { model, host } = this;
    this.theme = followTheme(host, model, () => this.recolour());
    host.classList.add("lpt");
    // JupyterLab's own shortcuts must not see the keys that are typed here
    host.dataset.lmSuppressShortcuts = "true";
    this.status = status(model, host);
    this.tools = makeTools(this);
    this.head = h("canvas", {
      class: "lpt-head",
      role: "img",
      "aria-label": "Overview of the whole trace and time axis",
    });
    this.pinnedPane = this.makePane("lpt-pinned");
    this.mainPane = this.makePane("lpt-main");
    this.mainPane.canvas.tabIndex = 0;
    this.mainPane.canvas.setAttribute("role", "application");
    this.mainPane.canvas.setAttribute("aria-label", "Timeline. Press question mark for the keys.");
    this.cross = h("div", { class: "lpt-cross", "aria-hidden": "true" });
    this.edge = h("div", { class: "lpt-edge" });
    this.body = h(
      "div",
      { class: "lpt-body" },
      // what comes and goes here moves nothing else
      h("div", { class: "lpt-corner" }, this.status.busy, this.tools.late, this.edge),
      this.head,
      this.pinnedPane.el,
      this.mainPane.el,
      this.cross,
    );
    this.message = h("p", { class: "lpt-empty", hidden: true });
    this.legend = h("div", { class: "lpt-legend", "aria-label": "Colours" });
    this.details = makeDetails();
    this.said = h("div", { class: "lp-hidden", "aria-live": "polite" });
    this.hits = makeHits(this);
    this.marks = makeMarks(this);
    this.flame = makeFlame(this);
    this.query = makeQuery(this);
    fill(
      host,
      this.tools.el,
      this.body,
      this.message,
      this.legend,
      this.marks.el,
      this.hits.el,
      this.details.el,
      this.flame.el,
      this.query.el,
      this.said,
    );
    roving(this.tools.el);
    roving(this.mainPane.gutter, { down: true });
    this.card = makeCard(this.body);
    this.help = makeHelp(host);
  }

  /**
   * @param {string} name
   * @returns {Pane}
   */
  makePane(name) {
    const gutter = h("div", { class: "lpt-gutter" });
    const canvas = h("canvas", {});
    const inner = h("div", { class: "lpt-inner" }, canvas, gutter);
    const el = h("div", { class: `lpt-pane ${name}` }, inner);
    return { el, inner, gutter, canvas, items: [], shown: [], height: 0 };
  }

  async start() {
    const { model } = this;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.host);
    this.onScreen = () => this.resize();
    window.addEventListener("resize", this.onScreen);
    this.mainPane.el.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.host.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
    this.host.addEventListener("fullscreenchange", () => this.resize());
    for (const type of /** @type {const} */ (["mousedown", "mouseup"])) {
      this.host.addEventListener(type, (event) => this.sideButton(event));
    }
    for (const pane of [this.pinnedPane, this.mainPane]) followPointer(this, pane);
    this.gutterStops = followGutter(this, this.mainPane);
    followMinimap(this, this.head, MAP_HEIGHT);
    for (const target of [this.head, this.pinnedPane.canvas, this.mainPane.canvas]) {
      target.addEventListener("wheel", (/** @type {WheelEvent} */ event) => this.wheel(event), { passive: false });
    }
    model.on("change:window", () => this.windowFromPython());
    model.on("change:selection", () => this.selectionFromPython());
    model.on("change:span_kind", () => {
      if (!this.span) return;
      this.showSpan();
      this.flame.update();
    });
    model.on("change:span change:span_rows", () => queueMicrotask(() => this.spanFromPython()));
    model.on("change:color_by", () => this.recolour());
    model.on("change:height", () => this.resize());
    model.on("change:arrangement", () => this.arrangementFromPython());
    model.on("change:search", () => this.tools.searchFromPython());
    model.on("change:marks change:notes_problem", () => this.marksChanged());
    await this.load();
    this.find();
  }

  stop() {
    this.stopped = true;
    this.observer.disconnect();
    window.removeEventListener("resize", this.onScreen);
    this.theme.stop();
    this.status.stop();
    this.flame.stop();
    this.gutterStops();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.syncing);
  }

  /**
   * Ask; shows errors, and gives null for them and for requests that were superseded.
   * @template {keyof import("./messages").Messages} K
   * @param {K} what
   * @param {import("./messages").Messages[K]["asks"]} [args]
   * @returns {Promise<{msg: import("./messages").Messages[K]["answers"], buffers: DataView[]} | null>}
   */
  async get(what, args = {}) {
    try {
      const answer = await ask(this.model, what, args);
      this.status.error("");
      return this.stopped ? null : answer;
    } catch (error) {
      if (!(error instanceof Superseded)) this.status.error(wordsOf(error));
      return null;
    }
  }

  async load() {
    const answer = await this.get("rows");
    if (!answer) return;
    const first = !this.described;
    this.described = answer.msg;
    this.paints = makePaints(answer.msg.keys, this.theme.name());
    answer.msg.names.forEach((name, number) => this.names.set(number, name));
    if (first) {
      this.state = stateOf(answer.msg, this.model.get("arrangement"));
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
    if (first) {
      this.selectionFromPython();
      this.tools.searchFromPython();
    }
    this.marksChanged();
  }

  async find() {
    if (!this.described?.rows.length) return;
    if (!this.described.found) {
      const answer = await this.get("find");
      if (!answer) return;
    }
    await this.load();
    this.flame.update();
    this.recolour();
    if (this.hit) this.selectionFromPython({ again: true });
    this.tools.searchAgain();
    this.follow();
    this.host.dataset.found = "true";
  }

  recolour() {
    if (!this.described) return;
    this.paints = makePaints(this.described.keys, this.theme.name());
    this.stale = Boolean(this.view);
    this.overview = null;
    this.showLegend();
    this.tools.colour(this.colourBy);
    this.flame.recolour();
    if (this.span) this.showSpan();
    this.request();
  }

  get colourBy() {
    return this.model.get("color_by") ?? "stage";
  }

  /** @returns {[number, number]} */
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
    /** @type {import("./gutter.mjs").Act} */
    const act = (kind, item) => this.act(kind, item);
    fillGutter(this.mainPane.gutter, laid.items, false, act);
    fillGutter(this.pinnedPane.gutter, laid.pinned, true, act);
    this.pinnedPane.el.hidden = !laid.pinned.length;
    this.tools.arranged(this.described, this.state);
    this.resize();
  }

  /**
   * @param {string} kind
   * @param {{rank: number, number?: number, label: string, by?: number}} item
   */
  act(kind, item) {
    if (kind === "move") return this.moveItem(item, item.by ?? 0);
    if (kind === "path") return this.togglePath();
    const set = kind === "close" ? this.state.closed : kind === "fold" ? this.state.folded : this.state.pinned;
    const key = kind === "close" ? item.rank : item.number;
    if (key !== undefined && !set.delete(key)) set.add(key);
    this.rearranged();
  }

  /**
   * Move a rank, or a row among those of its rank, up (-1) or down.
   * @param {{rank: number, number?: number, label: string}} item
   * @param {number} by
   */
  moveItem({ rank, number, label }, by) {
    const moved = movedBy(this.described, this.state, { rank, number }, by);
    if (!moved) return;
    this.state = moved;
    this.rearranged();
    this.said.textContent = `${label} moved ${by < 0 ? "up" : "down"}`;
  }

  /** Ranks and rows as they were before any was moved. */
  orderAnew() {
    Object.assign(this.state, { order: "late", ranks: [], moved: [] });
    this.rearranged();
  }

  /** Scroll to the rank that the others wait for. */
  goToLate() {
    const late = this.mainPane.items.find((item) => item.type === "group" && item.late);
    if (!late) return;
    this.mainPane.el.scrollTop = Math.max(0, late.top - 8);
    /** @type {HTMLElement | null} */ (this.mainPane.gutter.querySelector(`[data-key="g${late.rank}"]`))?.focus();
  }

  /** Rows were arranged by hand: show them so, and let Python know. */
  rearranged() {
    this.arrange();
    this.arranged = arrangementOf(this.described, this.state);
    this.model.set("arrangement", this.arranged);
    this.model.save_changes();
  }

  arrangementFromPython() {
    const wanted = this.model.get("arrangement");
    if (!this.described || JSON.stringify(wanted) === JSON.stringify(this.arranged)) return;
    this.arranged = wanted;
    this.state = stateOf(this.described, wanted);
    this.arrange();
    if (this.spanRows?.length) this.showRow(this.spanRows[0]);
    this.request();
    this.showLegend();
    this.follow();
  }

  /** Fold all rows, or unfold them where all are folded. */
  foldAll() {
    const rows = foldable(this.described);
    this.state.folded = new Set(rows.every((row) => this.state.folded.has(row)) ? [] : rows);
    this.rearranged();
  }

  /** Close all ranks, or open them where all are closed. */
  closeAll() {
    if (!this.described) return;
    const ranks = this.described.groups.map((group) => group.rank);
    const closed = ranks.every((rank) => this.state.closed.has(rank));
    this.state.closed = new Set(closed ? [] : ranks);
    this.rearranged();
  }

  resize() {
    const total = this.host.clientWidth;
    if (!total || this.stopped) return;
    const narrow = total < NARROW;
    if (this.host.classList.toggle("lpt-narrow", narrow) !== this.narrow) this.tools.gather(narrow);
    this.narrow = narrow;
    if (!this.described || this.body.hidden) return;
    const gutter = narrow ? 84 : total < 900 ? 132 : 168;
    this.host.style.setProperty("--lpt-gutter", `${gutter}px`);
    const bar = this.mainPane.el.offsetWidth - this.mainPane.el.clientWidth;
    this.gutter = gutter;
    this.width = Math.max(LEAST_ROOM, total - gutter - bar);
    const pinned = this.pinnedPane;
    pinned.height = Math.min(pinned.content ?? 0, 200);
    const full = this.full();
    const whole = (full ? null : this.model.get("height")) ?? this.roomOnScreen(full ? 0 : AROUND);
    const room = whole - MAP_HEIGHT - RULER_HEIGHT - this.marksRoom() - pinned.height;
    this.mainPane.height = Math.max(60, full ? room : Math.min(room, this.mainPane.content ?? 60));
    for (const pane of [pinned, this.mainPane]) {
      pane.el.style.height = `${pane.height}px`;
      pane.inner.style.height = `${Math.max(pane.content ?? 0, pane.height)}px`;
    }
    this.draw();
    this.request();
  }

  /** Whether the timeline fills the screen. */
  full() {
    return /** @type {Document} */ (this.host.getRootNode()).fullscreenElement === this.host;
  }

  /**
   * Height for the rows that lets the whole widget fit on the screen, with some room for the page around it.
   * @param {number} around
   */
  roomOnScreen(around) {
    const beside = this.full()
      ? [...this.host.children].reduce(
          (sum, one) =>
            sum + (one === this.body || one === this.help.el ? 0 : /** @type {HTMLElement} */ (one).offsetHeight),
          0,
        )
      : this.host.offsetHeight - this.body.offsetHeight;
    return Math.max(LEAST_HEIGHT, window.innerHeight - beside - around);
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
    const rows = [...this.pinnedPane.items, ...near].flatMap((item) => item.levels.map((place) => place.row));
    return [...new Set(rows)];
  }

  async request() {
    if (!this.described || !this.window || !this.width) return;
    const asked = { window: this.window, width: this.width, rows: this.wantedRows(), color_by: this.colourBy };
    this.asked = asked;
    this.host.dataset.exact = "false";
    const coming = this.get("view", asked);
    if (!this.overview) this.requestOverview();
    const answer = await coming;
    if (!answer) return;
    this.view = readView(answer.msg, answer.buffers);
    this.view.asked = asked;
    this.stale = true; // its bins are painted with the next picture
    const bytes = answer.buffers.reduce((sum, buffer) => sum + buffer.byteLength, 0);
    this.timings.bytes = Math.max(this.timings.bytes, bytes);
    const missing = unknownNames(this.view, this.names);
    if (missing.length) this.requestNames(missing);
    this.draw();
    this.hoverAgain?.();
  }

  async requestOverview() {
    this.overview = readView(
      { window: this.window, columns: 1, lanes: [] },
      Array(10).fill(new DataView(new ArrayBuffer(0))),
    );
    const answer = await this.get("overview", { width: this.width ?? LEAST_ROOM, color_by: this.colourBy });
    if (!answer) return;
    this.overview = readView(answer.msg, answer.buffers);
    this.draw();
  }

  /** @param {number[]} numbers */
  async requestNames(numbers) {
    const answer = await this.get("names", { numbers: numbers.slice(0, 5000) });
    if (!answer) return;
    if (this.names.size > 50000) this.names.clear();
    for (const [number, name] of Object.entries(answer.msg.names)) this.names.set(Number(number), name);
    this.draw();
  }

  // ---- window

  /**
   * @param {import("./types").Window} window
   * @param {{sync?: boolean, kept?: boolean}} [options] kept: the window that is left is kept already
   */
  move(window, { sync = true, kept = false } = {}) {
    if (!kept) this.remember();
    this.movedAt ??= performance.now();
    this.window = clampWindow(window, this.whole);
    this.draw();
    this.request();
    if (!sync) return;
    clearTimeout(this.syncing);
    this.syncing = setTimeout(() => this.syncWindow(), SYNC_MS);
  }

  syncWindow() {
    if (!this.window) return;
    this.sent = /** @type {[number, number]} */ ([...this.window]);
    this.model.set("window", this.sent);
    this.model.save_changes();
  }

  windowFromPython() {
    const wanted = this.model.get("window");
    /** @type {(a?: import("./types").Window | null, b?: import("./types").Window | null) => boolean} */
    const same = (a, b) => Boolean(a && b && Math.abs(a[0] - b[0]) < 1 && Math.abs(a[1] - b[1]) < 1);
    if (!this.described || same(wanted, this.sent) || same(wanted, this.window)) return;
    clearTimeout(this.syncing);
    this.move(wanted ?? this.whole, { sync: false });
    this.sent = null;
  }
}

export default { render: orPicture(render) };
