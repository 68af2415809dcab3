"""Notebooks have the code of their pages, which tests/docs/test_code_blocks.py runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "docs"))
from zoo_pages.notebooks import NOTEBOOKS, notebook


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebook_is_current(page):
    stored = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert stored == notebook(page.read_text(encoding="utf-8")), "run python docs/zoo_pages/notebooks.py"


def test_cells_hold_all_code_and_no_picture_output_or_link_to_the_notebook():
    page = "# Title\n\nWords. They are a [notebook](a.ipynb). More.\n\n```python\na = 1\n```\n\n"
    page += "```text output\n1\n```\n\n![A picture](a.svg)\n\n```python\nb = a\n```\n"
    page += "\n```python c.py\nc = 1\n```\n\n```text\nnot run\n```\n\n```bash\npython c.py\n```\n"
    cells = json.loads(notebook(page))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [
        ("markdown", "# Title\n\nWords. More."),
        ("code", "a = 1"),
        ("code", "b = a"),
        ("code", "%%writefile c.py\nc = 1"),
        ("markdown", "```text\nnot run\n```"),
        ("code", "%%bash\npython c.py"),
    ]
