"""Compare every figure of every generated table with the golden file: ``python tests/golden/compare.py``.

The golden file holds what the code made of ``results/`` when this program last wrote it, with ``--write`` as the argument. It is
written anew only if figures are meant to change; the commit then says which, and why.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(TESTS)]

from golden.collect import Golden, collect  # noqa: E402  (a program puts its folder on the path first)

GOLDEN = Path(__file__).with_name("tables.json.xz")
CLOSE = 1e-6
"""Relative difference of figures that count as equal: the golden file has 8 digits, and sums may be taken in another order."""


def read() -> Golden:
    """Return the golden figures."""
    return json.loads(lzma.decompress(GOLDEN.read_bytes()))


def write(found: Golden) -> None:
    """Write the golden file."""
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    GOLDEN.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def differences(golden: Golden, found: Golden) -> Iterator[str]:
    """Yield a line for every golden cell that is absent or different; cells that the golden file lacks are new, and allowed."""
    for experiment, tables in golden.items():
        for table, rows in tables.items():
            where = f"{experiment} / {table}"
            there = found.get(experiment, {}).get(table)
            if there is None:
                yield f"{where}: the table is absent"
                continue
            for row, cells in rows.items():
                if row not in there:
                    yield f"{where} / {row}: the row is absent"
                    continue
                for column, value in cells.items():
                    if not same(value, now := there[row].get(column)):
                        yield f"{where} / {row} / {column}: {value!r} became {now!r}"


def same(one: Any, other: Any) -> bool:
    """Return True if two values of a cell are equal: numbers up to ``CLOSE``, all else exactly."""
    numbers = [value for value in (one, other) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 2:
        return one == other and type(one) is type(other)
    return math.isclose(one, other, rel_tol=CLOSE) or (math.isnan(one) and math.isnan(other))


def main() -> int:
    """Print all differences; return 1 if there are any."""
    if sys.argv[1:] == ["--write"]:
        write(collect())
        return 0
    lines = list(differences(read(), collect()))
    print("\n".join(lines) or "every figure is equal")
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())
