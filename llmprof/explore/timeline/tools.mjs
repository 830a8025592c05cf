// The bar above the timeline: search, going to a step or layer, colours, zoom.
import { fill, h, labelled } from "../base/js/dom.mjs";

/** The bar: {el, update(described), colour(by), focusSearch()}. */
export function makeTools(timeline) {
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
      timeline.model.set("colour_by", value);
      timeline.model.save_changes();
    },
  );
  const view = makeViewMenu(timeline);
  const zoom = h(
    "span",
    { class: "lpt-set" },
    button("−", "Zoom out (S)", "out"),
    button("+", "Zoom in (W)", "in"),
    button("Whole", "The whole trace (0)", "whole"),
    button("?", "Keys (?)", "help"),
  );
  const el = h("div", { class: "lp-bar lpt-bar" }, search.el, goto.el, colour.el, view.el, zoom);
  const update = (described) => {
    goto.el.hidden = !described.rows.some((row) => row.kind === "steps");
    colour.el.hidden = goto.el.hidden;
  };
  return {
    el,
    update,
    arranged: view.update,
    colour: (by) => (colour.select.value = by),
    find: search.find,
    focusSearch: () => search.input.focus(),
  };
}

function makeSearch(timeline) {
  const input = h("input", {
    type: "search",
    class: "lpt-search",
    placeholder: "Search names",
    "aria-label": "Search names",
  });
  const count = h("span", { class: "lpt-count", "aria-live": "polite" });
  let text = "";
  let index = null;
  let chosen = false; // whether the hit of the index has been gone to
  let typing = 0;
  const go = async (by) => {
    if (!timeline.window) return;
    const wanted = input.value.trim();
    if (wanted !== text) [text, index] = [wanted, null];
    if (!wanted) {
      count.textContent = "";
      timeline.dimmed = null;
      timeline.draw();
      return;
    }
    const at = index === null || by === 0 ? null : chosen || by < 0 ? index + by : index;
    const answer = await timeline.get("search", { text: wanted, after: timeline.window[0], index: at });
    if (!answer || input.value.trim() !== wanted) return;
    const { msg } = answer;
    index = msg.hit ? msg.index : null;
    chosen = by !== 0;
    count.textContent = msg.count
      ? `${(msg.index + 1).toLocaleString("en-US")} of ${msg.count.toLocaleString("en-US")}`
      : "none";
    timeline.dimmed = msg.count ? new Set(msg.names) : null;
    if (msg.hit && by !== 0) timeline.choose(msg.hit, { show: true });
    else timeline.draw();
  };
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      index = null;
      go(0);
    }, 200);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      clearTimeout(typing);
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      input.value = "";
      go(0);
      timeline.mainPane.canvas.focus({ preventScroll: true });
    }
  });
  const step = (label, text_, by) =>
    h("button", { type: "button", text: text_, "aria-label": label, title: label, onclick: () => go(by) });
  const el = h(
    "span",
    { class: "lpt-set" },
    input,
    step("Previous hit (Shift + Enter)", "‹", -1),
    step("Next hit (Enter)", "›", 1),
    count,
  );
  /** Look for a name. */
  const find = (name) => {
    input.value = name;
    index = null;
    go(0);
  };
  return { el, input, find };
}

function makeGoto(timeline) {
  const field = (name) =>
    h("input", { type: "number", min: "0", class: "lpt-number", "aria-label": name, placeholder: name });
  const [step, layer] = [field("step"), field("layer")];
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
  const enter = (event) => event.key === "Enter" && go();
  for (const input of [step, layer]) input.addEventListener("keydown", enter);
  const button = h("button", { type: "button", text: "Go", "aria-label": "Go to the step or layer", onclick: go });
  return { el: h("span", { class: "lpt-set" }, step, layer, button) };
}

/** What of the rows is shown: ranks, devices alone, their order; and a button that closes or opens all ranks. */
function makeViewMenu(timeline) {
  const all = h("button", { type: "button", onclick: () => timeline.described && timeline.closeAll() });
  const devices = h("input", { type: "checkbox", onchange: () => change({ devices: devices.checked }) });
  const order = labelled(
    "Order",
    [
      ["rank", "by rank"],
      ["waits", "who waits least first"],
    ],
    "rank",
    (value) => change({ order: value }),
  );
  const ranks = h("fieldset", { class: "lpt-ranks" });
  const change = (values) => {
    Object.assign(timeline.state, values);
    timeline.arrange();
  };
  const one = (group, state) => {
    const box = h("input", {
      type: "checkbox",
      onchange: () => {
        if (box.checked) timeline.state.hidden.delete(group.rank);
        else timeline.state.hidden.add(group.rank);
        timeline.arrange();
      },
    });
    box.checked = !state.hidden.has(group.rank);
    return h("label", { class: "lp-label" }, box, h("span", { text: group.label }));
  };
  const menu = h(
    "details",
    { class: "lpt-menu" },
    h("summary", { text: "Rows" }),
    h(
      "div",
      { class: "lpt-menubox" },
      order.el,
      h("label", { class: "lp-label" }, devices, h("span", { text: "devices only, without the host" })),
      ranks,
    ),
  );
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
    event.stopPropagation();
  });
  let listed = "";
  const update = (described, state) => {
    const closed = described.groups.every((group) => state.closed.has(group.rank));
    all.textContent = closed ? "Open all" : "Close all";
    all.title = closed ? "Show the rows of every rank" : "One line for each rank";
    const groups = described.groups.map((group) => group.label).join();
    if (groups === listed) return;
    listed = groups;
    fill(
      ranks,
      h("legend", { text: "Ranks" }),
      described.groups.map((group) => one(group, state)),
    );
  };
  return { el: h("span", { class: "lpt-set" }, all, menu), update };
}
