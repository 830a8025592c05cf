"""Light, dark and the switch between them while a page is open: every widget, and the charts of
a report.
"""

import re

import pytest
from playwright.sync_api import expect

from llmprof import explore, report
from llmprof.charts.base.dark import GROUND, in_the_dark
from llmprof.charts.base.theme import INK, PAPER, WHITE
from llmprof.readers import bundled
from llmprof.run import launch
from tests.analyze.test_ranks import on_hosts, run_of
from tests.browser.host import faults, until

SAMPLE, OTHER = "torch_tp4_eager_custom_allreduce", "torch_tp4_eager_nccl"
WIDGETS = {
    "timeline": lambda trace, _other, notes: explore.timeline(trace, notes=notes),
    "layers": lambda trace, _other, _notes: explore.layers(trace),
    "overlap": lambda trace, _other, _notes: explore.overlap(trace),
    "collectives": lambda trace, _other, _notes: explore.collectives(trace),
    "kernels": lambda trace, _other, _notes: explore.kernels(trace),
    "compare": lambda trace, other, _notes: explore.compare(trace, other),
    "ranks": lambda _trace, _other, _notes: explore.ranks(run_of(**on_hosts())),
    "what_if": lambda trace, _other, _notes: explore.what_if(trace, "no-host-delay"),
    "requests": lambda _trace, _other, _notes: explore.requests(
        launch.open_run(bundled.notebook_data("h200") / "served_queue")
    ),
}
LIGHTNESS = """() => {
  // mean lightness of what the widget has drawn: its canvases, or its own ground where it has none
  const root = document.querySelector(".lp");
  const of = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0) / 765;
  const canvases = [...root.querySelectorAll("canvas")].filter((one) => one.width > 50 && one.height > 30);
  const each = canvases.map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let sum = 0, count = 0;
    for (let i = 0; i < data.length; i += 4 * 97) {
      if (data[i + 3] < 128) continue;
      sum += (data[i] + data[i + 1] + data[i + 2]) / 765;
      count += 1;
    }
    return count ? sum / count : null;
  }).filter((one) => one !== null);
  return [of(getComputedStyle(root).backgroundColor), ...each];
}"""


def still(one):
    """Lightness of the widget's parts, once it has drawn all that it asked for."""
    one.page.locator("canvas, tr[data-row]").first.wait_for()
    one.quiet()
    return one.page.evaluate(LIGHTNESS)


@pytest.mark.parametrize("name", WIDGETS)
def test_a_widget_follows_a_switch_of_the_theme_while_it_is_open(
    name, host, sample_trace, tmp_path
):
    widget = WIDGETS[name](sample_trace(SAMPLE), sample_trace(OTHER), tmp_path / "notes.json")
    one = host(widget, theme="light")
    light = still(one)
    assert light[0] > 0.95
    assert one.faults() == []
    one.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    one.wait(lambda: one.page.evaluate(LIGHTNESS)[0] < 0.2)
    dark = still(one)
    assert len(dark) == len(light)
    assert all(after < before for before, after in zip(light, dark, strict=True))
    assert one.faults() == []
    one.page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    one.wait(lambda: one.page.evaluate(LIGHTNESS)[0] > 0.95)


@pytest.fixture(scope="module")
def address(sample_trace, tmp_path_factory):
    """A report, as a file."""
    page = tmp_path_factory.mktemp("report") / "index.html"
    page.write_text(report.html(sample_trace("torch_tp1_moe_eager")), "utf-8")
    return page.as_uri()


def opened(browser, address, *, scheme="light", width=1200):
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(address)
    drawn(page, scheme)
    return page


def drawn(page, scheme):
    wanted = {"light": "yes", "dark": "dark"}[scheme]
    until(page, "word => document.documentElement.dataset.drawn === word", wanted)


def grounds(page):
    """Colours of the grounds of the charts."""
    colours = page.evaluate(
        "[...document.querySelectorAll('.chart svg.marks')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    return {
        "#" + "".join(f"{int(one):02X}" for one in re.findall(r"\d+", colour)) for colour in colours
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_of_a_report_follow_the_screen_and_the_switch(browser, address, scheme):
    other = {"light": "dark", "dark": "light"}[scheme]
    ground = {"light": PAPER, "dark": GROUND}
    page = opened(browser, address, scheme=scheme)
    assert grounds(page) == {ground[scheme]}

    page.get_by_role("button", name=other.title(), exact=True).click()
    drawn(page, other)
    assert grounds(page) == {ground[other]}
    expect(page.get_by_role("button", name=other.title(), exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    assert faults(page, "body") == []
    page.reload()  # the choice is remembered
    drawn(page, other)
    page.get_by_role("button", name="Auto").click()
    drawn(page, scheme)
    page.emulate_media(color_scheme=other)  # the system switches while the page is open
    drawn(page, other)
    assert grounds(page) == {ground[other]}
    assert page.problems == []
    page.close()


def test_a_dark_report_is_printed_on_white_paper(browser, address):
    page = opened(browser, address, scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert grounds(page) == {WHITE}
    inks = page.evaluate(
        "[...document.querySelectorAll('.chart svg text')].map((one) => one.getAttribute('fill'))"
    )
    assert INK in inks
    assert in_the_dark(INK) not in inks
    page.close()


def test_a_report_on_a_telephone(browser, address):
    page = opened(browser, address, width=390)
    page.evaluate("document.querySelectorAll('details.fold').forEach((one) => (one.open = true))")
    names = page.locator(".chart summary").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label'))"
    )
    assert names
    assert all(name.startswith("Save the chart: ") for name in names)
    assert len(set(names)) == len(names)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # charts are laid out for the width: all of each is in sight, and its text is as large as on a
    # desk
    sizes = page.evaluate("""() => {
        const texts = [...document.querySelectorAll(".chart svg.marks text")].filter((one) => one.textContent);
        const scale = (one) => Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b);
        return texts.map((one) => parseFloat(getComputedStyle(one).fontSize) * scale(one));
    }""")
    assert min(sizes) >= 11.99
    assert page.locator(".room[tabindex]").count() == 0
    ends = page.evaluate("""() => [...document.querySelectorAll(".chart svg.marks text")]
        .filter((one) => one.textContent)
        .map((one) => one.getBoundingClientRect())
        .filter((one) => one.right > 390 || one.left < 0).length""")
    assert ends == 0
    # what is cut off of a table is said, and reached with the keyboard, too
    hint = page.get_by_text("Scroll sideways for the other columns.").first
    expect(hint).to_be_visible()
    region = page.locator(".scroll[tabindex='0']").first
    region.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    until(page, "box => box.scrollLeft > 0", region.element_handle())
    assert faults(page, "body") == []
    page.set_viewport_size({"width": 1200, "height": 900})
    until(page, "document.documentElement.dataset.layout === 'wide'")
    until(page, "!document.querySelector('.scroll[tabindex]')")
    expect(hint).to_be_hidden()
    widths = page.evaluate(
        "[...document.querySelectorAll('.chart svg.marks')].map((one) => one.viewBox.baseVal.width)"
    )
    assert min(widths) > 600
    assert page.problems == []
    page.close()
