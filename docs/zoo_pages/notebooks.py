"""The notebook of a page: its prose and its blocks of code as cells. As a program it writes the notebooks of ``NOTEBOOKS``."""

from __future__ import annotations

import json
import re
from pathlib import Path

NOTEBOOKS = tuple(Path(__file__).parents[1] / "tutorials" / name for name in ("lesson.md", "my-attention.md"))
"""Pages that have a notebook beside them."""
_CODE = re.compile(r"^(```(?:python|bash)[^\n]*\n.*?)^```$", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"^!\[.*$\n\n?|^```text output\n(?:.*\n)*?```$|(?<=\. )[^.]*\]\([\w-]+\.ipynb\)\.\s", re.MULTILINE)


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook. Left out are outputs and pictures, which the code makes, and the sentence that names the
    notebook."""
    cells: list[dict[str, object]] = []
    for at, part in enumerate(_CODE.split(page)):
        code = at % 2 == 1
        text = _source(part) if code else _LEFT_OUT.sub("", part)
        if text.strip():
            cells.append(_cell(text.strip(), code=code, at=len(cells)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def _source(block: str) -> str:
    """Source of a cell of code: a block for a file and a block of bash begin with the magic of Jupyter that takes them."""
    info, _, text = block.removeprefix("```").partition("\n")
    language, _, file = info.partition(" ")
    magic = "%%bash\n" if language == "bash" else f"%%writefile {file}\n" if file else ""
    return magic + text


def _cell(text: str, *, code: bool, at: int) -> dict[str, object]:
    common = {"id": f"cell-{at}", "metadata": {}, "source": text.splitlines(keepends=True)}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **common} if code else {"cell_type": "markdown", **common}


if __name__ == "__main__":
    for page in NOTEBOOKS:
        page.with_suffix(".ipynb").write_text(notebook(page.read_text(encoding="utf-8")), encoding="utf-8")
