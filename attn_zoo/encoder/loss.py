"""Training losses: one for each kind of problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor

from attn_zoo.contract import Problem

LOSSES: Mapping[Problem, Callable[[Tensor, Tensor], Tensor]] = {
    "classification": F.cross_entropy,
    "multi_label": F.binary_cross_entropy_with_logits,
    "regression": F.mse_loss,
}
"""Loss function for each kind of problem. A function takes outputs of shape (answers, classes) and their labels, and returns the
mean loss.
"""
