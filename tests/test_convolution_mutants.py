"""Broken short convolutions: each check of ``convolved_layers`` catches one, and lets the sound one pass."""

from __future__ import annotations

from collections.abc import Callable

import convolved_layers as checks
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from attn_zoo.short_convolution import ShortConvolution


class Leaking(ShortConvolution):
    """Reads one token of the future."""

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.slide(F.pad(tokens, (0, 0, self.before - 1, self.after + 1)))


class ReadingPadding(ShortConvolution):
    """Masks padding in the output only, after reading it."""

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        out = super().forward(tokens)
        return out if valid is None else out.masked_fill(~valid[..., None], 0)


class FillingPadding(ShortConvolution):
    """Does not mask the output: padded positions hold sums of real neighbours."""

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().forward(tokens if valid is None else tokens.masked_fill(~valid[..., None], 0))


class Shifting(ShortConvolution):
    """Starts as a shift by one token."""

    def __init__(self, dim: int, width: int, *, causal: bool) -> None:
        super().__init__(dim, width, causal=causal)
        with torch.no_grad():
            self.weight.copy_(self.weight.roll(-1, dims=1))


class Uncounted(ShortConvolution):
    """Sums up shifted products, none of which PyTorch counts."""

    def slide(self, filled: Tensor) -> Tensor:
        n = filled.shape[1] - self.before - self.after
        taps = enumerate(self.weight.unbind(1))
        return torch.stack([filled[:, at : at + n] * tap for at, tap in taps]).sum(dim=0)


class Strided(ShortConvolution):
    """Returns the strides that a device chooses, so that more is kept for the backward pass on ``meta`` than on a CPU."""

    def slide(self, filled: Tensor) -> Tensor:
        image = filled.transpose(1, 2).unsqueeze(2)
        return F.conv2d(image, self.weight[:, None, None], groups=self.weight.shape[0]).squeeze(2).transpose(1, 2)


class Stubborn(ShortConvolution):
    """Lets no gradient reach the tap of the token itself."""

    def slide(self, filled: Tensor) -> Tensor:
        n = filled.shape[1] - self.before - self.after
        tap = self.weight[:, self.before]
        own = filled[:, self.before : self.before + n]
        return super().slide(filled) + own * (tap.detach() - tap)


class Forgetful(ShortConvolution):
    """Drops the oldest token of the tail when stepping."""

    def step(self, tokens: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        return super().step(tokens, torch.cat([torch.zeros_like(tail[:, :1]), tail[:, 1:]], dim=1))


MUTANTS: list[tuple[type[ShortConvolution], Callable[[], None]]] = [
    (Leaking, lambda: checks.check_causality("linear")),
    (ReadingPadding, lambda: checks.check_padding("softmax")),
    (FillingPadding, lambda: checks.check_tokens("linformer", projected_length=3, order="compress_first")),
    (Shifting, lambda: checks.check_start("softmax")),
    (Uncounted, lambda: checks.check_cost("softmax")),
    (Strided, lambda: checks.check_cost("softmax")),
    (Stubborn, lambda: checks.check_gradients("softmax")),
    (Forgetful, lambda: checks.check_steps("linear")),
]


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_the_check_catches_its_mutant_and_lets_the_original_pass(mutant, check, monkeypatch):
    check()
    monkeypatch.setattr("attn_zoo.layer.multi_head.ShortConvolution", mutant)
    with pytest.raises((AssertionError, GradcheckError)):
        check()


def test_every_check_has_a_mutant():
    named = {name for _, check in MUTANTS for name in check.__code__.co_names}
    assert {name for name in vars(checks) if name.startswith("check_")} <= named
