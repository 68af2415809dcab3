"""The README's tables, printed from committed results. Run as a program to write them anew."""

from __future__ import annotations

import json
import re
from pathlib import Path

from attn_zoo.cost.growth.table import growth_table
from attn_zoo.leaderboard import leaderboard

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def tables() -> dict[str, str]:
    """Text of every generated table by its name in the README."""
    return {
        "quickstart": leaderboard(ROOT / "results" / "quickstart", format="github"),
        "growth": growth_table(json.loads((ROOT / "results" / "growth.json").read_text(encoding="utf-8"))),
    }


def renewed(text: str) -> str:
    """The README with every table as it should be."""
    for name, table in tables().items():
        place = re.search(rf"<!-- table: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
        if place is None:
            raise ValueError(f"the README has no place for the table {name!r}")
        text = f"{text[: place.start(1)]}\n{table.strip()}\n\n{text[place.end(1) :]}"
    return text


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
