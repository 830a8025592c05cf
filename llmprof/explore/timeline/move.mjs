// What keys, buttons and the wheel do to the timeline: methods of it.
import { saveFile } from "../base/js/dom.mjs";
import { aroundSpan, panWindow, zoomWindow } from "../base/js/geometry.mjs";
import { wayOf } from "../base/js/press.mjs";
import { actionOf, wheelAction } from "./keys.mjs";
import { PATH } from "./rows.mjs";

const REST_MS = 400;
const MOST_PAST = 100;

/** Actions on what is selected, or from there. */
const ON_SELECTION = new Set(["fit", "previous", "next", "rowup", "rowdown", "pin", "fold", "across", "mark"]);

/**
 * @satisfies {ThisType<import("./timeline.mjs").Timeline>}
 */
export const moving = {
  /**
   * @param {number} factor
   * @param {number} [at]
   */
  zoom(factor, at = 0.5) {
    this.move(zoomWindow(this.window, factor, at, this.whole));
  },

  /** Keep the window that is left, if it was rested on. */
  remember() {
    const now = performance.now();
    if (now - this.rested > REST_MS) {
      this.past = [...this.past.slice(-MOST_PAST), this.window];
      this.ahead = [];
    }
    this.rested = now;
  },

  /**
   * Show the window before the last zoom or move (-1), or the one after it (1).
   * @param {number} by
   */
  undo(by) {
    const [from, to] = by < 0 ? [this.past, this.ahead] : [this.ahead, this.past];
    const window = from.pop();
    if (!window) {
      this.said.textContent = by < 0 ? "Nothing to undo" : "Nothing to do again";
      return;
    }
    to.push(this.window);
    this.move(window, { kept: true });
    this.rested = Number.NEGATIVE_INFINITY;
  },

  /**
   * Side buttons of a mouse; above tabs their header takes them first.
   * @param {MouseEvent} event
   */
  sideButton(event) {
    const by = wayOf(event);
    if (!by || !this.window) return;
    event.preventDefault(); // the browser would leave the page
    event.stopPropagation();
    if (event.type === "mouseup") this.undo(by);
  },

  /** Save the selected range, or what is shown, as a trace for Perfetto. */
  async exportWindow() {
    const made = await this.get("export", { window: this.span ?? this.window });
    if (!made) return;
    saveFile(made.msg.file, made.buffers[0], "application/gzip");
    this.said.textContent = `Saved: ${made.msg.file}`;
  },

  /** Let the timeline fill the screen, or end that. */
  async toggleFull() {
    const root = /** @type {Document} */ (this.host.getRootNode());
    try {
      if (root.fullscreenElement) await document.exitFullscreen();
      else await this.host.requestFullscreen();
    } catch {
      this.status.error("This page lets no part of it fill the screen.");
    }
  },

  /**
   * @param {WheelEvent} event
   */
  wheel(event) {
    if (!this.window) return;
    const action = wheelAction(event, this.width);
    if (!action) return;
    event.preventDefault(); // with Ctrl the browser would zoom its page
    this.card.hide();
    if (action.pan !== undefined) this.move(panWindow(this.window, action.pan, this.whole));
    else this.zoom(action.zoom, this.shareAt(event));
  },

  /**
   * @param {WheelEvent} event
   */
  shareAt(event) {
    const left = this.head.getBoundingClientRect().left;
    return Math.max(0, Math.min(1, (event.clientX - left) / this.width));
  },

  /**
   * @param {KeyboardEvent} event
   */
  key(event) {
    const target = /** @type {Element} */ (event.target);
    const typing = target.closest("input, select, textarea");
    if (event.key === "Escape" && this.help.open()) {
      this.help.toggle(false);
      event.stopPropagation();
      return;
    }
    if (typing || !this.window) {
      event.stopPropagation();
      return;
    }
    if (target.closest("button") && (event.key === "Enter" || event.key === " ")) return;
    const by = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : 0;
    if (event.altKey && by && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      event.stopPropagation();
      this.moveFocused(target, by);
      return;
    }
    const action = actionOf(event);
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.repeat && this.turn && ON_SELECTION.has(action)) return; // a held key goes on only as fast as answers come
    this.perform(action);
  },

  /**
   * Move the row or rank whose name has the focus, else the row of the selection.
   * @param {Element} target
   * @param {number} by
   */
  moveFocused(target, by) {
    const key = /** @type {HTMLElement | null} */ (target.closest("[data-key]"))?.dataset.key ?? "";
    const group = this.described.groups.find((one) => `g${one.rank}` === key);
    /** @param {number} number */
    const moveRow = (number) => this.moveItem({ ...this.described.rows[number], number }, by);
    if (group) this.moveItem({ rank: group.rank, label: group.label }, by);
    else if (key) moveRow(Number(key.slice(1)));
    else this.inTurn(() => this.hit && moveRow(this.hit.row));
  },

  /**
   * Do what acts on the selection after what was asked before it: a key is meant for what the key before it selects.
   * @template T
   * @param {(current: () => boolean) => T} work  current() is false once something else is to be selected outright
   * @param {{anew?: boolean}} [options] anew: what is selected does not depend on what was, and what was asked is void
   * @returns {T | Promise<Awaited<T> | undefined>}
   */
  inTurn(work, { anew = false } = {}) {
    if (anew) this.anew();
    const { round } = this;
    const current = () => round === this.round && !this.stopped;
    const made = this.turn ? this.turn.then(() => (current() ? work(current) : undefined)) : work(current);
    if (made instanceof Promise) {
      const ended = () => {
        if (this.turn === turn) this.turn = null;
      };
      const turn = made.then(ended, ended);
      this.turn = turn;
    }
    return /** @type {any} */ (made);
  },

  /** What was asked before selects nothing any more. */
  anew() {
    this.round += 1;
    this.turn = null;
  },

  /**
   * @param {string} action
   */
  perform(action) {
    /** @param {number} by */
    const scroll = (by) => this.mainPane.el.scrollBy({ top: by });
    /** @type {Record<string, (current: () => boolean) => unknown>} */
    const todo = {
      in: () => this.zoom(0.7),
      out: () => this.zoom(1 / 0.7),
      left: () => this.move(panWindow(this.window, -0.2, this.whole)),
      right: () => this.move(panWindow(this.window, 0.2, this.whole)),
      up: () => scroll(-60),
      down: () => scroll(60),
      whole: () => this.move(this.whole),
      fit: () => this.fit(),
      previous: (current) => this.neighbour(-1, current),
      next: (current) => this.neighbour(1, current),
      rowup: (current) => this.otherRow(-1, current),
      rowdown: (current) => this.otherRow(1, current),
      pin: () => this.actOnSelected("pin"),
      fold: () => this.actOnSelected("fold"),
      search: () => this.tools.focusSearch(),
      clear: () => this.clear(),
      help: () => {
        this.leave();
        this.help.toggle();
      },
      across: (current) => this.goAcross(current),
      mark: () => this.addMark(),
      list: () => this.hits.toggle(),
      flame: () => this.flame.toggle(),
      path: () => this.togglePath(),
      query: () => this.query.toggle(),
      undo: () => this.undo(-1),
      redo: () => this.undo(1),
      full: () => this.toggleFull(),
      copy: () => this.copy(),
      export: () => this.exportWindow(),
    };
    const pointed = action === "mark" && this.pointed !== null; // where the pointer is, whatever is selected
    if (ON_SELECTION.has(action) && !pointed) this.inTurn(todo[action]);
    else todo[action](() => true);
  },

  /** Show the critical path, or hide it. */
  togglePath() {
    this.state.path = !this.state.path;
    this.rearranged();
    this.showLegend();
    this.follow();
  },

  /** Have the critical path computed where it is to be shown and is not known yet. */
  async follow() {
    if (!this.state.path || !this.described || this.described.rows.some((row) => row.kind === PATH)) return;
    if (await this.get("follow")) await this.load();
    const row = this.described.rows.find((one) => one.kind === PATH);
    if (row) this.said.textContent = row.note || `Critical path: ${row.count} parts`;
  },

  fit() {
    if (this.hit) this.move(aroundSpan(this.hit.start, this.hit.end, this.whole, 0.6));
    else if (this.span) this.move(aroundSpan(this.span[0], this.span[1], this.whole, 0.02));
  },

  /**
   * @param {"pin" | "fold"} kind
   */
  actOnSelected(kind) {
    const row = this.hit ? this.described.rows[this.hit.row] : null;
    if (row) this.act(kind, { ...row, number: this.hit?.row });
  },

  /**
   * @param {number} by
   * @param {() => boolean} current
   */
  async neighbour(by, current) {
    if (!this.hit) {
      await this.otherRow(1, current);
      return;
    }
    const { row, level, id } = this.hit;
    const answer = await this.get("neighbour", { row, level, id, by });
    if (answer?.msg.hit && current()) await this.choose(answer.msg.hit, { show: true });
  },

  /**
   * @param {number} by
   * @param {() => boolean} current
   */
  async otherRow(by, current) {
    const items = [...this.pinnedPane.items, ...this.mainPane.items];
    const rows = [...new Set(items.flatMap((item) => item.levels.map((place) => place.row)))];
    const some = rows.filter((number) => this.described.rows[number].count);
    const at = some.indexOf(this.hit?.row ?? -1);
    const number = some[at < 0 ? 0 : (at + by + some.length) % some.length];
    if (number === undefined) return;
    const time = (this.window[0] + this.window[1]) / 2;
    const reach = (this.window[1] - this.window[0]) / 2;
    const answer = await this.get("pick", { row: number, level: 0, time, reach });
    if (answer?.msg.hit && current()) await this.choose(answer.msg.hit, { show: true });
  },
};
