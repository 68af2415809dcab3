"""The notebook of a page: its prose and its Python blocks as cells. As a program it writes the notebook of the lesson."""

from __future__ import annotations

import json
import re
from pathlib import Path

LESSON = Path(__file__).parents[1] / "tutorials" / "lesson.md"


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook without outputs; pictures, which the code draws, are left out."""
    cells: list[dict[str, object]] = []
    for at, part in enumerate(re.split(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)):
        code = at % 2 == 1
        text = part if code else re.sub(r"^!\[.*$\n", "", part, flags=re.MULTILINE)
        if text.strip():
            cells.append(_cell(text.strip(), code=code, at=len(cells)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def _cell(text: str, *, code: bool, at: int) -> dict[str, object]:
    common = {"id": f"cell-{at}", "metadata": {}, "source": text.splitlines(keepends=True)}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **common} if code else {"cell_type": "markdown", **common}


if __name__ == "__main__":
    LESSON.with_suffix(".ipynb").write_text(notebook(LESSON.read_text(encoding="utf-8")), encoding="utf-8")
