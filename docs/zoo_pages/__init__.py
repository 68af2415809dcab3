"""A Sphinx extension: the pages that the registry and the committed results know better than a person, and docstrings as they are.

Before Sphinx reads its sources, ``generated/`` beside them is made to hold a page for each attention and task, an index of
either, and the help of every command. A page that has not changed is not written, so that Sphinx does not read it again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zoo_pages.docstrings import reference, sections, signature

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = "generated"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension to Sphinx."""
    app.connect("builder-inited", _write)
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
