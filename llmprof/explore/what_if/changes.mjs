// Changes as texts that the command line takes, and sliders of their numbers. Pure functions.

/** @typedef {import("./messages").Offer} Offer */

/** Places of a logarithmic slider. */
export const SLIDER = 100;

/**
 * A change as the command line takes it, from the values of its fields; an optional one without a value is left out.
 * @param {Pick<Offer, "name" | "fields">} offer
 * @param {string[]} values
 */
export function changeText({ name, fields }, values) {
  const parts = fields.flatMap((field, i) => {
    const value = values[i].trim().replaceAll(":", "."); // a colon ends a value; a dot stands for any character
    if (field.optional && !value) return [];
    return [field.keyword ? `${field.name}=${value}` : value];
  });
  return [name, ...parts].join(":");
}

/**
 * Values of the fields of a change from its text; "" for those that it does not give.
 * @param {Pick<Offer, "name" | "fields">} offer
 * @param {string} text
 */
export function changeValues({ fields }, text) {
  const given = text.split(":").slice(1);
  const keywords = fields.filter((field) => field.keyword).map((field) => `${field.name}=`);
  const placed = given.filter((part) => !keywords.some((word) => part.startsWith(word)));
  return fields.map((field) => {
    if (!field.keyword) return placed.shift() ?? "";
    return given.find((part) => part.startsWith(`${field.name}=`))?.slice(field.name.length + 1) ?? "";
  });
}

/**
 * Value at a place of a slider between two ends, logarithmic, with two digits.
 * @param {number} place from 0 to 100
 * @param {number} low
 * @param {number} high
 */
export function sliderValue(place, low, high) {
  return Number((low * (high / low) ** (place / SLIDER)).toPrecision(2));
}

/**
 * Place of a value on a logarithmic slider.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
export function sliderPlace(value, low, high) {
  const inside = Math.min(high, Math.max(low, value));
  return Math.round((SLIDER * Math.log(inside / low)) / Math.log(high / low));
}
