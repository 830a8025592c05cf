// Drawing on a canvas at the resolution of the screen.

export const FONT = '"Liberation Sans", Arial, Helvetica, sans-serif';

/**
 * Size a canvas in CSS pixels for the screen's resolution; returns its context, scaled to CSS pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, t] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== t) {
    canvas.width = w;
    canvas.height = t;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const advances = new Map();

/**
 * Width of a text (px) in a font of `size` px, from widths of characters that were measured once.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} size
 */
export function textWidth(context, text, size) {
  let total = 0;
  for (const character of text) {
    let advance = advances.get(character);
    if (advance === undefined) {
      const font = context.font;
      context.font = `100px ${FONT}`;
      advance = context.measureText(character).width / 100;
      context.font = font;
      if (advances.size < 4096) advances.set(character, advance);
    }
    total += advance;
  }
  return total * size;
}

/**
 * A text cut to a width with an ellipsis, not within a number; "" where less than three characters would be left.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} size
 * @param {number} room
 */
export function fitText(context, text, size, room) {
  if (textWidth(context, text, size) <= room) return text;
  const characters = [...text].slice(0, Math.ceil(room / (size * 0.2)));
  let width = textWidth(context, "…", size);
  let count = 0;
  while (count < characters.length && width + textWidth(context, characters[count], size) <= room) {
    width += textWidth(context, characters[count], size);
    count += 1;
  }
  // half a number would be another number
  if (/[\d.]/.test(characters[count] ?? "") && /\d[\d.]*$/.test(characters.slice(0, count).join("")))
    count = characters
      .slice(0, count)
      .join("")
      .replace(/[\d.]+$/, "").length;
  return count < 3 ? "" : `${characters.slice(0, count).join("")}…`;
}
