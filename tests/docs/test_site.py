"""Documentation site: built without a warning, a page for every entry, no dead links, no local folder names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import polars as pl
import pytest
from browser import Page, browser, installed, ready
from page_blocks import blocks
from patience import HANG
from shown_commands import wrong_command

from attn_zoo import registry
from attn_zoo.records import Store

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def build(docs: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """Build the site with Sphinx; every warning is an error, and unresolved references are warnings."""
    command = [sys.executable, "-P", "-m", "sphinx", "-W", "--keep-going", "-n", "-q", str(docs), str(into)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site, beside its sources."""
    root = tmp_path_factory.mktemp("site")
    docs, site = root / "docs", root / "site"
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("generated", "_build", "__pycache__"))
    for folder in ("results", "benchmarks"):
        shutil.copytree(ROOT / folder, root / folder)  # no link: a page that is included resolves its own links beside itself
    shutil.copy(ROOT / "README.md", root)
    built = build(docs, site)
    assert built.returncode == 0, built.stdout + built.stderr
    return site


def test_it_is_whole(site):
    generated = site.parent / "docs" / "generated"
    problems = [*missing_pages(site), *wrong_pages(site), *wrong_commands(generated, every=6), *wrong_python(generated)]
    assert not problems, "\n".join(problems)


def test_downloads_hold_every_committed_run(site):
    count = sum(len(Store(folder.parent).load()[0]) for folder in (ROOT / "results").glob("*/records.jsonl.xz"))
    folder = site / "downloads"
    found = {
        "parquet": pl.read_parquet(folder / "runs.parquet"),
        "json": pl.read_json(folder / "runs.json", infer_schema_length=None),
        "csv": pl.read_csv(folder / "runs.csv", infer_schema_length=None),
    }
    for name, runs in found.items():
        assert len(runs) == count > 1000 and {"results", "attention", "task", "test"} <= set(runs.columns), name


@pytest.fixture(scope="module")
def window(tmp_path_factory) -> Iterator[Page]:
    binary = installed()
    if binary is None:
        pytest.skip("no browser of the Chromium family is installed; apt install chromium")
    with browser(binary, tmp_path_factory.mktemp("profile")) as page:
        yield page


SEEN = ("index", "results", "generated/results", "how-to/choose", "generated/attention/index", "generated/attention/linformer")
"""Pages that are looked at in a browser."""


@pytest.mark.parametrize("name", SEEN)
def test_a_page_is_read_without_a_network_in_every_window(window, site, name):
    window.requests.clear()
    window.complaints.clear()
    backgrounds = set()
    for width, scheme in ((1280, "light"), (400, "light"), (1280, "dark"), (400, "dark")):
        window.size(width, 900, scheme=scheme)
        window.open(site / f"{name}.html")
        if name == "results":
            ready(window)
        assert window.evaluate("document.documentElement.scrollWidth") <= width, f"{width} pixels wide"
        assert window.evaluate("[...document.images].every(img => img.complete && img.naturalWidth > 0)"), "a picture is missing"
        backgrounds.add((scheme, window.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert len(backgrounds) == 2 == len({colour for _, colour in backgrounds}), "the dark is dark"
    assert {request.partition(":")[0] for request in window.requests} <= {"file", "data", "about"}
    assert window.complaints == []


def test_the_first_page_leads_to_a_result_by_keyboard(window, site):
    window.size(1280, 900)
    window.open(site / "index.html")
    said = window.evaluate("document.querySelector('main, article').innerText")
    assert "Recall exact tokens" in said and "match softmax" in said.replace("matches", "match"), "the finding and the choice"
    for _ in range(300):
        window.press("Tab")
        if window.evaluate("document.activeElement.getAttribute('href')") == "results.html":
            break
    window.press("Enter", "\r")
    window.evaluate("new Promise(done => setTimeout(done, 2000))")
    assert window.evaluate("location.pathname").endswith("/results.html")


@pytest.fixture(scope="module")
def axe(tmp_path_factory) -> str:
    """The script of axe-core, a checker of accessibility (MPL-2.0), which npm fetches."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("npm, which fetches axe-core, is not installed")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "axe-core@4"]
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    if fetched.returncode:
        pytest.skip(f"npm could not fetch axe-core: {fetched.stderr[-300:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


AXE = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => `${each.id}: ${each.help}: ${each.nodes.length} times, first ${each.nodes[0].html.slice(0, 200)}`))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SEEN)
def test_axe_finds_nothing_serious(window, site, axe, name, scheme):
    window.size(1280, 900, scheme=scheme)
    window.open(site / f"{name}.html")
    if name == "results":
        ready(window)
    window.evaluate(axe + "; undefined")
    assert window.evaluate(AXE) == []


def missing_pages(site: Path) -> Iterator[str]:
    """Yield registered entries without a page, and recommended classes that the reference lacks."""
    for kind, names in (("attention", registry.attentions()), ("task", registry.task_names())):
        yield from (f"{kind} {name} has no page" for name in names if not (site / "generated" / kind / f"{name}.html").is_file())
    reference = "".join((site / "reference" / "api" / f"{page}.html").read_text(encoding="utf-8") for page in ("build", "contract"))
    for name in (
        "layer.MultiHeadAttention",
        "registry.build_attention",
        "contract.attention_card.AttentionCard",
        "contract.task.Task",
    ):
        if f'id="attn_zoo.{name}"' not in reference:
            yield f"attn_zoo.{name} is not in the reference"


def wrong_pages(site: Path) -> Iterator[str]:
    for page in sorted(site.rglob("*.html")):
        for problem in wrong_page(page, site):
            yield f"{page.relative_to(site)}: {problem}"


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def wrong_page(page: Path, site: Path) -> Iterator[str]:
    """Yield dead links and images, resources loaded from other sites, images without alt text, and names of local folders."""
    text = page.read_text(encoding="utf-8")
    for tag, has in Tags(text).found:
        to = has.get("href") if tag in ("a", "link") else has.get("src") if tag in ("script", "img") else None
        elsewhere = urlsplit(to or "").scheme
        if tag == "img" and not has.get("alt"):
            yield f"picture without words: {to}"
        if to and elsewhere not in ("", "data") and tag != "a":
            yield f"loaded from elsewhere: {tag} {to}"
        if to and not elsewhere and not leads_somewhere(to, page):
            yield f"leads nowhere: {to}"
    folders = {str(ROOT), str(site.parent), str(Path.home())} - {"/"}
    yield from (f"names the folder {folder}" for folder in sorted(folders) if folder in text)


def leads_somewhere(to: str, page: Path) -> bool:
    """Return True if a link's file exists and contains the anchor named after #."""
    path, place = urldefrag(to.partition("?")[0] if "?" in to.partition("#")[0] else to)
    target = (page.parent / unquote(path)).resolve() if path else page
    if not target.is_file():
        return False
    if target.name == "results.html" and place.startswith("results="):  # a view of the page, which its script reads
        return (ROOT / "results" / unquote(place).removeprefix("results=")).is_dir()
    return not place or target.suffix != ".html" or unquote(place) in places(target)


@cache
def places(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8"))) | {"top"}


def wrong_commands(generated: Path, every: int = 1) -> Iterator[str]:
    """Yield commands that attn-zoo would reject, from every ``every``-th generated page."""
    for page in sorted(generated.rglob("*.md"))[::every]:
        for block in blocks(page.read_text(encoding="utf-8")):
            for line in block.content.splitlines() if block.language == "bash" else ():
                if reason := wrong_command(line):
                    yield f"{page.relative_to(generated)}: {line}: {reason}"


def wrong_python(generated: Path) -> Iterator[str]:
    for page in sorted(generated.rglob("*.md")):
        namespace: dict[str, object] = {}
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.language == "python":
                try:
                    exec(compile(block.content, page.name, "exec"), namespace)
                except Exception as error:
                    yield f"{page.relative_to(generated)}:{block.line}: {type(error).__name__}: {error}"
