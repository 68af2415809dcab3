"""Short depthwise convolution over neighbouring tokens, applied before attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class ShortConvolution(nn.Module):
    """Depthwise convolution over neighbouring tokens: yᵢ = Σₜ wₜ ∘ xᵢ₊ₜ, with tokens x, outputs y, weights w and offsets t.

    Inputs and outputs have shape (batch, n, dim). The convolution is initialised as the identity: the weight at offset 0 is 1, and
    all others are 0. It has no bias.

    Papers: Fu et al. 2022, arXiv:2212.14052 (shift SSM before attention); Arora et al. 2023, arXiv:2312.04927 (Zoology); Arora et
    al. 2024, arXiv:2402.18668 (Based).

    Differs: Zoology, Based and flash-linear-attention convolve queries, keys and values separately and with random initial weights.
    This layer convolves the tokens before all projections. It therefore also serves mechanisms that use one tensor as queries and
    keys, have further inputs, or shorten the sequence before they project it.

    Args:
        dim: width of the tokens.
        width: size of the window. A causal window has ``width`` positions and ends at position i. Any other window has
            ``width // 2`` positions on either side of i.
        causal: True if output i depends only on tokens up to i.

    Raises:
        ValueError: ``width`` is not an integer of at least 1.
    """

    def __init__(self, dim: int, width: int, *, causal: bool) -> None:
        super().__init__()
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise ValueError(
                f"the width of a short convolution must be an integer of at least 1; got {width!r}. Set short_convolution=0 "
                "for a layer without one"
            )
        self.before, self.after = (width - 1, 0) if causal else (width // 2, width // 2)
        taps = torch.zeros(dim, self.before + 1 + self.after)
        taps[:, self.before] = 1
        self.weight = nn.Parameter(taps)

    def forward(
        self, tokens: Float[Tensor, "batch n dim"], valid: Bool[Tensor, "batch n"] | None = None
    ) -> Float[Tensor, "batch n dim"]:
        """Return the convolved tokens. Positions outside the sequence and padded positions count as zeros.

        Args:
            valid: mask that is True for real tokens; at padding the output is zero.
        """
        if 0 in tokens.shape:
            return tokens * 1  # a convolution takes at least one window
        if valid is None:
            return self.slide(F.pad(tokens, (0, 0, self.before, self.after)))
        padding = ~valid[..., None]
        filled = F.pad(tokens.masked_fill(padding, 0), (0, 0, self.before, self.after))
        return self.slide(filled).masked_fill(padding, 0)

    def step(
        self, tokens: Float[Tensor, "batch n dim"], tail: Float[Tensor, "batch held dim"]
    ) -> tuple[Float[Tensor, "batch n dim"], Float[Tensor, "batch kept dim"]]:
        """Convolve the next tokens of a causal sequence.

        Args:
            tokens: the next tokens.
            tail: the tokens before them, at most the last ``width - 1``; not modified.

        Returns:
            The outputs for these tokens, equal to those of a call with the whole sequence, and the tail for the next step.
        """
        read = torch.cat([tail, tokens], dim=1)
        kept = read[:, max(0, read.shape[1] - self.before) :].clone()  # a view would hold on to all tokens of a long piece
        return self.slide(F.pad(read, (0, 0, self.before - tail.shape[1], 0))), kept

    def slide(self, filled: Float[Tensor, "batch filled dim"]) -> Float[Tensor, "batch n dim"]:
        """Return the outputs for a sequence that is already padded. They are ``before + after`` positions shorter than ``filled``.

        Args:
            filled: tokens with ``before`` positions added at the start and ``after`` at the end.
        """
        # conv2d over an image of height 1 in channels-last layout, that of tokens: on a CPU two to four times as fast as conv1d.
        image = filled.transpose(1, 2).unsqueeze(2)
        mixed = F.conv2d(image, self.weight[:, None, None], groups=self.weight.shape[0])
        return mixed.squeeze(2).transpose(1, 2).contiguous()  # no copy where channels are still innermost; on meta they are not

    def extra_repr(self) -> str:
        return f"dim={self.weight.shape[0]}, before={self.before}, after={self.after}"
