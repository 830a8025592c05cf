// Light and dark: the notebook's own theme, the editor's or the browser's.

/** @typedef {typeof THEMES.light} Colours */
/** @typedef {ReturnType<typeof followTheme>} Theme */

/** Colours for canvases; style sheets have the same as --lp-… variables. */
export const THEMES = {
  light: {
    background: "#ffffff",
    raised: "#f5f7f9",
    lane: "#f1f3f6",
    ink: "#1f2933",
    muted: "#52606d",
    rule: "#cbd2d9",
    faint: "#e4e7eb",
    accent: "#0b62a8",
    select: "#111827",
    shade: "rgba(31, 41, 51, 0.10)",
    warning: "#9a3412",
  },
  dark: {
    background: "#14181d",
    raised: "#1d232a",
    lane: "#1a2027",
    ink: "#e6eaee",
    muted: "#a6b1bd",
    rule: "#3c4754",
    faint: "#2a323b",
    accent: "#6cb6f5",
    select: "#ffffff",
    shade: "rgba(230, 234, 238, 0.14)",
    warning: "#fdba74",
  },
};

/**
 * "light" or "dark" for a wish ("auto" or one of them) in this page.
 * @param {string} wish
 * @returns {"light" | "dark"}
 */
export function chosenTheme(wish) {
  if (wish === "light" || wish === "dark") return wish;
  const body = document.body;
  if (body.dataset.jpThemeLight !== undefined) return body.dataset.jpThemeLight === "true" ? "light" : "dark";
  if (body.classList.contains("vscode-dark") || body.classList.contains("vscode-high-contrast")) return "dark";
  if (body.classList.contains("vscode-light")) return "light";
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/**
 * Keep an element in the theme of the page: sets data-theme, which the style sheet reads.
 * Returns {now(): colours, name(): "light" | "dark", stop()}; `changed` is called after a change.
 * @param {HTMLElement} el
 * @param {import("./model").Model} model
 * @param {() => void} [changed]
 */
export function followTheme(el, model, changed = () => {}) {
  let name = chosenTheme(model.get("theme") ?? "auto");
  const look = () => {
    const found = chosenTheme(model.get("theme") ?? "auto");
    if (found === name) return;
    name = found;
    el.dataset.theme = name;
    changed();
    // JupyterLab hides everything until the next frame, and what has no width is not painted
    if (!el.clientWidth) requestAnimationFrame(() => changed());
  };
  el.classList.add("lp");
  el.dataset.lmSuppressShortcuts = "true"; // else "a" on a canvas is JupyterLab's key for a new cell, and "d d" deletes one
  el.dataset.theme = name;
  const watch = new MutationObserver(look);
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", look);
  model.on("change:theme", look);
  const stop = () => {
    watch.disconnect();
    system.removeEventListener("change", look);
  };
  return { now: () => THEMES[name], name: () => name, stop };
}

/**
 * Black or white text, whichever stands out more on a colour (#rrggbb): at least 4.58 : 1 (WCAG 2).
 * @param {string} colour
 */
export function inkOn(colour) {
  const channels = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255);
  const [r, g, b] = channels.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#000000" : "#FFFFFF";
}
