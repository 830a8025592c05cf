// The query box: SQL over the tables of the trace, and what comes of it. Names begin with "query".
import { copyButton, fill, h, saveFile } from "../base/js/dom.mjs";
import { formatNumber, nsAs } from "../base/js/format.mjs";
import { TABLE_BLOCK, tableGrid } from "../base/js/table.mjs";

const MOST = 12;
const FIRST = `select name, count(*) as count, sum(dur_ns) as total_ns
from kernels
group by name order by total_ns desc limit 20`;

/** @typedef {import("./messages").Messages["tables"]["answers"]} Known */
/** @typedef {import("./messages").Messages["query"]["answers"]} Result */

/**
 * What may stand at a place of a query: the names that continue the word before it, and where this word begins.
 * @param {string} text
 * @param {number} caret
 * @param {Known} known
 * @returns {{from: number, words: string[]}}
 */
export function queryCompletions(text, caret, { tables, words }) {
  const before = text.slice(0, caret);
  const part = /[A-Za-z_]\w*$/.exec(before)?.[0] ?? "";
  const from = caret - part.length;
  /** @type {string[]} */
  const said = text.toLowerCase().match(/[a-z_]\w*/g) ?? [];
  const named = tables.filter(({ name }) => said.includes(name));
  const of = /([A-Za-z_]\w*)\.$/.exec(before.slice(0, from))?.[1].toLowerCase();
  const columns = (of ? tables.filter(({ name }) => name === of) : named).flatMap((table) => table.columns);
  const afterFrom = /\b(from|join)\s+$/i.test(before.slice(0, from));
  const names = tables.map(({ name }) => name);
  const all = of ? columns : afterFrom ? names : [...columns, ...names, ...words];
  if (!part && !of && !afterFrom) return { from, words: [] };
  const low = part.toLowerCase();
  const fitting = [...new Set(all)].filter((word) => word.toLowerCase().startsWith(low) && word !== part);
  return { from, words: fitting.slice(0, MOST) };
}

/**
 * Where a place of a query is, as an offset.
 * @param {string} text
 * @param {number} line
 * @param {number} column
 */
export function queryOffset(text, line, column) {
  const lines = text.split("\n").slice(0, line - 1);
  return Math.min(text.length, lines.reduce((sum, one) => sum + one.length + 1, 0) + column - 1);
}

/**
 * The box: {el, toggle(open)}.
 * @param {import("./timeline.mjs").Timeline} timeline
 */
export function makeQuery(timeline) {
  const id = `lp-query-${Math.random().toString(36).slice(2)}`;
  /** @type {Known} */
  let known = { tables: [], words: [] };
  let asked = false; // for the tables
  let sort = "";
  let active = -1;
  /** @type {ReturnType<typeof queryCompletions>} */
  let offered = { from: 0, words: [] };
  const text = h("textarea", {
    class: "lpt-sql",
    rows: "4",
    spellcheck: "false",
    role: "combobox",
    "aria-label": "SQL query",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": id,
  });
  text.value = FIRST;
  const list = h("ul", {
    id,
    class: "lpt-offers",
    role: "listbox",
    "aria-label": "Tables, columns and words",
    hidden: true,
  });
  const problem = h("p", { class: "lp-error lpt-problem", role: "alert" });
  const note = h("span", { class: "lpt-hint", role: "status" });
  const code = h("code", { class: "lpt-python" });
  const copy = copyButton("Copy the query as Python", () => code.textContent);
  const result = h("div", {});
  /** @param {string} text_ @param {string} title @param {() => void} onclick */
  const button = (text_, title, onclick) => h("button", { type: "button", text: text_, title, onclick });
  const run = button("Run", "Run the query (Ctrl + Enter)", () => ask());
  const track = button("As a row", "Show the result as a row of its own on the timeline", () => asRow());
  const csv = button("CSV", "Save the result as a CSV file", () => save());
  const close = button("Close", "Key: Q", () => toggle(false));
  const python = h("p", { class: "lpt-hint", hidden: true }, "In Python: ", code, " ", copy);
  const el = h(
    "div",
    { class: "lpt-hits lpt-query", role: "group", "aria-label": "Query", hidden: true },
    h(
      "div",
      { class: "lpt-title" },
      h("strong", { text: "Query the tables of this trace in SQL" }),
      h("span", { class: "lpt-actions" }, run, track, csv, close),
    ),
    h("div", { class: "lpt-sqlbox" }, text, list),
    problem,
    note,
    result,
    python,
  );
  track.disabled = csv.disabled = true;

  const hide = () => {
    list.hidden = true;
    active = -1;
    text.setAttribute("aria-expanded", "false");
    text.removeAttribute("aria-activedescendant");
  };
  /** @param {string} word */
  const take = (word) => {
    const { from } = offered;
    text.setRangeText(word, from, text.selectionStart, "end");
    hide();
    text.focus();
  };
  const paint = () => {
    const options = offered.words.map((word, i) =>
      h("li", {
        id: `${id}-${i}`,
        role: "option",
        "aria-selected": String(i === active),
        text: word,
        onmousedown: (/** @type {MouseEvent} */ event) => {
          event.preventDefault(); // the focus stays in the text
          take(word);
        },
      }),
    );
    list.replaceChildren(...options);
    list.hidden = !options.length;
    text.setAttribute("aria-expanded", String(Boolean(options.length)));
    if (active >= 0) {
      text.setAttribute("aria-activedescendant", `${id}-${active}`);
      options[active].scrollIntoView({ block: "nearest" });
    } else text.removeAttribute("aria-activedescendant");
  };
  const offer = () => {
    offered = queryCompletions(text.value, text.selectionStart, known);
    active = -1;
    paint();
  };
  text.addEventListener("input", offer);
  text.addEventListener("blur", hide);
  text.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const open = !list.hidden;
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      hide();
      ask();
    } else if (event.key === " " && event.ctrlKey) offer();
    else if (open && by) {
      active = (active + by + offered.words.length) % offered.words.length;
      paint();
    } else if (open && (event.key === "Enter" || event.key === "Tab") && active >= 0) take(offered.words[active]);
    else if (open && event.key === "Tab" && offered.words.length === 1) take(offered.words[0]);
    else if (event.key === "Escape" && open) hide();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  const ask = async () => {
    sort = "";
    run.disabled = true;
    note.textContent = "…";
    const wanted = text.value.trim();
    const answer = await timeline.get("query", { text: wanted });
    run.disabled = false;
    if (answer) show(answer.msg, wanted);
    else note.textContent = "";
  };
  /**
   * @param {Result} msg
   * @param {string} wanted
   */
  const show = (msg, wanted) => {
    const wrong = Boolean(msg.problem);
    const place = msg.line ? `Line ${msg.line}, column ${msg.column}: ` : "";
    problem.textContent = wrong ? `${place}${msg.problem}` : "";
    text.setAttribute("aria-invalid", String(wrong));
    if (wrong) {
      note.textContent = "";
      if (msg.line && msg.column && text.value.trim() === wanted) {
        const lead = text.value.length - text.value.trimStart().length;
        const at = lead + queryOffset(wanted, msg.line, msg.column);
        text.focus();
        text.setSelectionRange(at, at + (/^\w+/.exec(text.value.slice(at))?.[0].length ?? 0));
      }
      return; // the last result stays
    }
    note.textContent = `${formatNumber(msg.total)} row${msg.total === 1 ? "" : "s"}${msg.places ? "; a click on one shows it on the timeline" : ""}`;
    track.disabled = !msg.spans || !msg.total;
    track.title = msg.spans
      ? "Show the result as a row of its own on the timeline"
      : "Needs the columns start_ns and dur_ns";
    csv.disabled = !msg.columns.length;
    code.textContent = msg.python;
    python.hidden = false;
    fill(result, msg.columns.length ? table(msg) : null);
    timeline.resize();
    if (msg.places && msg.total === 1) timeline.get("place", { row: 0, sort });
  };
  /** @param {Result} msg */
  const table = (msg) => {
    const grid = tableGrid({
      label: "Result of the query",
      height: 240,
      columns: msg.columns.map(({ name, number }, i) => {
        const words = name.endsWith("_ns") && number ? nsAs(msg.rows.map((row) => Number(row[i]))) : null;
        return {
          name,
          title: name,
          number,
          width: number ? 116 : 240,
          tip: words ? "durations and times in one unit; the file and the frame have ns" : undefined,
          cell: (/** @type {string[]} */ row) => (words && row[i] !== "" ? words(Number(row[i])) : row[i]),
        };
      }),
      load: async (first) => {
        const answer = await timeline.get("queried", { first, count: TABLE_BLOCK, sort });
        if (answer) grid.put(first, answer.msg.rows);
        else grid.forget(first);
      },
      sorted: async (wanted) => {
        sort = wanted;
        grid.order(wanted);
        grid.wait();
        const answer = await timeline.get("queried", { first: 0, count: TABLE_BLOCK, sort });
        if (answer) grid.show(msg.total, answer.msg.rows);
      },
      pick: (row) => msg.places && timeline.get("place", { row, sort }),
    });
    grid.show(msg.total, msg.rows.slice(0, TABLE_BLOCK));
    return grid.el;
  };
  const asRow = async () => {
    const answer = await timeline.get("track");
    if (!answer) return;
    await timeline.load();
    timeline.showRow(answer.msg.row);
    timeline.said.textContent = `The result is the row ${timeline.described.rows[answer.msg.row].label}`;
  };
  const save = async () => {
    const made = await timeline.get("csv", { sort });
    if (made) saveFile(made.msg.file, made.msg.content, "text/csv");
  };
  const toggle = async (open = el.hidden) => {
    const had = el.contains(document.activeElement) || text === text.getRootNode().activeElement;
    el.hidden = !open;
    timeline.tools.querying(open);
    timeline.resize();
    if (!open) {
      if (had) timeline.mainPane.canvas.focus({ preventScroll: true });
      return;
    }
    text.focus({ preventScroll: true });
    el.scrollIntoView({ block: "nearest" });
    if (asked) return;
    asked = true;
    const answer = await timeline.get("tables");
    if (answer) known = answer.msg;
    else asked = false;
  };
  return { el, toggle };
}
