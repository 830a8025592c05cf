// Names in little room: where their beginnings read alike, what tells them apart is shown.
import { FONT, textWidth } from "./canvas.mjs";
import { h } from "./dom.mjs";

const SIZE = 12;
const SLACK = 0.5; // the browser places letters a little differently than their widths say
const LEAST_HEAD = 6;
const MOST_BACK = 12;

/**
 * The largest number below `end` that holds, of numbers that hold up to some; 0 where none does.
 * @param {number} end
 * @param {(count: number) => boolean} holds
 */
function most(end, holds) {
  let [low, high] = [0, end];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (holds(middle)) low = middle;
    else high = middle;
  }
  return low;
}

/**
 * @param {Iterable<string>} names
 * @param {(name: string) => string} key
 */
function grouped(names, key) {
  /** @type {Map<string, string[]>} */
  const groups = new Map();
  for (const name of names) groups.set(key(name), [...(groups.get(key(name)) ?? []), name]);
  return groups;
}

/**
 * What to show of names that would read alike if they were cut at their end: each with its beginning, and with the rest
 * from where it differs. Names that are not in the answer can be cut at their end.
 * @param {Iterable<string>} names
 * @param {(text: string) => boolean} fits
 * @returns {Map<string, string>}
 */
export function distinct(names, fits) {
  /** @param {string} text */
  const cut = (text) => {
    if (fits(text)) return text;
    const count = most(text.length, (many) => fits(`${text.slice(0, many)}…`));
    const kept = text.slice(0, count);
    return `${/\d/.test(text[count]) ? kept.replace(/(?<=\D)\d+$/, "") : kept}…`; // half a number is another one
  };
  /**
   * A name without what is before a place, but for as much of its beginning as fits, and at least so much.
   * @param {string} name
   * @param {number} from
   * @param {number} [least]
   */
  const without = (name, from, least = 0) => {
    const rest = name.slice(from);
    const count = most(from, (many) => fits(`${name.slice(0, many)}…${rest}`));
    return cut(`${name.slice(0, Math.min(from, Math.max(count, least)))}…${rest}`);
  };
  /** @param {string} name */
  const mostOfRoom = (name) => most(name.length, (many) => fits(name.slice(0, many) + name.slice(0, many / 2)));
  /** @type {Map<string, string>} */
  const made = new Map();
  /** @param {string[]} alike */
  const tell = (alike) => {
    let same = 0;
    while (alike.every((name) => name[same] !== undefined && name[same] === alike[0][same])) same += 1;
    const word = /[^A-Za-z0-9]*[A-Za-z0-9]*$/.exec(alike[0].slice(0, same))?.index ?? same;
    const from = same - word > MOST_BACK ? same : word;
    let parts = grouped(alike, (name) => without(name, from, mostOfRoom(name)));
    if (parts.size < alike.length) parts = grouped(alike, (name) => without(name, from, LEAST_HEAD));
    if (parts.size === 1) parts = grouped(alike, (name) => without(name, same));
    for (const [text, group] of parts) {
      if (group.length === 1) made.set(group[0], text);
      else if (group.length < alike.length) tell(group);
    }
  };
  const taken = grouped(new Set(names), cut);
  for (const group of taken.values()) if (group.length > 1) tell(group);
  for (const [name, text] of made) {
    let now = text;
    for (let count = 2; taken.has(now); count += 1) now = cut(`${count}: ${text}`);
    taken.set(now, [name]);
    made.set(name, now);
  }
  return made;
}

/** @type {CanvasRenderingContext2D | null} */
let measure = null;

/**
 * Whether a text of a table fits into so much room (px).
 * @param {number} room
 * @returns {(text: string) => boolean}
 */
export function fitsInto(room) {
  measure ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  const context = measure;
  context.font = `${SIZE}px ${FONT}`;
  return (text) => textWidth(context, text, SIZE) <= room - SLACK;
}

/**
 * A name, of which something else is shown; it is read aloud as a whole.
 * @param {string} name
 * @param {string | undefined} shown
 * @param {string} [title]
 */
export function nameSpan(name, shown, title) {
  if (shown === undefined) return h("span", { text: name, title });
  return h(
    "span",
    { title, class: "lp-told" },
    h("span", { "aria-hidden": "true", text: shown }),
    h("span", { class: "lp-hidden", text: name }),
  );
}
