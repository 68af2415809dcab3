"""Comparison of outputs and gradients with float64, for mechanisms whose outputs or gradients jump: with ReLU, the largest k scores
or another hard choice.

Near a jump, float32 and float64 may choose differently, although both are right. A jump in float64 is found by its second
difference: if the inputs move by a few roundings of float32, a smooth function moves in proportion, but a jump has its whole height
either in the first or in the second half of the way. Small differences of large numbers are smooth, so they do not excuse an
error of float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attn_zoo.conformance.requests import Request, answers
from attn_zoo.contract import Attention

MOVED = 4
"""How far each input number moves in the search for jumps: this many roundings of float32, up or down at random."""
COPIES = 32
"""Largest number of copies of the inputs, moved in different directions, in the search for jumps."""


def perturbed(request: Request, dtype: torch.dtype, seed: int = 3, roundings: float = 1) -> Request:
    """Return a copy of the request in which each number is changed, up or down at random, by ``roundings`` roundings of
    ``dtype``."""
    generator, step = torch.Generator().manual_seed(seed), roundings * torch.finfo(dtype).eps

    def perturb(_: str, tensor: Tensor) -> Tensor:
        up = torch.rand(tensor.shape, generator=generator).to(tensor.device) < 0.5
        return tensor * torch.where(up, 1 + step, 1 - step)

    return request.changed(perturb)


def errors_apart_from_jumps(
    got: Mapping[str, Tensor], want: Mapping[str, Tensor], allowed: Mapping[str, float], request: Request, exact: Attention
) -> dict[str, Tensor]:
    """Return the distance of each number from float64, with zeros where a jump explains a distance beyond the permitted one.

    A jump explains it if the distance is at most the height of the jump plus the permitted error.

    Args:
        got: outputs and gradients in float32, by name. The other dictionaries have the same keys.
        want: outputs and gradients in float64.
        allowed: largest permitted error of each output or gradient.
        request: inputs in float64.
        exact: module in float64, whose answers to ``request`` are ``want``.
    """
    errors = {name: (got[name].double() - want[name]).abs() for name in got}
    jumps = {name: torch.zeros_like(error) for name, error in errors.items()}
    for seed in range(COPIES):
        if all((error <= allowed[name]).all() for name, error in errors.items()):
            break
        half, whole = (answers(perturbed(request, torch.float32, seed, far), exact) for far in (MOVED / 2, MOVED))
        for name, error in errors.items():
            jumps[name] = torch.maximum(jumps[name], (whole[name] - 2 * half[name] + want[name]).abs())
            explained = (error > allowed[name]) & (error <= jumps[name] + allowed[name])
            errors[name] = error.masked_fill(explained, 0)
    return errors
