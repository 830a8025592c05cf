// Above the tabs: a chip for each filter, and back and forward through the views.
import { fill, h, labelledButton, orPicture, status } from "../base/js/dom.mjs";
import { wayOf } from "../base/js/press.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask } from "../base/js/wire.mjs";

const ROOT = ".llmprof-explorers";
const TYPED = "input, select, textarea, [contenteditable]";

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const theme = followTheme(el, model, () => {});
  const state = status(model, el, { saves: false });
  el.classList.add("lph");
  el.dataset.lmSuppressShortcuts = "true";
  /** @param {-1 | 1} by */
  const go = (by) => ask(model, "go", { by }).catch(state.failed);
  const back = labelledButton("←", "Back to the view before (Alt + ←)", () => go(-1));
  const forward = labelledButton("→", "Forward to the next view (Alt + →)", () => go(1));
  const chips = h("span", { class: "lph-chips", role: "group", "aria-label": "Filters" });
  const show = () => {
    back.disabled = !model.get("back");
    forward.disabled = !model.get("forward");
    const [held, picked] = [model.get("chips"), model.get("picked")];
    const narrow = () => ask(model, "narrow").catch(state.failed);
    const clear = () => ask(model, "clear").catch(state.failed);
    fill(
      chips,
      held.map(({ name, text, idle }) =>
        h(
          "button",
          {
            type: "button",
            class: idle ? "lph-chip lph-idle" : "lph-chip",
            title: `${idle || text} Click to remove this filter.`,
            "aria-label": `Remove the filter ${text}`,
            onclick: () => ask(model, "remove", { name }).catch(state.failed),
          },
          h("span", { text }),
          h("b", { text: "×" }),
        ),
      ),
      picked
        ? [
            h("span", { class: "lph-picked", text: `Picked: ${picked}` }),
            picked.startsWith("kernel ")
              ? null
              : labelledButton("Only this", `Only this: narrow the tabs to ${picked}`, narrow),
          ]
        : null,
      held.length || picked
        ? h("button", { type: "button", text: "Clear all", onclick: clear })
        : h("span", { class: "lph-none", text: "Selecting here highlights in the other tabs." }),
    );
  };
  /** @param {any} event */
  const way = (event) => {
    const by = wayOf(event);
    if (!by) return;
    const root = el.closest(ROOT) ?? el;
    const alone = event.target === document.body && document.querySelectorAll(ROOT).length < 2;
    if (!(alone || root.contains(event.target)) || (event.type === "keydown" && event.target.closest(TYPED))) return;
    event.preventDefault(); // the browser would leave the page
    event.stopPropagation();
    if (event.type !== "mousedown") go(/** @type {-1 | 1} */ (by));
  };
  const types = ["keydown", "mousedown", "mouseup"];
  for (const type of types) document.addEventListener(type, way, true);
  model.on("change:chips change:picked change:back change:forward", show);
  fill(el, back, forward, chips, state.el);
  show();
  return () => {
    for (const type of types) document.removeEventListener(type, way, true);
    theme.stop();
    state.stop();
  };
}

export default { render: orPicture(render) };
