// What keys, buttons and the wheel do to the timeline: methods of it.
import { aroundSpan, panWindow, zoomWindow } from "../base/js/geometry.mjs";
import { actionOf, wheelAction } from "./keys.mjs";
import { PATH } from "./rows.mjs";

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
    this.perform(action);
  },

  /**
   * Move the row or rank whose name has the focus, else the row of the selection.
   * @param {Element} target
   * @param {number} by
   */
  moveFocused(target, by) {
    const key = /** @type {HTMLElement | null} */ (target.closest("[data-key]"))?.dataset.key ?? "";
    const group = key.startsWith("g") ? this.described.groups.find((one) => `g${one.rank}` === key) : null;
    const number = group ? undefined : key ? Number(key.slice(1)) : this.hit?.row;
    if (group) this.moveItem({ rank: group.rank, label: group.label }, by);
    else if (number !== undefined) this.moveItem({ ...this.described.rows[number], number }, by);
  },

  /**
   * @param {string} action
   */
  perform(action) {
    /** @param {number} by */
    const scroll = (by) => this.mainPane.el.scrollBy({ top: by });
    /** @type {Record<string, () => unknown>} */
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
      across: () => this.goAcross(),
      mark: () => this.addMark(),
      list: () => this.hits.toggle(),
      flame: () => this.flame.toggle(),
      path: () => this.togglePath(),
    };
    todo[action]();
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
   */
  async neighbour(by) {
    if (!this.hit) {
      this.otherRow(1);
      return;
    }
    const { row, level, id } = this.hit;
    const answer = await this.get("neighbour", { row, level, id, by });
    if (answer?.msg.hit) this.choose(answer.msg.hit, { show: true });
  },

  /**
   * @param {number} by
   */
  async otherRow(by) {
    const items = [...this.pinnedPane.items, ...this.mainPane.items];
    const rows = [...new Set(items.flatMap((item) => item.levels.map((place) => place.row)))];
    const some = rows.filter((number) => this.described.rows[number].count);
    const at = some.indexOf(this.hit?.row ?? -1);
    const number = some[at < 0 ? 0 : (at + by + some.length) % some.length];
    if (number === undefined) return;
    const time = (this.window[0] + this.window[1]) / 2;
    const reach = (this.window[1] - this.window[0]) / 2;
    const answer = await this.get("pick", { row: number, level: 0, time, reach });
    if (answer?.msg.hit) this.choose(answer.msg.hit, { show: true });
  },
};
