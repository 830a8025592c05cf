"use strict";
const root = document.documentElement;
const night = matchMedia("(prefers-color-scheme: dark)");
const telephone = matchMedia("(max-width: 640px)");
const darkColours = JSON.parse(document.getElementById("dark-colours")?.textContent ?? "{}");

const isDark = () => (root.dataset.theme === "auto" ? night.matches : root.dataset.theme === "dark");

/** Rows of a table that stands in the page as columns; texts that come often are places in a list of them. */
function rowsOf(table) {
  if (Array.isArray(table)) return table;
  const columns = Object.entries(table).map(([name, column]) => [
    name,
    Array.isArray(column) ? column : column.at.map((place) => column.words[place]),
  ]);
  return columns[0][1].map((_, i) => Object.fromEntries(columns.map(([name, values]) => [name, values[i]])));
}

/**
 * The specification of a chart for the width and in the theme of the page: whole texts that are colours of the light
 * theme are replaced.
 */
function specOf(text) {
  const dark = isDark();
  const both = JSON.parse(text, (_, value) => (dark && typeof value === "string" && darkColours[value]) || value);
  const spec = (telephone.matches && both.narrow) || both.wide;
  return {...spec, datasets: Object.fromEntries(spec.datasets.map((name) => [name, rowsOf(both.tables[name])]))};
}

async function draw(data) {
  const place = document.getElementById(`chart-${data.dataset.chart}`);
  try {
    const {view} = await vegaEmbed(place, specOf(data.textContent), {
      ast: true, // no eval: the page's policy forbids it
      renderer: "svg",
      downloadFileName: data.dataset.chart,
      actions: {export: true, source: false, compiled: false, editor: false},
    });
    view.addEventListener("click", (_, item) => showKernel(item?.datum?.kernel));
    if (data.dataset.chart === "operators") place.title = "A click on a point goes to its longest kernel, where the table of kernels has it.";
    const drawn = place.querySelector("svg.marks");
    if (telephone.matches && drawn) drawn.style.minWidth = `${drawn.viewBox.baseVal.width}px`; // never smaller text
    const menu = place.querySelector("summary");
    menu?.setAttribute("aria-label", `Save the chart: ${place.getAttribute("aria-label")}`);
    menu?.setAttribute("title", "Save the chart");
  } catch (error) {
    console.error(error);
    place.textContent = `This chart could not be drawn (${error}). ${data.dataset.chart}.png shows it.`;
  }
}

let drawing = 0;
async function drawAll() {
  const mine = ++drawing; // a newer switch of the theme ends an older drawing
  delete root.dataset.drawn;
  for (const data of document.querySelectorAll("script[data-chart]")) {
    if (mine !== drawing) return;
    await draw(data);
  }
  reachScrolled();
  root.dataset.drawn = isDark() ? "dark" : "yes";
  root.dataset.layout = telephone.matches ? "narrow" : "wide";
}

/** What scrolls sideways can be reached and scrolled with the keyboard. */
function reachScrolled() {
  for (const box of document.querySelectorAll(".room, .scroll")) {
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    const name = box.querySelector("[aria-label]")?.getAttribute("aria-label") ?? box.querySelector("caption")?.textContent;
    if (!scrolls) {
      for (const attribute of ["tabindex", "role", "aria-label"]) box.removeAttribute(attribute);
      continue;
    }
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `${name ?? "Part of the report"}, scrolls sideways`);
  }
}

/** Paper is white: colours of dark charts become those of the light ones. */
function forPaper() {
  for (const fold of document.querySelectorAll("details.fold")) fold.open = true;
  if (!isDark()) return;
  const light = Object.fromEntries(Object.entries(darkColours).map(([a, b]) => [b, a]));
  for (const chart of document.querySelectorAll(".chart svg.marks")) chart.style.backgroundColor = "#ffffff";
  for (const mark of document.querySelectorAll(".chart svg [fill], .chart svg [stroke]")) {
    for (const name of ["fill", "stroke"]) {
      const value = light[mark.getAttribute(name)];
      if (value) mark.setAttribute(name, value);
    }
  }
}

function setTheme(theme) {
  root.dataset.theme = theme;
  for (const button of document.querySelectorAll(".themes button")) {
    button.setAttribute("aria-pressed", String(button.dataset.theme === theme));
  }
}

function switchTheme(theme) {
  const before = isDark();
  setTheme(theme);
  try {
    localStorage.setItem("llmprof-theme", theme);
  } catch {
    // a page of a file may have no storage: the choice holds until it is closed
  }
  if (isDark() !== before) drawAll();
}

function firstTheme() {
  try {
    const kept = localStorage.getItem("llmprof-theme");
    return ["auto", "light", "dark"].includes(kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}

function sortBy(button) {
  const head = button.closest("th");
  const body = head.closest("table").tBodies[0];
  const column = head.cellIndex;
  const down = head.getAttribute("aria-sort") !== "descending";
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const numeric = head.classList.contains("num") || head.classList.contains("share");
  const order = numeric ? (a, b) => Number(value(a)) - Number(value(b)) : (a, b) => value(a).localeCompare(value(b));
  const rows = [...body.rows].sort((a, b) => (down ? -order(a, b) : order(a, b)));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}

/** Takes away the mark of the finding that was shown before. */
function unmark() {
  for (const note of document.querySelectorAll(".shown-finding")) note.remove();
  for (const place of document.querySelectorAll(".marked")) place.classList.remove("marked");
}

/** Goes to the figure or table of a finding: it is marked, and the finding's sentence stands over it with a way back. */
function showFinding(hash, number) {
  const place = document.getElementById(hash.slice(1));
  const finding = document.getElementById(`finding-${number}`);
  if (!place || !finding) return;
  unmark();
  place.classList.add("marked");
  const note = document.createElement("p");
  note.className = "shown-finding";
  const back = document.createElement("a");
  back.href = `#finding-${number}`;
  back.textContent = `Back to finding ${number}`;
  const title = finding.querySelector("h2, h3, td") ?? finding;
  note.append(`${title.firstChild.textContent.trim()} `, back);
  place.prepend(note);
  goTo(place, "start");
}

/** Goes to the row of a kernel, whose whole name is that of a point in a chart, where the table of kernels has it. */
function showKernel(name) {
  const cell = [...document.querySelectorAll("#table-kernels td[title]")].find((one) => one.title === name);
  if (!cell) return;
  unmark();
  cell.parentNode.classList.add("marked");
  goTo(cell.parentNode, "center");
}

function goTo(place, block) {
  for (let fold = place.closest("details"); fold; fold = fold.parentNode.closest("details")) fold.open = true;
  place.setAttribute("tabindex", "-1");
  place.focus({preventScroll: true});
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  place.scrollIntoView({block, behavior: still ? "auto" : "smooth"});
}

async function copyLine(button) {
  const line = button.parentNode.querySelector("code");
  try {
    await navigator.clipboard.writeText(line.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  } catch {
    getSelection().selectAllChildren(line); // a page of a file may not write to the clipboard: Ctrl+C does
    button.textContent = "Selected: Ctrl+C";
  }
}

for (const link of document.querySelectorAll("a.show")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    history.pushState({finding: link.dataset.finding}, "", link.hash);
    showFinding(link.hash, link.dataset.finding);
  });
}
addEventListener("popstate", (event) => {
  if (event.state?.finding) showFinding(location.hash, event.state.finding);
  else unmark();
});
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", () => copyLine(button));
}
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sortBy(button));
const themes = document.querySelector(".themes");
setTheme(firstTheme());
if (themes) themes.hidden = false;
for (const button of document.querySelectorAll(".themes button")) {
  button.addEventListener("click", () => switchTheme(button.dataset.theme));
}
telephone.addEventListener("change", drawAll);
night.addEventListener("change", () => root.dataset.theme === "auto" && drawAll());
addEventListener("resize", reachScrolled);
for (const fold of document.querySelectorAll("details.fold")) fold.addEventListener("toggle", reachScrolled);
addEventListener("beforeprint", forPaper);
addEventListener("afterprint", () => isDark() && drawAll());
drawAll();
