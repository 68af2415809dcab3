"""More mutants: broken in their gradients, their numbers or their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from mutants import breaks
from originals import ORIGINALS, Led, Linear, PlainSoftmax, Projected, ProjectedOptions, identity, led_cost
from torch import Tensor, nn

from attn_zoo.contract import Cost, Geometry, Growth

# --- gradients -------------------------------------------------------------------------------------------------------


@breaks("every_position_gets_a_gradient", "softmax", "key: no gradient at 1 of 33 positions")
class DropsTheLastKey(PlainSoftmax):
    """Loses a key to rounding down."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        seen = torch.ones(len(key), key.shape[2], dtype=torch.bool) if key_valid is None else key_valid.clone()
        seen[:, -1] = False
        return super().attend(query, key, value, seen)


@breaks("every_position_gets_a_gradient", "led", "stream second_value: no gradient at 33 of 33 positions")
class IgnoresAStream(Led):
    """Asks its layer for a projection that it does not use."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        return super().attend(query, key, value, key_valid, **{**streams, "second_value": value})


@breaks("every_parameter_gets_a_gradient", "projected", "no gradient reaches the parameter idle")
class Idle(Projected):
    """Holds a parameter that changes nothing."""

    def __init__(self, geometry: Geometry, options: ProjectedOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.idle = nn.Parameter(torch.ones(geometry.heads))


@breaks("gradients_match_finite_differences", "linear", "causal=False")
class DetachesTheNormaliser(Linear):
    """Treats its features of the keys as constants when it differentiates."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key.detach() + 0.5 * (key - key.detach()), value, key_valid)


# --- numbers ---------------------------------------------------------------------------------------------------------


@breaks("single_precision_is_close", "softmax", "float32 against float64")
class HalvesInSecret(PlainSoftmax):
    """Computes in half precision whatever falls short of double."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        rounded = query.half().to(query.dtype) if query.dtype == torch.float32 else query
        return super().attend(rounded, key, value, key_valid)


@breaks("large_inputs_stay_finite", "softmax", "inputs 30 times as large")
class Overflows(PlainSoftmax):
    """Takes exponentials of scores as they come, as a public Performer does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        weights = (query @ key.mT / query.shape[-1] ** 0.5).exp()
        return weights @ value / weights.sum(dim=-1, keepdim=True)


@breaks("bfloat16_is_close", "linear", "BFloat16")
class KnowsNoBfloat(Linear):
    """Uses an operation that bfloat16 lacks, as public Nyström attentions do."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        rotation = torch.linalg.qr(torch.eye(query.shape[-1], dtype=query.dtype))[0]
        return super().attend(query @ rotation, key @ rotation, value, key_valid)


@breaks("bfloat16_is_close", "linear", "half of the outputs are off by more than")
class CountsInBfloat(Linear):
    """Subtracts large numbers that bfloat16 cannot tell apart."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, (value + 300) - 300, key_valid)


@breaks("compiled_agrees", "softmax", "compiled by eager")
class CompilesOtherwise(PlainSoftmax):
    """Takes another path when it is compiled, and leaves the scale behind."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(2 * query if torch.compiler.is_compiling() else query, key, value, key_valid)


@breaks("dropout_acts_in_training_only", "softmax", "survivors must be scaled up")
class DropsWithoutScaling(PlainSoftmax):
    """Drops outputs and leaves the survivors as they are."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        kept = 1 - self.options.dropout * self.training
        return super().attend(query, key, value, key_valid) * kept


@breaks("dropout_acts_in_training_only", "softmax", "nothing is dropped")
class NeverDrops(PlainSoftmax):
    """Takes a dropout rate and forgets it."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        was, self.training = self.training, False
        out = super().attend(query, key, value, key_valid)
        self.training = was
        return out


@breaks("limit_is_softmax", "softmax", "against softmax attention")
class WrongScale(PlainSoftmax):
    """Divides by d instead of √d."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query / query.shape[-1] ** 0.5, key, value, key_valid)


class DoublesItsQueries(Projected):
    """Doubles its queries, so that its limit is no softmax attention."""

    def attend_compressed(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().attend_compressed(2 * query, key, value)


breaks("limit_is_softmax", "projected", "against softmax attention", softmax_limit=identity(DoublesItsQueries))(DoublesItsQueries)


@breaks("implementation_agrees_with_eager", "softmax", "errs by")
class RoughKernel(PlainSoftmax):
    """Has a kernel that multiplies in ten bits, as tensor cores do when nobody forbids it."""

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        rough = query + (query.half().to(query.dtype) - query).detach()
        return super().attend_sdpa(rough, key, value, key_valid)


@breaks("implementation_agrees_with_eager", "softmax", "gradient of value")
class KernelWithoutGradient(PlainSoftmax):
    """Has a kernel whose backward forgets the values."""

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend_sdpa(query, key, value.detach(), key_valid)


@breaks("compressing_first_agrees", "projected", "compress first")
class CompressesAlike(Projected):
    """Uses the map of the keys for the values as well when it compresses first."""

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.key_map @ tokens, self.key_map.clone() @ tokens


@breaks("compressing_first_agrees", "projected", "masses against ones compressed")
class WeighsPaddingToo(Projected):
    """Takes padded tokens for real ones when it weighs the bias."""

    def compress_and_weigh(self, tokens: Tensor, key_valid: Tensor | None) -> Any:
        return self.compress(tokens, key_valid), self.compress(torch.ones_like(tokens[..., :1]), None)


@breaks("compressing_first_agrees", "projected", "compressed and weighed against compressed")
class WeighsAlike(Projected):
    """Uses the map of the keys for the values as well when it weighs."""

    def compress_and_weigh(self, tokens: Tensor, key_valid: Tensor | None) -> Any:
        keys, _ = self.compress(tokens, key_valid)
        return (keys, keys), super().compress_and_weigh(tokens, key_valid)[1]


@breaks("compressing_first_agrees", "projected", "compression_flops states")
class CompressesForFree(Projected):
    """Counts one of its two products."""

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        return super().compression_flops(length, width, inputs) // 2


# --- cost ------------------------------------------------------------------------------------------------------------


def half_cost(geometry: Geometry, options: Any) -> Cost:
    return replace(ORIGINALS["softmax"].cost(geometry, options), flops=2 * geometry.queries * geometry.keys * geometry.inner_dim)


@breaks("cost_formula_is_exact", "softmax", "FLOPs, PyTorch counted", cost=half_cost)
class CountsHalf(PlainSoftmax):
    """Counts a multiply-add as one."""


def hidden_parameters(geometry: Geometry, options: Any) -> Cost:
    return replace(ORIGINALS["projected"].cost(geometry, options), parameters=0)


@breaks("cost_formula_is_exact", "projected", "the card says 0 parameters", cost=hidden_parameters)
class HidesParameters(Projected):
    """Does not count what grows with the length."""


def backward_as_forward(geometry: Geometry, options: Any) -> Cost:
    cost = ORIGINALS["softmax"].cost(geometry, options)
    return replace(cost, backward_flops=cost.flops)


@breaks("cost_formula_is_exact", "softmax", "FLOPs backward, PyTorch counted", cost=backward_as_forward)
class HalvesItsBackward(PlainSoftmax):
    """Counts one gradient of a product that has two."""


def state_of(tensors: float) -> Callable[[Geometry, Any], Cost]:
    def cost(geometry: Geometry, options: Any) -> Cost:
        state = int(tensors * 4 * geometry.keys * geometry.inner_dim)
        return replace(ORIGINALS["softmax"].cost(geometry, options), state_bytes=state if geometry.causal else None)

    return cost


@breaks("state_bytes_are_needed_and_enough", "softmax", "depend on 40 independent numbers", cost=state_of(1))
class CachesKeysOnly(PlainSoftmax):
    """Forgets that values are cached, too."""


@breaks("state_bytes_are_needed_and_enough", "softmax", "depend on 40 independent numbers", cost=state_of(1.8))
class ForgetsTheFirst(PlainSoftmax):
    """Counts a cache that lacks one of five tokens' keys."""


@breaks("state_bytes_are_needed_and_enough", "softmax", "all of key, value, which later answers depend on", cost=state_of(3))
class CachesQueriesToo(PlainSoftmax):
    """Counts queries among what must be held."""


def always(geometry: Geometry, options: Any) -> Cost:
    return replace(ORIGINALS["softmax"].cost(geometry, options), state_bytes=8 * geometry.keys * geometry.inner_dim)


@breaks("state_bytes_are_needed_and_enough", "softmax", "of state without causality", cost=always)
class StateWithoutOrder(PlainSoftmax):
    """States a cache where every token sees all others."""


@breaks("shapes_flow_without_numbers", "softmax", "asks shapes for numbers")
class Peeping(PlainSoftmax):
    """Chooses its path by looking at its inputs."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value if value.sum() > 0 else value * 1, key_valid)


@breaks("time_grows_as_printed", "led", "FLOPs grow like n^2.00", time=Growth("n d"), cost=led_cost)
class LinearInName(Led):
    """Prints a big-O that its own formula contradicts."""


@breaks("time_grows_as_printed", "linear", "numbers written grow like n^")
class QuadraticSums(Linear):
    """Forms all pairs where no matrix product shows them, block by block."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        pairs = torch.stack([(query - key[:, :, j : j + 1]).sum(dim=(2, 3)) for j in range(0, key.shape[2], 16)]).sum(dim=0)
        return super().attend(query, key, value, key_valid) + 0 * pairs[..., None, None]


@breaks("time_grows_as_printed", "linear", "eager, causal=False: FLOPs grow like n^", implementations=("eager", "tiled"))
class QuadraticBesideItsTiles(Linear):
    """Compares all pairs block by block in ``eager``, where the card counts tiles that do not."""

    attend_tiled = Linear.attend

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        pairs = torch.stack([(query @ rows.mT).sum(dim=-1) for rows in key.split(16, dim=2)]).sum(dim=0)
        return super().attend(query, key, value, key_valid) + 0 * pairs[..., None]


@breaks("time_grows_as_printed", "linear", "eager, causal=False: numbers written grow like n^", implementations=("eager", "tiled"))
class QuadraticSumsBesideItsTiles(QuadraticSums):
    """The same without matrix products."""

    attend_tiled = Linear.attend


@breaks("memory_grows_as_printed", "linear", "the largest tensor grows like n^")
class FormsAllPairs(Linear):
    """Allocates queries × keys always, as a public BigBird does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        weights = torch.zeros(query.shape[2], key.shape[2], dtype=query.dtype)
        return super().attend(query, key, value, key_valid) + weights[0, 0]


@breaks(
    "memory_grows_as_printed", "linear", "eager, causal=False: the largest tensor grows like n^", implementations=("eager", "tiled")
)
class FormsAllPairsBesideItsTiles(FormsAllPairs):
    """Allocates queries × keys in ``eager`` alone."""

    attend_tiled = Linear.attend
