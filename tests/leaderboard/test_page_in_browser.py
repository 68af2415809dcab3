"""The page in a real browser, as a person uses it: by mouse, by keyboard, on a telephone, in the dark, and without scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Page, browser, installed
from make import make_record

from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.heatmap import SHADES
from attn_zoo.leaderboard.page import html_page, records_from
from attn_zoo.records import Store

HOSTILE = '</td><script>window.owned = true</script><img src="https://example.invalid/x" onerror="window.owned = true">'
SHOWN = (
    "[...document.querySelectorAll('#digits .scores tbody tr')].filter(row => !row.hidden)"
    ".map(row => row.querySelector('a').textContent)"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A page beside its records: three contenders, one that failed, and a control, on two tasks."""
    folder = tmp_path_factory.mktemp("site")
    store = Store(folder / "runs")
    for task in ("digits", "listops"):
        for place, (name, score) in enumerate({"softmax": 0.9, "linformer": 0.8, "performer": 0.85, "uniform": 0.5}.items()):
            counted = {"parameters": 90_000 - 10_000 * place, "flops_per_example": 2_000_000 + place}
            kind = "sdpa" if name == "softmax" else "eager"
            for seed in (1, 2, 3):
                made = make_record(name, task, seed, test=score + seed / 200, counted=counted, spec_implementation=kind)
                store.add(made)
        store.add(make_record("reformer", task, status="failed", reason=HOSTILE, counted={}))
    records, _ = store.load()
    made = folder / "page.html"
    made.write_text(html_page(tables(records), records, records_at=records_from(made, store.root)), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    binary = installed()
    if binary is None:
        pytest.skip("no browser of the Chromium family is installed; apt install chromium")
    with browser(binary, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(window: Page, file: Path):
    """The page freshly opened; afterwards, that it asked for nothing else and complained of nothing."""
    window.requests.clear()
    window.complaints.clear()
    window.size(1300, 900)
    window.open(file)
    yield window
    loaded = {request for request in window.requests if not request.startswith(("about:", "data:"))}
    assert {request.partition("#")[0] for request in loaded} == {file.as_uri()}, "the page asks for itself and nothing else"
    assert window.complaints == []
    assert window.evaluate("window.owned") is None, "a record's text was run as a script"


def order(page: Page) -> list[str]:
    return page.evaluate(SHOWN)


def sorted_as(page: Page, column: int) -> str:
    return page.evaluate(f"document.querySelectorAll('#digits .scores thead th')[{column}].getAttribute('aria-sort')")


def column(page: Page, head: str) -> int:
    heads = page.evaluate("[...document.querySelectorAll('#digits .scores thead th')].map(th => th.textContent)")
    return heads.index(head)


def test_a_head_sorts_by_mouse_either_way_with_what_has_no_figure_last(page):
    assert order(page) == ["softmax (sdpa)", "performer", "linformer", "reformer", "uniform"]
    at = column(page, "parameters")
    head = f"#digits .scores thead th:nth-child({at + 1}) button"
    assert sorted_as(page, at) == "none"
    page.click(head)
    assert order(page) == ["uniform", "performer", "linformer", "softmax (sdpa)", "reformer"]
    assert sorted_as(page, at) == "ascending"
    page.click(head)
    assert order(page) == ["softmax (sdpa)", "linformer", "performer", "uniform", "reformer"]
    assert sorted_as(page, at) == "descending"
    page.click("#digits .scores thead th:first-child button")
    assert order(page) == ["linformer", "performer", "reformer", "softmax (sdpa)", "uniform"]
    assert sorted_as(page, at) == "none", "one column at a time is the sorted one"


def test_a_head_sorts_by_keyboard(page):
    page.evaluate("document.querySelector('#digits .scores thead button').focus()")
    page.press("Tab")
    page.press("Enter", "\r")
    assert order(page) == ["softmax (sdpa)", "performer", "linformer", "uniform", "reformer"], "the best score is first"
    page.press(" ", " ")
    assert order(page) == ["uniform", "linformer", "performer", "softmax (sdpa)", "reformer"]


def test_measured_costs_are_not_sorted_across_eager_rows_and_kernels(page):
    at = column(page, "examples/s")
    page.click(f"#digits .scores thead th:nth-child({at + 1}) button")
    kinds = page.evaluate("[...document.querySelectorAll('#digits .scores tbody tr')].map(row => row.dataset.block.split(',')[0])")
    measured = [kind for kind, name in zip(kinds, order(page), strict=True) if name != "reformer"]
    assert measured == sorted(measured)


def test_filters_by_task_attention_controls_and_implementation(page):
    def count():
        return page.evaluate("document.querySelector('.tools output').textContent")

    assert count() == "10 of 10 rows"
    page.click("input[name=controls]")
    assert "uniform" not in order(page) and count() == "8 of 10 rows"
    page.click(".chip:has([value=linformer])")
    assert order(page) == ["softmax (sdpa)", "performer", "reformer"] and count() == "6 of 10 rows"
    choose = "(() => {{ const box = document.querySelector('select[name={}]'); box.value = '{}';"
    choose += "box.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
    page.evaluate(choose.format("implementation", "sdpa"))
    assert order(page) == ["softmax (sdpa)"]
    page.evaluate(choose.format("task", "listops"))
    assert page.evaluate("document.querySelector('#digits').hidden") is True and count() == "1 of 10 rows"
    page.click(".tools button[type=reset]")
    page.evaluate("new Promise(done => setTimeout(done, 20))")
    assert len(order(page)) == 5 and count() == "10 of 10 rows"


def test_a_cell_opens_what_is_behind_it_and_escape_leads_back(page, file):
    page.click("#overview td a[href='#digits--linformer']")
    assert page.evaluate("document.querySelector('dialog').open") is True
    said = page.evaluate("document.querySelector('dialog').innerText")
    assert all(wanted in said for wanted in ("80.5 %", "81.0 %", "81.5 %", "dial=1", "attn-zoo run -m attention=linformer"))
    files = page.evaluate("[...document.querySelectorAll('dialog a[href$=\".json\"]')].map(link => link.href)")
    assert len(files) == 3 and all(Path(address.removeprefix("file://")).is_file() for address in files)
    assert page.evaluate("location.hash") == "#digits--linformer"
    page.press("Escape")
    assert page.evaluate("document.querySelector('dialog').open") is False
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#digits--linformer", "the focus is back where it was"


def test_a_row_opens_from_anywhere_in_it_and_tells_why_it_failed(page):
    page.click("#digits .scores tbody tr:nth-child(4) td.parameters")
    said = page.evaluate("document.querySelector('dialog .body').innerText")
    assert "failed with seed 1" in said and "<script>window.owned = true</script>" in said
    page.click("dialog .close")
    assert page.evaluate("document.querySelector('dialog').open") is False


def test_an_address_with_a_row_opens_it(page, file):
    page.open(file, "#listops--performer")
    assert page.evaluate("document.querySelector('dialog h3').innerText").startswith("performer on Listops")


def test_figures_change_with_their_axis(page):
    figures = "[...document.querySelectorAll('#digits .plot-group:first-child figure')]"
    seen = figures + ".filter(figure => figure.offsetHeight).map(figure => figure.dataset.axis)"
    assert page.evaluate(seen) == ["forward FLOPs"]
    page.click("#digits .plot-group:first-child .choice button:nth-child(3)")
    assert page.evaluate(seen) == ["peak memory"]


@pytest.mark.parametrize("width", [320, 400, 768, 1300])
def test_no_width_makes_the_whole_page_scroll_sideways(page, file, width):
    page.size(width, 800)
    page.open(file)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#digits td.score a")
    assert page.evaluate("document.querySelector('dialog').getBoundingClientRect().width") <= width


def test_the_dark_is_dark_and_its_figures_too(page, file):
    def colours():
        return page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")

    light = colours()
    page.size(1300, 900, scheme="dark")
    page.open(file)
    deepest = page.evaluate("getComputedStyle(document.querySelector('.heat .h8')).backgroundColor")
    assert deepest == f"rgb({', '.join(str(int(SHADES[-1][at : at + 2], 16)) for at in (1, 3, 5))})"
    assert light == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"] and colours() == ["rgb(20, 23, 28)", "rgb(238, 241, 245)"]
    ink = page.evaluate("(t => t && getComputedStyle(t).fill)(document.querySelector('figure svg text'))")
    assert ink in (None, "rgb(154, 164, 178)", "rgb(238, 241, 245)")


def test_without_scripts_all_of_it_is_plain_tables(page, file):
    page.size(1300, 900, script=False)
    page.open(file, "#digits--linformer")
    assert len(order(page)) == 5
    assert page.evaluate("document.querySelector('.tools').offsetHeight") == 0, "filters that could not work are not shown"
    assert page.evaluate("document.querySelectorAll('.scores thead button').length") == 0
    hidden = "[...document.querySelectorAll('#digits figure')].filter(figure => !figure.offsetHeight).length"
    assert page.evaluate(hidden) == 0, "all figures are shown"
    assert page.evaluate("document.getElementById('digits--linformer').offsetHeight") > 100, "the link opens what is behind the row"
    page.size(1300, 900)


def test_printing_shows_every_figure_and_no_tools(page):
    page.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert page.evaluate("document.querySelector('.tools').offsetHeight") == 0
        assert page.evaluate("[...document.querySelectorAll('figure')].filter(figure => !figure.offsetHeight).length") == 0
    finally:
        page.call("Emulation.setEmulatedMedia", media="")
