"""Decay a, computed from a logit x as in Mamba-2: log a = −A softplus(x + b), with trained A and b."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.attention.linear._chunked import LOWEST
from attn_zoo.shapes import KeyValid

FASTEST = 16.0
"""Largest initial A in the decay exp(−A softplus(x + b))."""
STEPS = (0.001, 0.1)
"""Smallest and largest initial softplus(b), where b is added to the logits."""


class ForgetGate(nn.Module):
    """Module that computes log decays −A softplus(x + b) from logits x. A is one parameter per head. b is one parameter per head or
    per channel.

    The public code of the gated delta rule draws A from U(0, 16), and softplus(b) log-uniformly from 0.001 to 0.1, independently.
    That of Mamba-2 draws A from U(1, 16). Here the heads start at evenly spaced quantiles of the former two distributions, and
    the head with the largest A has the smallest softplus(b). The initialisation is not random.
    """

    def __init__(self, heads: int, channels: int = 1) -> None:
        super().__init__()
        quantile = (torch.arange(heads) + 0.5) / heads
        low, high = STEPS
        steps = (high * (low / high) ** quantile)[:, None].expand(heads, channels)
        self.log_rate = nn.Parameter((FASTEST * quantile).log())
        self.offset = nn.Parameter(steps.expm1().log().flatten())  # flat, because optimisers decay matrices only

    def step(self, logits: Float[Tensor, "batch heads n channels"]) -> Float[Tensor, "batch heads n channels"]:
        """Return the step sizes softplus(x + b) for the logits x, with trained b."""
        return F.softplus(logits + self.offset.view(len(self.log_rate), 1, -1))

    def forward(
        self, logits: Float[Tensor, "batch heads n channels"], key_valid: KeyValid
    ) -> Float[Tensor, "batch heads n channels"]:
        """Return the log decays, which are at least -20 (``LOWEST``), and 0 at padded tokens."""
        logs = (-self.log_rate.exp()[:, None, None] * self.step(logits)).clamp(min=LOWEST)
        return logs if key_valid is None else logs.masked_fill(~key_valid[:, None, :, None], 0)
