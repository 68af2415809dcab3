"""BibTeX entries of the papers that a card names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAPERS = Path(__file__).parents[1] / "papers.bib"


def cited(paper: str) -> str:
    """Return the entries of all arXiv numbers in the words of a card, in their order.

    Raises:
        KeyError: a number has no entry in ``papers.bib``.
    """
    return "\n\n".join(_entries()[number] for number in re.findall(r"arXiv:(\d+\.\d+)", paper))


@cache
def _entries() -> dict[str, str]:
    found = re.findall(r"^@misc\{arxiv\.(\d+\.\d+),$.*?^\}$", PAPERS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    texts = re.findall(r"^@misc\{.*?^\}$", PAPERS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return dict(zip(found, texts, strict=True))
