"""A Sphinx extension: the pages that the registry and the committed results know better than a person, and docstrings as they are.

Before Sphinx reads its sources, ``generated/`` beside them is made to hold a page for each attention and task, an index of either,
the help of every command, and files that become part of the site as they are. A page that has not changed is not written, so that
Sphinx does not read it again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo_pages.docstrings import reference, sections, signature

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = "generated"
_FOR_KEYBOARDS = {
    "body": {"<pre>": '<pre tabindex="0">', '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper'},
    "furo_navigation_tree": {'role="heading"': 'role="heading" aria-level="2"'},
}
"""Changes of the HTML in the parts of a page, by the name that the theme's templates give to the part."""
_GENERATED = {
    "results/README.md": f"{FOLDER}/results.md",
    "results/community/README.md": f"{FOLDER}/community.md",
}
"""Pages that the repository shows, and the pages of the site to which a link to them leads."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension to Sphinx."""
    app.connect("builder-inited", _write)
    app.connect("source-read", _lead_to_the_site)
    app.connect("build-finished", _add_files)
    app.connect("html-page-context", _open_to_keyboards, priority=900)  # after the theme's
    app.connect("autodoc-process-docstring", sections)
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    from zoo_pages.pages import generated_pages
    from zoo_pages.results import Results

    source = Path(app.srcdir)
    results = Results(source.parent / "results")
    folder = source / FOLDER
    wanted = {folder / name: content for name, content in generated_pages(results, folder).items()}
    for path, content in wanted.items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in folder.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()


def _lead_to_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to pages of the repository that are not sources of the site lead to its generated pages."""
    up = page.count("/")
    for shown, made in _GENERATED.items():
        source[0] = source[0].replace(f"]({'../' * (up + 1)}{shown})", f"]({'../' * up}{made})")


def _open_to_keyboards(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let keyboards reach what scrolls, and give the headings of the list of pages their level."""
    for name, changes in _FOR_KEYBOARDS.items():
        for found, better in changes.items():
            context[name] = str(context.get(name, "")).replace(found, better)


def _add_files(app: Sphinx, error: Exception | None) -> None:
    from zoo_pages.pages import SITE

    if error is None:
        shutil.copytree(Path(app.srcdir) / FOLDER / SITE, app.outdir, dirs_exist_ok=True)
