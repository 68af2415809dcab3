"""Table 3 of the Linformer paper, as printed (Wang et al. 2020, arXiv:2006.04768).

Inference of the Linformer against the Transformer on one 16 GB V100, random data, layerwise sharing. Left half: time saved,
each at the largest batch that fits. Right half: memory saved, the quotient of these batches.
"""

from __future__ import annotations

from attn_zoo.published import figures


def _cells(metric: str) -> dict[tuple[int, int], str]:
    found = figures(attention="linformer", metric=metric)
    return {(f.protocol.length, f.options["projected_length"]): f.printed for f in found if f.protocol.length is not None}


TIME_SAVED = _cells("time saved")
"""Time saved by (length, projected length), in the paper's digits."""

MEMORY_SAVED = _cells("memory saved")
"""Memory saved by (length, projected length), in the paper's digits."""

LENGTHS = tuple(sorted({length for length, _ in TIME_SAVED}))

PROJECTED_LENGTHS = tuple(sorted({projected for _, projected in TIME_SAVED}))
