"""Which results are checked: every size that is timed, and those that are awkward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from attn_zoo.cost.linformer_kernels.setting import Setting, projection_rows


@dataclass(frozen=True, slots=True)
class Case:
    """A problem whose results are compared with float64."""

    part: str
    """``core``, ``projection`` or ``layer``."""
    precision: str
    batch: int
    length: int
    rows: int
    """Projected keys; of a projection the rows of its matrix."""
    heads: int
    """Of a projection 0 where one matrix serves all channels."""
    width: int
    """Of a head; where one matrix serves all channels, and of a layer, of the tokens."""
    layout: str = "heads last"
    """``heads last`` as in a layer, ``heads first``, or ``gaps``: inside of a larger tensor that holds NaN elsewhere."""
    padded: bool = False
    """Examples end in padding, which holds NaN."""
    dropout: float = 0.0

    @property
    def key(self) -> str:
        """What an interrupted measurement is gone on by."""
        return "check|" + "|".join(str(value) for value in asdict(self).values())


def cases(setting: Setting) -> list[Case]:
    """All that is checked, the largest first, so that processes end at about the same time."""
    found = [*_timed(setting, setting.lengths, setting.precision, layers=True)]
    for precision in setting.spot_precisions:
        found += _timed(setting, [setting.spot_length], precision, layers=False)
    found += _AWKWARD if setting.device == "cuda" else _AWKWARD_AND_SMALL
    return sorted(dict.fromkeys(found), key=lambda case: -case.batch * case.length * max(1, case.heads) * case.width)


def _timed(setting: Setting, lengths: Sequence[int], precision: str, *, layers: bool) -> list[Case]:
    found = []
    head_dim = setting.dim // setting.heads
    for n in sorted(lengths, reverse=True):
        batch = setting.batch(n)
        found += [Case("projection", precision, batch, n, rows, 0, setting.dim) for rows in projection_rows(setting, precision)]
        found += [Case("core", precision, batch, n, r, setting.heads, head_dim) for r in setting.projected_lengths]
        if layers:
            layer = (2 if n <= 4096 else 1, n)
            found += [
                Case("layer", precision, *layer, r, setting.heads, setting.dim, padded=True) for r in setting.projected_lengths
            ]
    return found


_AWKWARD = [
    Case("core", "bf16", 3, 1000, 128, 4, 64, layout="gaps"),
    Case("core", "bf16", 3, 1000, 256, 4, 64, layout="heads first"),
    Case("core", "bf16", 3, 777, 100, 4, 64),
    Case("core", "fp16", 3, 500, 128, 4, 48, layout="gaps"),
    Case("core", "bf16", 2, 1000, 128, 4, 128),
    Case("core", "bf16", 3, 1000, 128, 4, 64, dropout=0.1),
    Case("core", "bf16", 3, 1000, 256, 4, 64, dropout=0.1),
    Case("core", "fp32", 2, 1000, 128, 4, 64, layout="gaps", dropout=0.1),
    Case("core", "bf16", 2, 1000, 300, 4, 64),
    Case("core", "fp32", 2, 333, 300, 4, 48),
    Case("core", "bf16", 2, 1, 64, 4, 32),
    Case("projection", "bf16", 3, 1000, 256, 0, 768, padded=True),
    Case("projection", "bf16", 3, 1000, 128, 0, 768, layout="gaps", padded=True),
    Case("projection", "fp16", 3, 777, 100, 0, 200, layout="gaps", padded=True),
    Case("projection", "fp32", 3, 1000, 256, 0, 768, padded=True),
    Case("projection", "bf16", 3, 1000, 64, 4, 64, padded=True),
    Case("projection", "bf16", 64, 33, 16, 4, 64),
]
"""Ragged lengths, other head sizes, strides that are no multiples of anything, padding, dropout, keys that do not fit on chip."""

_AWKWARD_AND_SMALL = [
    Case("core", "fp32", 2, 50, 33, 2, 32, layout="gaps"),
    Case("core", "fp16", 1, 100, 128, 2, 48, layout="heads first"),
    Case("core", "fp16", 1, 80, 64, 2, 32, dropout=0.2),
    Case("core", "fp16", 1, 40, 300, 1, 32),
    Case("projection", "fp16", 2, 50, 20, 0, 40, layout="gaps", padded=True),
    Case("projection", "fp32", 2, 50, 20, 2, 16, padded=True),
]
"""What Triton's interpreter does in seconds."""
