"""Table 3 of the Linformer paper, as printed.

Source: Wang, Li, Khabsa, Fang, Ma, "Linformer: Self-Attention with Linear Complexity", arXiv:2006.04768, Table 3: inference
of the Linformer against the Transformer on one 16 GB V100, random data, layerwise sharing. Left half: time saved, each at
the largest batch that fits. Right half: memory saved, the quotient of these batches.
"""

from __future__ import annotations

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

PROJECTED_LENGTHS = (128, 256, 512, 1024, 2048)

_TIME = """
1.5 1.3 - - -
1.7 1.6 1.3 - -
2.6 2.4 2.1 1.3 -
3.4 3.2 2.8 2.2 1.3
5.5 5.0 4.4 3.5 2.1
8.6 7.8 7.0 5.6 3.3
13 12 11 8.8 5.0
20 18 16 14 7.9
"""

_MEMORY = """
1.7 1.5 - - -
3.0 2.9 1.8 - -
6.1 5.6 3.6 2.0 -
14 13 8.3 4.3 2.3
28 26 17 8.5 4.5
56 48 32 16 8
56 48 36 18 16
60 52 40 20 18
"""


def _cells(table: str) -> dict[tuple[int, int], str]:
    rows = [line.split() for line in table.split("\n") if line]
    return {
        (n, k): figure
        for n, row in zip(LENGTHS, rows, strict=True)
        for k, figure in zip(PROJECTED_LENGTHS, row, strict=True)
        if figure != "-"
    }


TIME_SAVED = _cells(_TIME)
"""Time saved by (length, projected length), in the paper's digits."""

MEMORY_SAVED = _cells(_MEMORY)
"""Memory saved by (length, projected length), in the paper's digits."""
