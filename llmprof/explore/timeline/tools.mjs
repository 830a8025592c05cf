// The bar above the timeline: search, going to a step or layer, colours, zoom.
import { fill, h, labelled, menuOf } from "../base/js/dom.mjs";
import { foldable, KINDS } from "./rows.mjs";

/**
 * The bar, and the button to the late rank, which has its place in the corner: {el, late, update(described), …}.
 * @param {import("./timeline.mjs").Timeline} timeline
 */
export function makeTools(timeline) {
  /**
   * @param {string} text
   * @param {string} title
   * @param {string} action
   */
  const button = (text, title, action) =>
    h("button", {
      type: "button",
      text,
      title,
      "aria-label": title,
      onclick: () => timeline.window && timeline.perform(action),
    });
  const search = makeSearch(timeline);
  const goto = makeGoto(timeline);
  const colour = labelled(
    "Colour",
    [
      ["stage", "stage"],
      ["category", "category"],
    ],
    timeline.colourBy,
    (value) => {
      timeline.model.set("color_by", value === "category" ? "category" : "stage");
      timeline.model.save_changes();
    },
  );
  const view = makeViewMenu(timeline);
  const flame = button("Flame", "Flame graph of the selection (T)", "flame");
  flame.setAttribute("aria-expanded", "false");
  const path = button("Critical path", "Critical path: what set the pace of each step (X)", "path");
  const query = button("Query", "Query the tables in SQL (Q)", "query");
  query.setAttribute("aria-expanded", "false");
  const save = menuOf(
    "Save",
    h(
      "div",
      { class: "lpt-menubox" },
      button("View, as Python", "Copy the view as Python that shows it again", "copy"),
      button("Window, as a trace", "Save the selected range, or what is shown, for Perfetto", "export"),
    ),
  );
  const mark = button("Mark", "Set a mark at the selection (M)", "mark");
  const zooms = [
    button("−", "Zoom out (S)", "out"),
    button("+", "Zoom in (W)", "in"),
    button("Whole", "The whole trace (0)", "whole"),
    button("↶", "Undo the zoom (Ctrl + Z)", "undo"),
  ];
  const full = button("Full", "Fill the screen, or end that", "full");
  const help = button("?", "Keys (?)", "help");
  const zoom = h("span", { class: "lpt-set" });
  const rare = h("span", { class: "lpt-set" });
  const gathered = h("div", {});
  const more = menuOf("More", gathered);
  more.classList.add("lpt-more");
  for (const menu of [save, more]) {
    menu.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const pressed = /** @type {Element} */ (event.target).closest("button");
      if (!pressed || view.menu.contains(pressed)) return;
      // beside the other tools the keys go back to the notebook
      if (el.contains(more) && pressed.matches(":focus")) menu.querySelector("summary")?.focus();
      menu.open = false;
    });
  }
  const el = h("div", { class: "lp-bar lpt-bar", role: "toolbar", "aria-label": "Timeline" });
  /**
   * Put the tools side by side, or, where there is little room, those that are rarely used into a menu.
   * @param {boolean} narrow
   */
  const gather = (narrow) => {
    const rarely = [path, flame, query, mark];
    fill(rare, narrow ? [...rarely, full] : []);
    fill(gathered, narrow ? [goto.el, view.el, rare, save] : []);
    fill(zoom, narrow ? zooms : [...rarely, ...zooms, save, full], help);
    fill(el, search.el, narrow ? [more, colour.el] : [goto.el, colour.el, view.el], zoom, timeline.status.el);
  };
  gather(false);
  /** @param {import("./types").Rows} described */
  const update = (described) => {
    goto.el.hidden = path.hidden = !described.rows.some((row) => row.kind === "steps");
    colour.el.hidden = goto.el.hidden;
  };
  return {
    el,
    gather,
    late: view.late,
    update,
    /**
     * @param {import("./types").Rows} described
     * @param {import("./rows.mjs").State} state
     */
    arranged: (described, state) => {
      path.setAttribute("aria-pressed", String(Boolean(state.path)));
      view.update(described, state);
    },
    /** @param {string} by */
    colour: (by) => (colour.select.value = by),
    find: search.find,
    text: search.text,
    listed: search.listed,
    /** @param {boolean} open */
    flaming: (open) => flame.setAttribute("aria-expanded", String(open)),
    /** @param {boolean} open */
    querying: (open) => query.setAttribute("aria-expanded", String(open)),
    searchFromPython: search.fromPython,
    searchAgain: search.again,
    focusSearch: () => search.input.focus(),
  };
}

/**
 * @param {import("./timeline.mjs").Timeline} timeline
 */
function makeSearch(timeline) {
  const input = h("input", {
    type: "search",
    class: "lpt-search",
    placeholder: "Search names",
    "aria-label": "Search names",
  });
  const count = h("span", { class: "lpt-count", "aria-live": "polite" });
  let text = "";
  /** @type {number | null} */
  let index = null;
  let chosen = false; // whether the hit of the index has been gone to
  let typing = 0;
  /** @param {number} by */
  const go = (by) => {
    clearTimeout(typing);
    typing = 0;
    return by ? timeline.inTurn((current) => look(by, current)) : look(by, () => true);
  };
  /**
   * @param {number} by
   * @param {() => boolean} current
   */
  const look = async (by, current) => {
    if (!timeline.window) return;
    const wanted = input.value.trim();
    if (wanted !== text) {
      [text, index] = [wanted, null];
      timeline.model.set("search", wanted);
      timeline.model.save_changes();
      timeline.hits.update();
    }
    if (!wanted) {
      chosen = false;
      count.textContent = "";
      timeline.dimmed = null;
      timeline.draw();
      return;
    }
    const at = index === null || by === 0 ? null : chosen || by < 0 ? index + by : index;
    const answer = await timeline.get("search", { text: wanted, after: timeline.window[0], index: at });
    if (!answer || input.value.trim() !== wanted || !current()) return;
    const { msg } = answer;
    index = msg.hit ? msg.index : null;
    chosen = by !== 0;
    count.textContent = msg.count
      ? `${(msg.index + 1).toLocaleString("en-US")} of ${msg.count.toLocaleString("en-US")}`
      : "none";
    timeline.dimmed = msg.count ? new Set(msg.names) : null;
    if (msg.hit && by !== 0) await timeline.choose(msg.hit, { show: true });
    else timeline.draw();
  };
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      index = null;
      go(0);
    }, 200);
  });
  input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      input.value = "";
      go(0);
      timeline.mainPane.canvas.focus({ preventScroll: true });
    }
  });
  /**
   * @param {string} label
   * @param {string} text_
   * @param {number} by
   */
  const step = (label, text_, by) =>
    h("button", { type: "button", text: text_, "aria-label": label, title: label, onclick: () => go(by) });
  const list = h("button", {
    type: "button",
    text: "List",
    title: "List all hits (L)",
    "aria-expanded": "false",
    onclick: () => timeline.window && timeline.hits.toggle(),
  });
  const el = h(
    "span",
    { class: "lpt-set" },
    input,
    step("Previous hit (Shift + Enter)", "‹", -1),
    step("Next hit (Enter)", "›", 1),
    list,
    count,
  );
  /** Follow the trait, unless something else has been typed: before the first picture nothing could be looked for. */
  const fromPython = () => {
    const wanted = timeline.model.get("search") ?? "";
    if (input.value.trim() !== text) typing || go(0);
    else if (wanted !== text) find(wanted);
  };
  /** @param {boolean} open */
  const listed = (open) => list.setAttribute("aria-expanded", String(open));
  /**
   * Look for a name.
   * @param {string} name
   */
  const find = (name) => {
    input.value = name;
    index = null;
    go(0);
  };
  /** Count again when further rows have been found. */
  const again = () => {
    if (text && !chosen) go(0);
  };
  return { el, input, find, listed, fromPython, again, text: () => input.value.trim() };
}

/**
 * @param {import("./timeline.mjs").Timeline} timeline
 */
function makeGoto(timeline) {
  /** @param {string} name */
  const field = (name) =>
    h("input", { type: "number", min: "0", class: "lpt-number", "aria-label": name, placeholder: name });
  const [step, layer] = [field("step"), field("layer")];
  /** @param {HTMLInputElement} input */
  const number = (input) => (input.value === "" ? null : Number(input.value));
  const go = async () => {
    if (number(step) === null && number(layer) === null) return;
    const answer = await timeline.get("goto", {
      step: number(step),
      layer: number(layer),
      rank: timeline.model.get("rank") ?? null,
    });
    if (!answer) return;
    const [lo, hi] = answer.msg.window;
    timeline.move([lo - (hi - lo) * 0.02, hi + (hi - lo) * 0.02]);
  };
  /** @param {KeyboardEvent} event */
  const enter = (event) => event.key === "Enter" && go();
  for (const input of [step, layer]) input.addEventListener("keydown", enter);
  const button = h("button", { type: "button", text: "Go", "aria-label": "Go to the step or layer", onclick: go });
  return { el: h("span", { class: "lpt-set" }, step, layer, button) };
}

/**
 * What of the rows is shown: ranks, devices alone, their order; and a button that closes or opens all ranks.
 * @param {import("./timeline.mjs").Timeline} timeline
 */
function makeViewMenu(timeline) {
  const all = h("button", { type: "button", onclick: () => timeline.described && timeline.closeAll() });
  const devices = h("input", { type: "checkbox", onchange: () => change({ devices: devices.checked }) });
  const order = labelled(
    "Order",
    [
      ["late", "by rank, of many the late one first"],
      ["rank", "by rank"],
      ["waits", "who waits least first"],
      ["hand", "as they were moved"],
    ],
    "late",
    (value) => change({ order: /** @type {import("./rows.mjs").Order} */ (value) }),
  );
  const anew = h("button", {
    type: "button",
    text: "Undo moves",
    title: "Ranks and rows as they were before they were moved",
    onclick: () => timeline.described && timeline.orderAnew(),
  });
  const late = h("button", { type: "button", class: "lpt-latejump", hidden: true, onclick: () => timeline.goToLate() });
  const ranks = h("fieldset", { class: "lpt-ranks" });
  const kinds = h("fieldset", { class: "lpt-ranks" });
  const named = h("input", {
    type: "search",
    placeholder: "part of a row's name",
    "aria-label": "Rows named",
    oninput: () => change({ named: named.value }),
  });
  const folding = h("button", { type: "button", onclick: () => timeline.described && timeline.foldAll() });
  /** @param {Partial<import("./rows.mjs").State>} values */
  const change = (values) => {
    Object.assign(timeline.state, values);
    timeline.rearranged();
  };
  /**
   * Checkbox that takes a key out of a set of what is hidden, or puts it in.
   * @template {string | number} K
   * @param {string} text
   * @param {K} key
   * @param {() => Set<K>} hidden
   */
  const one = (text, key, hidden) => {
    const box = h("input", {
      type: "checkbox",
      onchange: () => {
        if (box.checked) hidden().delete(key);
        else hidden().add(key);
        timeline.rearranged();
      },
    });
    box.checked = !hidden().has(key);
    return h("label", { class: "lp-label" }, box, h("span", { text }));
  };
  const menu = menuOf(
    "Rows",
    h(
      "div",
      { class: "lpt-menubox" },
      order.el,
      h("label", { class: "lp-label" }, devices, h("span", { text: "devices only, without the host" })),
      h("span", { class: "lpt-set" }, named, folding),
      h(
        "span",
        { class: "lpt-set" },
        anew,
        h("span", { class: "lpt-hint", text: "Alt + ↑ ↓ on a name, or dragging it, moves it." }),
      ),
      kinds,
      ranks,
    ),
  );
  let listed = "";
  /**
   * @param {import("./types").Rows} described
   * @param {import("./rows.mjs").State} state
   */
  const update = (described, state) => {
    const closed = described.groups.every((group) => state.closed.has(group.rank));
    all.textContent = closed ? "Open all" : "Close all";
    all.title = closed ? "Show the rows of every rank" : "One line for each rank";
    const unfold = foldable(described).every((row) => state.folded.has(row));
    folding.textContent = unfold ? "Unfold all rows" : "Fold all rows";
    devices.checked = Boolean(state.devices);
    order.select.value = state.order ?? "late";
    order.select.options[3].disabled = !state.ranks?.length;
    anew.disabled = !state.ranks?.length && !state.moved?.length;
    const culprit = described.groups.find((group) => group.late && !state.hidden?.has(group.rank));
    late.hidden = !culprit;
    late.textContent = culprit ? `Late: ${culprit.label}` : "";
    late.title = culprit ? `Go to ${culprit.label}: the others wait for it` : "";
    if (named.value !== (state.named ?? "")) named.value = state.named ?? "";
    const present = Object.keys(KINDS).filter((kind) => described.rows.some((row) => row.kind === kind));
    const now = JSON.stringify([
      described.groups.map((group) => group.label),
      present,
      [...(state.hidden ?? [])],
      [...(state.kinds ?? [])],
    ]);
    if (now === listed) return;
    listed = now;
    const focused = /** @type {HTMLElement | null} */ (menu.querySelector("fieldset :focus"))?.parentElement
      ?.textContent;
    fill(
      kinds,
      h("legend", { text: "Kinds of rows" }),
      present.map((kind) => one(KINDS[kind], kind, () => timeline.state.kinds ?? new Set())),
    );
    fill(
      ranks,
      h("legend", { text: "Ranks" }),
      described.groups.map((group) => one(group.label, group.rank, () => timeline.state.hidden ?? new Set())),
    );
    const again = [...menu.querySelectorAll("fieldset label")].find((label) => label.textContent === focused);
    again?.querySelector("input")?.focus();
  };
  return { el: h("span", { class: "lpt-set" }, all, menu), menu, late, update };
}
