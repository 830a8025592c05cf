// The slowest requests: a table with the parts of each latency as a bar, and what is known of the one that is picked.
import { fill, h, orPicture, status } from "../base/js/dom.mjs";
import { plotLegend } from "../base/js/plot.mjs";
import { whenReleased } from "../base/js/press.mjs";
import { TABLE_BLOCK, tableGrid } from "../base/js/table.mjs";
import { followTheme } from "../base/js/theme.mjs";
import { ask, setTraits } from "../base/js/wire.mjs";
import { requestColumns } from "./columns.mjs";

/** @param {{model: import("./messages").Model, el: HTMLElement}} view */
function render({ model, el }) {
  const said = h("p", { class: "lp-said" });
  const legend = h("div");
  const place = h("div");
  const details = h("div", { class: "lp-details" });
  const theme = followTheme(el, model, () => {});
  const state = status(model, el);
  /** @type {{parts: import("./messages").LatencyPart[], longest: number}} */
  let shown = { parts: [], longest: 0 };
  let sorted = model.get("sort");
  let round = 0;
  const grid = tableGrid({
    label: "Requests",
    columns: requestColumns(() => shown),
    load: async (offset) => {
      try {
        const { msg } = await ask(model, "rows", { sort: sorted, offset, count: TABLE_BLOCK });
        grid.put(msg.offset, msg.rows);
      } catch (error) {
        grid.forget(offset);
        state.failed(error);
      }
    },
    sorted: (sort) => setTraits(model, { sort }),
    pick: (row) => ask(model, "pick", { sort: sorted, row }).catch(state.failed),
    chosen: (row) => row.request === model.get("picked"),
  });
  fill(place, grid.el);

  const show = async () => {
    grid.order(model.get("sort"));
    grid.wait();
    const asked = model.get("sort");
    try {
      const { msg } = await ask(model, "table", { sort: asked, count: TABLE_BLOCK });
      // not under a pressed pointer: its click means the rows that are on the screen
      whenReleased(grid.el, () => {
        sorted = asked;
        shown = { parts: msg.parts, longest: msg.longest };
        said.textContent = msg.title;
        fill(legend, plotLegend(msg.parts.map(({ words, colour }) => [words, colour])));
        grid.show(msg.total, msg.rows);
      });
    } catch (error) {
      state.failed(error);
    }
  };

  /**
   * @param {string} title
   * @param {...HTMLElement} content
   */
  const part = (title, ...content) => h("section", {}, h("h3", { text: title }), ...content);
  /** @param {[string, string][]} pairs */
  const list = (pairs) =>
    h(
      "dl",
      {},
      pairs.flatMap(([label, text]) => [h("dt", { text: label }), h("dd", { text })]),
    );
  const detail = async () => {
    round += 1;
    const mine = round;
    grid.paint();
    const request = model.get("picked");
    if (request === null) {
      const text = "Pick a request to see what it waited for, and why its slowest step was slow.";
      fill(details, h("p", { class: "lp-empty", text }));
      return;
    }
    try {
      const { msg } = await ask(model, "details", { request });
      if (mine !== round) return;
      const reasons = msg.reasons.length
        ? h(
            "ul",
            {},
            msg.reasons.map((reason) => h("li", { text: reason.title })),
          )
        : h("p", { class: "lp-empty", text: "The trace does not say what took the time of this step." });
      fill(
        details,
        h(
          "div",
          { class: "lp-request" },
          part(`Request ${request}`, list(msg.facts)),
          part("What it took", list(msg.parts)),
          msg.step === null ? null : part(`Why step ${msg.step} was slow`, reasons),
        ),
      );
    } catch (error) {
      state.failed(error);
    }
  };

  fill(el, said, legend, place, state.el, details);
  model.on("change:sort", show);
  model.on("change:picked", detail);
  show();
  detail();
  return () => {
    theme.stop();
    state.stop();
  };
}

export default { render: orPicture(render) };
