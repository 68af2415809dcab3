"""Output memory that reveals missing and out-of-bounds writes of a kernel, and inputs surrounded by NaN."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 256


class Memory:
    """Allocator of tensors full of NaN, with margins of NaN before and after."""

    def __init__(self) -> None:
        self.handed_out: list[tuple[Tensor, int]] = []

    def empty(self, like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        count = torch.Size(shape).numel()
        buffer = torch.full((count + 2 * MARGIN,), float("nan"), dtype=dtype or like.dtype, device=like.device)
        self.handed_out.append((buffer, count))
        return buffer[MARGIN : MARGIN + count].view(shape)

    def check_margins(self) -> None:
        """Assert that no kernel wrote outside its output."""
        for buffer, count in self.handed_out:
            assert buffer[:MARGIN].isnan().all() and buffer[MARGIN + count :].isnan().all(), "a kernel wrote beside its output"


def surrounded(values: Tensor) -> Tensor:
    """Return the values as a view of a larger tensor that holds NaN everywhere else, so that reading outside is seen."""
    larger = values.new_full([size + 3 for size in values.shape], float("nan"))
    view = larger[tuple(slice(1, size + 1) for size in values.shape)]
    view.copy_(values)
    return view
