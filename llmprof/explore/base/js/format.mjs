// Numbers as text, in the units of the charts.

/** @type {[number, string][]} */
const TIMES = [
  [1, "ns"],
  [1e3, "us"],
  [1e6, "ms"],
  [1e9, "s"],
];
/** @type {[number, string][]} */
const SIZES = [
  [1, "B"],
  [2 ** 10, "KiB"],
  [2 ** 20, "MiB"],
  [2 ** 30, "GiB"],
  [2 ** 40, "TiB"],
];

/**
 * Duration with the unit that fits it: 4.20 us, 58.1 ms.
 * @param {number | null | undefined} ns
 */
export function formatNs(ns, digits = 3) {
  return withUnit(ns, TIMES, 1000, digits);
}

/**
 * What writes durations in one unit, that of the longest of them, with as many decimals (at most three) as the shortest
 * needs: for a column.
 * @param {(number | null | undefined)[]} values
 * @returns {(ns: number | null | undefined) => string}
 */
export function nsAs(values) {
  const all = values.map((ns) => Math.abs(ns || 0)).filter((ns) => ns > 0 && Number.isFinite(ns));
  const most = all.reduce((top, ns) => Math.max(top, ns), 0);
  const [size, unit] = TIMES.find(([one]) => Math.round(most / one) < 1000) ?? TIMES[TIMES.length - 1];
  const least = all.reduce((low, ns) => Math.min(low, ns), most || size) / size;
  const whole = size === 1 && all.every(Number.isInteger);
  const decimals = whole ? 0 : Math.max(0, Math.min(3, Math.ceil(-Math.log10(least)) + 2));
  const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  const smallest = 10 ** -decimals;
  return (ns) => {
    if (typeof ns !== "number" || !Number.isFinite(ns)) return "unknown";
    const value = ns / size;
    if (value > 0 && value < smallest / 2) return `< ${smallest.toLocaleString("en-US", digits)} ${unit}`;
    return `${value.toLocaleString("en-US", value ? digits : {})} ${unit}`;
  };
}

/**
 * Size with a binary unit.
 * @param {number | null | undefined} bytes
 */
export function formatBytes(bytes, digits = 3) {
  return withUnit(bytes, SIZES, 1024, digits);
}

/**
 * Share of one as a percentage.
 * @param {number | null | undefined} share
 */
export function formatShare(share) {
  if (typeof share !== "number" || !Number.isFinite(share)) return "unknown";
  if (share && Math.abs(share) < 0.0005) return share > 0 ? "< 0.1 %" : "> -0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

/**
 * Number with three significant digits and separators of thousands.
 * @param {number | null | undefined} value
 */
export function formatNumber(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const whole = Math.max(1, Math.floor(Math.log10(Math.abs(value))) + 1);
  const decimals = Math.max(0, Math.min(6, digits - whole));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/**
 * @param {number | null | undefined} value
 * @param {[number, string][]} units
 * @param {number} step
 * @param {number} digits
 */
function withUnit(value, units, step, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  const fitting = units.find(([size]) => Math.round(Math.abs(value) / size) < step) ?? units[units.length - 1];
  const scaled = value / fitting[0];
  if (scaled === 0) return `0 ${fitting[1]}`;
  if (fitting[0] === 1 && Number.isInteger(value)) return `${value} ${fitting[1]}`;
  const decimals = Math.max(0, digits - String(Math.trunc(Math.abs(scaled))).length);
  const text = scaled.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return `${text} ${fitting[1]}`;
}
