"""The page in a real browser, where there is one: everything is drawn, nothing is asked of the
network.
"""

import re
import shutil
import subprocess

import pytest

import llmprof
from llmprof import report

CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))),
    None,
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=60000 --enable-logging=stderr"
)
OWN_HOSTS = re.compile(r"https?://[\w.-]*\b(?:google|googleapis|gvt1)\.com/")
"""What chromium itself asks for whatever page it shows."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]


def browse(page, folder, *more):
    """Show a page; return its document, what the console said, and the addresses that were asked
    for.
    """
    log = folder / "net.json"
    command = [
        CHROMIUM,
        *FLAGS.split(),
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'user'}",
    ]
    command += [f"--log-net-log={log}", *more, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]
    asked = set(re.findall(r'"url":"(https?:[^"]*)"', log.read_text("utf-8", "replace")))
    return done.stdout, console, {url for url in asked if not OWN_HOSTS.match(url)}


def test_hostile_names_do_nothing_and_everything_is_drawn(hostile, tmp_path):
    page = tmp_path / "index.html"
    page.write_text(report.html(hostile), "utf-8")
    document, console, asked = browse(page, tmp_path)
    assert 'data-drawn="yes"' in document
    assert len(re.findall(r'<svg[^>]*class="marks"', document)) == 10
    assert 'id="broken"' not in document
    assert "could not be drawn (" not in re.sub(
        r"<script.*?</script>", "", document, flags=re.DOTALL
    )
    assert [line for line in console if "WARN" not in line] == []
    assert asked == set()


def with_script(text, script):
    """The page without its policy, and a script of the test at its end."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    head, _, _ = text.rpartition("</body>")  # Vega has one too, in a string
    return f"{head}<script>{script}</script></body>"


@pytest.mark.usefixtures("quick")
def test_the_table_of_kernels_can_be_sorted(small, tmp_path):
    click = """const head = [...document.querySelectorAll("th")].find((th) => th.textContent.trim() === "kernel");
    const first = () => head.closest("table").tBodies[0].rows[0].cells[0].textContent;
    head.querySelector("button").click();
    const down = [head.getAttribute("aria-sort"), first()].join(" ");
    head.querySelector("button").click();
    document.body.dataset.sorted = `${down}, ${head.getAttribute("aria-sort")} ${first()}`;"""
    page = tmp_path / "index.html"
    page.write_text(with_script(report.html(small), click), "utf-8")
    document, _, _ = browse(page, tmp_path)
    (found,) = re.findall(r'data-sorted="([^"]*)"', document)
    assert found == "descending some_kernel, ascending flash_fwd_kernel"


@pytest.mark.usefixtures("quick")
def test_show_me_marks_the_figure_of_the_finding_and_leads_back(small, tmp_path):
    click = """const wait = setInterval(() => {
      if (!document.documentElement.dataset.drawn) return;
      clearInterval(wait);
      const link = document.querySelector(".lead .ways a.show");
      link.click();
      const place = document.querySelector(".marked");
      const note = place.querySelector(".shown-finding");
      document.body.dataset.shown = [
        `#${place.id}` === link.hash, note.querySelector("a").hash, document.activeElement === place,
        document.querySelectorAll(".copy:not([hidden])").length > 1, document.querySelectorAll(".marked").length,
      ].join(" ");
    }, 50);"""
    page = tmp_path / "index.html"
    page.write_text(with_script(report.html(small), click), "utf-8")
    document, _, _ = browse(page, tmp_path)
    (found,) = re.findall(r'data-shown="([^"]*)"', document)
    assert found == "true #finding-1 true true 1"


def test_a_point_under_the_roofs_leads_to_the_row_of_its_kernel(tmp_path):
    click = """const wait = setInterval(() => {
      if (!document.documentElement.dataset.drawn) return;
      clearInterval(wait);
      const points = [...document.querySelectorAll("#chart-operators .mark-symbol path")];
      const rows = points.filter((one) => one.__data__?.datum?.kernel).map((point) => {
        point.dispatchEvent(new MouseEvent("click", {bubbles: true}));
        const marked = [...document.querySelectorAll(".marked")];
        const same = marked.length === 1 && marked[0].cells[0].title === point.__data__.datum.kernel;
        return same && document.activeElement === marked[0];
      });
      document.body.dataset.rows = `${rows[0]} ${rows.filter(Boolean).length > 5}`;
    }, 50);"""
    page = tmp_path / "index.html"
    page.write_text(with_script(report.html(llmprof.sample("torch_tp1_eager")), click), "utf-8")
    document, _, _ = browse(page, tmp_path)
    assert re.findall(r'data-rows="([^"]*)"', document) == ["true true"]
