"""The page in a real browser, as a person uses it: by mouse, by keyboard, on a telephone, in the dark, and by a link."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from browser import Page, browser, installed, ready
from make import make_record, records_of, stored

from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.heatmap import SHADES
from attn_zoo.leaderboard.page import ResultSet, html_page
from attn_zoo.records import RunRecord

HOSTILE = '</td><script>window.owned = true</script><img src="https://example.invalid/x" onerror="window.owned = true">'
COUNT = "document.querySelector('#tools output').textContent"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A page beside its records: three contenders, one that failed, and a control, on two tasks."""
    folder = tmp_path_factory.mktemp("site")
    made = []
    for task in ("digits", "listops"):
        for place, (name, score) in enumerate({"softmax": 0.9, "linformer": 0.8, "performer": 0.85, "uniform": 0.5}.items()):
            counted = {"parameters": 90_000 - 10_000 * place, "flops_per_example": 2_000_000 + place}
            kind = "sdpa" if name == "softmax" else "eager"
            for seed in (1, 2, 3):
                test = score + seed / 200
                made.append(make_record(name, task, seed, test=test, counted=counted, spec_implementation=kind))
        made.append(make_record("reformer", task, status="failed", reason=HOSTILE, counted={}))
    records, file = stored(folder / "runs", made), folder / "page.html"
    results = ResultSet(tables(records), records)
    file.write_text(html_page([results]), encoding="utf-8")
    return file


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
    opened(window, file)
    yield window
    loaded = {request for request in window.requests if not request.startswith(("about:", "data:"))}
    assert {request.partition("#")[0] for request in loaded} == {file.as_uri()}, "the page asks for itself and nothing else"
    assert window.complaints == []
    assert window.evaluate("window.owned") is None, "a record's text was run as a script"


def opened(window: Page, file: Path, link: str = "") -> None:
    """Open a page, and wait until its script has built it."""
    window.open(file, link)
    ready(window)


def show(window: Page, folder: Path, sets: dict[str, list[RunRecord]], pages: dict[str, str] | None = None) -> Path:
    """Write a page of sets of records, open it, and return its file."""
    results = []
    for name, records in sets.items():
        named = [replace(record, source=f"{number}.json") for number, record in enumerate(records)]
        results.append(ResultSet(tables(named), named, name))
    file = folder / "page.html"
    file.write_text(html_page(results, pages=pages), encoding="utf-8")
    window.size(1300, 900)
    window.complaints.clear()
    opened(window, file)
    return file


def order(page: Page) -> list[str]:
    """Names of the rows as they are shown, without what stands below the window."""
    return page.evaluate(
        "[...document.querySelectorAll('#rows .tabulator-row')].map(r => r.querySelector('.tabulator-cell').textContent)"
    )


def head(field: str) -> str:
    return f"#rows .tabulator-col[tabulator-field='{field}'] button"


def enter(page: Page, selector: str, text: str) -> None:
    """Type into a field."""
    page.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
    for letter in text:
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key=letter, text=letter if kind == "keyDown" else "")
    page.evaluate("new Promise(done => setTimeout(done, 450))")  # Tabulator filters when typing pauses


def choose(page: Page, selector: str, value: str) -> None:
    """Choose an option of a select."""
    change = f"box.value = {json.dumps(value)}; box.dispatchEvent(new Event('input', {{bubbles: true}}))"
    page.evaluate(f"(box => {{ {change} }})(document.querySelector({json.dumps(selector)}))")


def only(page: Page, task: str = "Digits") -> None:
    choose(page, "select[name=task]", task)


CUT = """[...document.querySelectorAll('#heat, #rows')].flatMap(table =>
    [...table.querySelectorAll('.tabulator-cell, .tabulator-col-title')].filter(text => text.scrollWidth > text.clientWidth + 1)
    .map(text => text.textContent))"""
"""Texts of cells and headings that are wider than their place."""


def test_no_cell_and_no_heading_is_cut(window, tmp_path):
    """One task in each direction, names of hybrids, and averages with wide intervals."""
    names = ("softmax", "3*gated_delta_rule+linformer_causal", "uniform")
    made = [
        make_record(name, "mqar", seed, test=score + seed / 40, card={"causal": causal}, spec_task_options={"causal": causal})
        for causal in (False, True)
        for name, score in zip(names, (0.7, 0.5, 0.2), strict=True)
        for seed in (1, 2, 3)
    ]
    show(window, tmp_path, {"hybrids": made})
    assert window.evaluate("document.querySelectorAll('#heat .tabulator-cell, #rows .tabulator-col-title').length") > 20
    assert window.evaluate(CUT) == []


def test_a_head_sorts_by_mouse_either_way_with_what_has_no_figure_last(page):
    only(page)
    assert order(page) == ["softmax (sdpa)", "performer", "linformer", "reformer", "uniform (c)"]
    page.click(head("parameters"))
    assert order(page) == ["uniform (c)", "performer", "linformer", "softmax (sdpa)", "reformer"]
    page.click(head("parameters"))
    assert order(page) == ["softmax (sdpa)", "linformer", "performer", "uniform (c)", "reformer"]


def test_a_head_sorts_by_keyboard(page):
    only(page)
    page.evaluate(f"document.querySelector({json.dumps(head('score'))}).focus()")
    page.press("Enter", "\r")
    assert order(page) == ["softmax (sdpa)", "performer", "linformer", "uniform (c)", "reformer"], "the best score is first"
    page.press("Enter", "\r")
    assert order(page) == ["uniform (c)", "linformer", "performer", "softmax (sdpa)", "reformer"]


def test_measured_costs_are_not_sorted_across_eager_rows_and_kernels(page):
    only(page)
    for _ in ("descending", "ascending"):
        page.click(head("examples_per_second"))
        found = order(page)
        assert (found[0], found[-1]) == ("reformer", "softmax (sdpa)"), "groups of auto, eager and sdpa, in either direction"


def test_filters_by_task_search_controls_and_columns(page):
    assert page.evaluate(COUNT) == "10 of 10 rows"
    page.click("input[name=controls]")
    assert "uniform (c)" not in order(page) and page.evaluate(COUNT) == "8 of 10 rows"
    enter(page, "input[name=search]", "LINF digits")
    assert order(page) == ["linformer"] and page.evaluate(COUNT) == "1 of 10 rows"
    page.click("#tools button[type=reset]")
    page.evaluate("new Promise(done => setTimeout(done, 50))")
    assert page.evaluate(COUNT) == "10 of 10 rows"
    enter(page, "#rows .tabulator-col[tabulator-field='score'] input", "> 82")
    assert page.evaluate(COUNT) == "4 of 10 rows", "softmax and performer on both tasks"


def test_a_link_leads_to_the_same_view(page, file):
    only(page, "Listops")
    enter(page, "#rows .tabulator-col[tabulator-field='attention'] input", "former")
    page.click(head("parameters"))
    page.click("#columns summary")
    page.click("input[name='column trials'], input[name='column seeds']")
    before, link = order(page), page.evaluate("location.hash")
    assert len(before) == 3
    opened(page, file, link)
    assert order(page) == before and page.evaluate("document.querySelector('select[name=task]').value") == "Listops"
    assert page.evaluate(f"document.querySelector({json.dumps(head('seeds'))})?.offsetHeight > 0") is False
    assert page.evaluate("location.hash") == link


def test_a_link_keeps_every_heading_by_which_rows_are_sorted(page, file):
    table = "Tabulator.findTable('#rows')[0]"
    sorters = f"{table}.getSorters().map(({{ field, dir }}) => [field, dir])"
    page.evaluate(f"{table}.setSort([{{ column: 'score', dir: 'asc' }}, {{ column: 'task', dir: 'desc' }}])")
    before, shown = page.evaluate(sorters), order(page)
    opened(page, file, page.evaluate("location.hash"))
    assert page.evaluate(sorters) == before == [["score", "asc"], ["task", "desc"]] and order(page) == shown


def test_a_cell_of_the_heat_map_opens_its_row_and_escape_leads_back(page, file):
    page.evaluate("document.querySelector('#heat .tabulator-row:nth-child(3) .tabulator-cell:nth-child(2) span').click()")
    assert page.evaluate("document.querySelector('dialog').open") is True
    said = page.evaluate("document.querySelector('dialog').innerText")
    assert all(wanted in said for wanted in ("80.5", "81.0", "81.5", "dial=1", "attn-zoo run -m attention=linformer"))
    assert (
        page.evaluate("[...document.querySelectorAll('dialog td code')].filter(cell => cell.innerText.endsWith('.json')).length")
        == 3
    )
    link = page.evaluate("location.hash")
    page.press("Escape")
    assert page.evaluate("document.querySelector('dialog').open") is False
    opened(page, file, link)
    assert page.evaluate("document.querySelector('dialog h3').innerText").startswith("linformer on Digits"), (
        "the link opens the row"
    )


def test_a_row_opens_from_anywhere_in_it_and_tells_why_it_failed(page):
    enter(page, "input[name=search]", "reformer digits")
    page.click("#rows .tabulator-row .tabulator-cell[tabulator-field='parameters']")
    said = page.evaluate("document.querySelector('dialog .body').innerText")
    assert "failed with seed 1" in said and "<script>window.owned = true</script>" in said
    page.click("dialog .close")
    assert page.evaluate("document.querySelector('dialog').open") is False


def test_plots_change_with_their_cost(page):
    seen = "[...document.querySelectorAll('#plots img')].map(img => img.alt)"
    loaded = "document.querySelector('#plots img').decode().then(() => document.querySelector('#plots img').naturalWidth > 300)"
    first = page.evaluate(seen)
    assert first == ["test scores against FLOPs of a forward pass, per example"] and page.evaluate(loaded)
    page.click("#plots button:nth-child(3)")
    assert page.evaluate(seen) != first and page.evaluate(loaded)
    assert page.evaluate("document.querySelectorAll('#plots [aria-pressed=true]').length") == 1


@pytest.mark.parametrize("width", [320, 400, 768, 1300])
def test_no_width_makes_the_whole_page_scroll_sideways(page, file, width):
    page.size(width, 800)
    opened(page, file)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#rows .tabulator-row .tabulator-cell")
    assert page.evaluate("document.querySelector('dialog').getBoundingClientRect().width") <= width


def test_the_dark_is_dark(page, file):
    def colours():
        return page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")

    light = colours()
    page.size(1300, 900, scheme="dark")
    opened(page, file)
    assert light == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"] and colours() == ["rgb(20, 23, 28)", "rgb(238, 241, 245)"]
    deepest = page.evaluate("getComputedStyle(document.querySelector('#heat .h8')).backgroundColor")
    assert deepest == f"rgb({', '.join(str(int(SHADES[-1][at : at + 2], 16)) for at in (1, 3, 5))})"
    row = page.evaluate("getComputedStyle(document.querySelector('#rows .tabulator-row')).backgroundColor")
    assert row == "rgb(20, 23, 28)"


def test_another_set_is_chosen_for_all_parts_and_stays_in_the_link(window, tmp_path):
    scores = dict.fromkeys(("softmax", "uniform"), (0.805, 0.81))
    sets = {name: records_of(scores, task) for name, task in (("first", "digits"), ("second", "listops"))}
    file = show(window, tmp_path, sets, pages={"home": "index.html"})
    assert window.evaluate(COUNT) == "2 of 4 rows"
    assert window.evaluate("document.querySelector('#home').getAttribute('href')") == "index.html"
    choose(window, "#sets select", "second")
    heads = window.evaluate("[...document.querySelectorAll('#heat .tabulator-col button')].map(head => head.firstChild.data)")
    assert "Listops" in heads and "Digits" not in heads
    assert window.evaluate("[...document.querySelectorAll('select[name=task] option')].map(o => o.value)") == ["", "Listops"]
    choose(window, "select[name=set]", "")
    assert window.evaluate(COUNT) == "4 of 4 rows"
    opened(window, file, window.evaluate("location.hash"))
    assert window.evaluate(COUNT) == "4 of 4 rows" and window.evaluate("document.querySelector('#sets select').value") == "second"
    window.click("#rows .tabulator-row .tabulator-cell")
    assert window.evaluate("document.querySelector('dialog').open") is True
    opened(window, file, window.evaluate("location.hash"))
    assert "Digits" in window.evaluate("document.querySelector('dialog[open] h3').innerText"), "a row of the other set is opened"
    assert window.complaints == []


def test_costs_of_the_heat_map_are_sorted_by_thousands(window, tmp_path):
    counts = {"softmax": 1_000, "linear": 2_000, "performer": 1_500_000}
    records = [
        make_record(name, counted={"flops_per_example": count, "mechanism_flops_4096": count}) for name, count in counts.items()
    ]
    show(window, tmp_path, {"": records})
    window.click("#heat .tabulator-col[tabulator-field='beside.0'] button")
    shown = "[...document.querySelectorAll(`#heat .tabulator-cell[tabulator-field='beside.0']`)].map(cell => cell.innerText)"
    assert [text for text in window.evaluate(shown) if text] in (["1×", "2×", "1,500×"], ["1,500×", "2×", "1×"])


@pytest.fixture
def settings(window: Page, tmp_path: Path) -> Page:
    """A page with two settings of Linformer: the one with the better test score is the worse on validation, and costs more."""
    records = []
    for dial, test, valid, flops in ((1, 0.9, 0.7, 2_400_000), (2, 0.8, 0.85, 900_000)):
        for seed in (1, 2, 3):
            scores = {"test": test, "valid": valid, "test: 1.5 x": test - 0.1}
            counted = {"parameters": 1000, "flops_per_example": flops}
            records.append(make_record("linformer", seed=seed, scores=scores, counted=counted, spec_options={"dial": dial}))
    show(window, tmp_path, {"": records})
    return window


def test_a_cell_of_the_heat_map_opens_the_setting_that_it_shows(settings):
    shown = settings.evaluate("document.querySelector('#heat .tabulator-row .tabulator-cell:nth-child(2) span').firstChild.data")
    settings.evaluate("document.querySelector('#heat .tabulator-row .tabulator-cell:nth-child(2) span').click()")
    assert shown == "80.0" and settings.evaluate("document.querySelector('dialog h3').innerText") == "linformer dial=2 on Digits"


@pytest.mark.parametrize(("limit", "rows"), [("> 1M", 1), ("> 1000000", 1), ("< 2.5 M", 2), ("< 1000 k", 1), ("> 2400", 2)])
def test_a_limit_of_a_filter_counts_thousands_and_millions(settings, limit, rows):
    enter(settings, "#rows .tabulator-col[tabulator-field='flops_per_example'] input", limit)
    assert settings.evaluate(COUNT) == f"{rows} of 2 rows"


def test_a_part_of_the_test_may_have_a_point_in_its_name(settings):
    settings.click("#columns summary")
    settings.click("input[name='column part 1.5 x']")
    cells = "[...document.querySelectorAll(`#rows .tabulator-row .tabulator-cell[tabulator-field='part 1.5 x']`)]"
    assert settings.evaluate(f"{cells}.map(cell => cell.innerText.slice(0, 4))") == ["80.0", "70.0"]


def test_without_scripts_the_page_says_what_prints_the_tables(page, file):
    page.size(1300, 900, script=False)
    page.open(file)
    assert "attn-zoo leaderboard prints the same tables" in page.evaluate("document.querySelector('noscript').innerText")
    page.size(1300, 900)


def test_ten_thousand_records_make_a_page_below_two_megabytes_that_builds_the_rows_in_sight_alone(window, tmp_path):
    records = [
        replace(
            make_record(f"m{row % 60}", f"task{row % 20}", seed, test=0.3 + row % 601 / 1000, spec_options={"dial": row}),
            source=f"m{row % 60}-task{row % 20}-s{seed}-{sha256(bytes([row % 251, row // 251, seed])).hexdigest()[:30]}.json",
        )
        for row in range(3334)
        for seed in (1, 2, 3)
    ]
    file = tmp_path / "large.html"
    file.write_text(html_page([ResultSet(tables(records), records)]), encoding="utf-8")
    assert file.stat().st_size < 2e6
    window.size(1300, 900)
    opened(window, file)
    assert window.evaluate(COUNT) == "3334 of 3334 rows"
    assert window.evaluate("document.querySelectorAll('#rows .tabulator-row').length") < 200, "rows out of sight are not built"
