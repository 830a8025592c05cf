// Numbers as text, in the units of the charts.

const TIMES = [
  [1, "ns"],
  [1e3, "us"],
  [1e6, "ms"],
  [1e9, "s"],
];
const SIZES = [
  [1, "B"],
  [2 ** 10, "KiB"],
  [2 ** 20, "MiB"],
  [2 ** 30, "GiB"],
  [2 ** 40, "TiB"],
];

/** Duration with the unit that fits it: 4.20 us, 58.1 ms. */
export function formatNs(ns, digits = 3) {
  return withUnit(ns, TIMES, 1000, digits);
}

/** Size with a binary unit. */
export function formatBytes(bytes, digits = 3) {
  return withUnit(bytes, SIZES, 1024, digits);
}

/** Share of one as a percentage. */
export function formatShare(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "unknown";
}

/** Number with three significant digits and separators of thousands. */
export function formatNumber(value, digits = 3) {
  if (value === null || !Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const whole = Math.max(1, Math.floor(Math.log10(Math.abs(value))) + 1);
  const decimals = Math.max(0, Math.min(6, digits - whole));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

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
