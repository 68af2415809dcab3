"""Helper of tests that read a sequence in steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attn_zoo.contract import Attention


def step(built: Attention, inputs: Sequence[Tensor], state: Any, **streams: Tensor) -> tuple[Tensor, Any]:
    """Take one step with query, key and value given as one sequence."""
    query, key, value = inputs
    return built.step(query, key, value, state, **streams)
