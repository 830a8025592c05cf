"use strict";
async function draw(data) {
  const place = document.getElementById(`chart-${data.dataset.chart}`);
  try {
    await vegaEmbed(place, JSON.parse(data.textContent), {
      ast: true, // no eval: the page's policy forbids it
      renderer: "svg",
      downloadFileName: data.dataset.chart,
      actions: {export: true, source: false, compiled: false, editor: false},
    });
  } catch (error) {
    console.error(error);
    place.textContent = `This chart could not be drawn (${error}). ${data.dataset.chart}.png shows it.`;
  }
}

async function drawAll() {
  for (const data of document.querySelectorAll("script[data-chart]")) await draw(data);
  document.documentElement.dataset.drawn = "yes";
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

for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sortBy(button));
drawAll();
