"""Documentation site: built without a warning, a page for every entry, no dead links, no local folder names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from page_blocks import blocks
from patience import HANG
from shown_commands import wrong_command

from attn_zoo import registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def build(docs: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """Build the site with Sphinx; every warning is an error, and unresolved references are warnings."""
    command = [sys.executable, "-P", "-m", "sphinx", "-W", "--keep-going", "-n", "-q", str(docs), str(into)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)


def test_it_is_built_and_whole(tmp_path):
    """Build and check the site in one test, because several tests would build it on each pytest worker."""
    docs, site = tmp_path / "docs", tmp_path / "site"
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("generated", "_build", "__pycache__"))
    for folder in ("results", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)  # no link: a page that is included resolves its own links beside itself
    built = build(docs, site)
    assert built.returncode == 0, built.stdout + built.stderr
    generated = docs / "generated"
    problems = [*missing_pages(site), *wrong_pages(site), *wrong_commands(generated, every=6), *wrong_python(generated)]
    assert not problems, "\n".join(problems)


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
        if to and elsewhere and tag != "a":
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


def test_wrong_pages_are_caught(tmp_path):
    (tmp_path / "other.html").write_text('<p id="here">', encoding="utf-8")
    page = tmp_path / "page.html"
    right = '<a href="other.html#here">a</a> <img src="x.png" alt="x"> <a href="https://example.org/">b</a> <a href="#top">c</a>'
    (tmp_path / "x.png").touch()
    page.write_text(right, encoding="utf-8")
    assert not list(wrong_page(page, tmp_path))
    for wrong in (
        '<a href="none.html">a</a>',
        '<a href="other.html#there">a</a>',
        '<a href="#there">a</a>',
        '<img src="x.png">',
        '<img src="none.png" alt="x">',
        '<script src="https://example.org/x.js"></script>',
        '<link rel="stylesheet" href="https://example.org/x.css">',
        f"<p>{ROOT}/attn_zoo</p>",
    ):
        page.write_text(right + wrong, encoding="utf-8")
        assert len(list(wrong_page(page, tmp_path))) == 1, wrong


def test_wrong_code_is_caught(tmp_path):
    for line in (
        "attn-zoo run attention=no_such",
        "attn-zoo run attention=linformer attention.no_such=1",
        "attn-zoo measure experiment=crossover no_such=1",
        "attn-zoo measure experiment=crossover attentions=[no_such]",
        "attn-zoo check",
        "pip install attn-zoo",
    ):
        assert wrong_command(line), line
    (tmp_path / "page.md").write_text("```bash\nattn-zoo no-such\n```\n\n```python\nassert False\n```\n", encoding="utf-8")
    assert len(list(wrong_commands(tmp_path))) == len(list(wrong_python(tmp_path))) == 1


def test_a_page_that_no_list_names_fails_the_build(tmp_path):
    """The first test relies on this: Sphinx warns about forgotten pages and dead references, and warnings are errors."""
    (tmp_path / "conf.py").write_text("extensions = ['myst_parser']\nnitpicky = True\n", encoding="utf-8")
    (tmp_path / "index.md").write_text("# Index\n", encoding="utf-8")
    plain = [sys.executable, "-P", "-m", "sphinx", "-W", "-q", str(tmp_path), str(tmp_path / "site")]
    assert subprocess.run(plain, capture_output=True, check=False).returncode == 0
    (tmp_path / "forgotten.md").write_text("# Forgotten\n", encoding="utf-8")
    assert b"toctree" in subprocess.run(plain, capture_output=True, check=False).stderr


def test_the_script_builds_what_the_test_builds():
    script = ROOT / ".ci" / "docs"
    assert os.access(script, os.X_OK)
    assert " -W --keep-going -n " in script.read_text(encoding="utf-8")
