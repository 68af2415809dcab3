"""Broken attentions, at least one for each check. Several are defects that published packages really have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from originals import ORIGINALS, Hashed, Linear, NoOptions, PlainSoftmax, Projected, ProjectedOptions
from torch import Tensor

from attn_zoo.attention.controls.uniform import UniformAverage
from attn_zoo.contract import Attention, AttentionCard, Geometry, UnsupportedError, by_length, softmax_over_valid


class Mutant(NamedTuple):
    """A broken attention, the check that must catch it and a part of what the check must say."""

    check: str
    card: AttentionCard
    original: AttentionCard
    says: str


MUTANTS: list[Mutant] = []
Class = type[Attention]


def breaks(check: str, original: str, says: str, **facts: Any) -> Callable[[Class], Class]:
    """Enter a class as the mutant that ``check`` must catch. ``can`` changes single claims."""

    def enter(cls: Class) -> Class:
        sound = ORIGINALS[original]
        can = replace(sound.can, **facts.pop("can", {}))
        cls.card = replace(sound, name=cls.__name__, build=cls, can=can, **facts)
        MUTANTS.append(Mutant(check, cls.card, sound, says))
        return cls

    return enter


# --- the card --------------------------------------------------------------------------------------------------------


@breaks("card_is_complete", "softmax", "equation is empty", equation=" ")
class Untold(PlainSoftmax):
    """Does not say which equation it computes."""


@dataclass
class Demanding:
    width: int


@breaks("card_is_complete", "linear", "width", options=Demanding)
class Undefaulted(Linear):
    """Cannot be built without an option."""


@dataclass
class Listed:
    widths: list[int] = field(default_factory=list)


@breaks("card_is_complete", "linear", "type list", options=Listed)
class Untypeable(Linear):
    """Has an option that no command line can set."""


@breaks("card_is_complete", "projected", "equals the defaults", variants={"twice": {"projected_length": 6}})
class SameVariant(Projected):
    """Proves its defaults twice."""


@dataclass
class Unshrinking:
    projected_length: int = by_length("6", lambda g: 6)


@breaks("defaults_suit_every_length", "projected", "the defaults are refused at", options=Unshrinking)
class RefusedByDefault(Projected):
    """Refuses short inputs, to which its default is no shorter."""

    def __init__(self, geometry: Geometry, options: Unshrinking, implementation: str = "eager") -> None:
        if options.projected_length >= geometry.keys:
            raise UnsupportedError(f"{geometry.keys} keys are too few")
        super().__init__(geometry, ProjectedOptions(projected_length=options.projected_length), implementation)


@breaks("defaults_suit_every_length", "projected", "the defaults are doubted at")
class DoubtedByDefault(Projected):
    """Doubts what its own default makes of long inputs."""

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        return ("many keys",) if options.projected_length > 100 else ()


@breaks("card_is_complete", "softmax", "the default options refuse")
class CausalInName(PlainSoftmax):
    """Claims a causal form that its defaults lack."""

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        return "not causal" if geometry.causal else None


@breaks("request_checking_is_inherited", "softmax", "overrides forward")
class SwallowsKeywords(PlainSoftmax):
    """Takes any keyword and looks at none, as a public Linformer does with its mask."""

    def forward(self, query: Any, key: Any, value: Any, **ignored: Any) -> Tensor:
        return self.attend(query, key, value, None)


@breaks("output_is_like_the_queries", "softmax", "float64, inputs torch.float32")
class Widens(PlainSoftmax):
    """Answers in double precision whatever it was given."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, key_valid).double()


@breaks("output_is_like_the_queries", "linear", "NaN or infinite")
class ZeroByZero(Linear):
    """Divides by a sum that may vanish."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, key_valid) / (query > 5).any(dim=-1, keepdim=True)


@breaks("cross_lengths_run_or_are_refused", "linear", "must be refused with UnsupportedError")
class SwallowsCross(Linear):
    """Builds for unequal lengths by forgetting one of them."""

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(replace(geometry, queries=geometry.keys), options, implementation)


@breaks(
    "cross_lengths_run_or_are_refused", "linear", "output (3, 2, 33, 8), queries (3, 2, 9, 8)", can={"cross": True, "causal": False}
)
class SquareOnly(Linear):
    """Claims cross attention and answers once per key."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, key_valid).mean(dim=2, keepdim=True).expand_as(value)


@breaks("other_lengths_run_or_are_refused", "softmax", "RuntimeError")
class WholeBlocksOnly(PlainSoftmax):
    """Claims any length and runs at multiples of three."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query.unflatten(2, (-1, 3)).flatten(2, 3), key, value, key_valid)


@breaks("other_lengths_run_or_are_refused", "projected", "RuntimeError")
class WantsTheWholeLength(Projected):
    """Claims shorter inputs and runs at one length."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return self.attend_compressed(query, self.key_map @ key, self.value_map @ value)


@breaks("resizing_leads_to_the_new_length", "projected", "RuntimeError")
class ResizesInName(Projected):
    """Notes the new length and leaves its maps as they are."""

    def resize_length(self, length: int) -> None:
        self.geometry = self.geometry_at(length)


@breaks("resizing_leads_to_the_new_length", "linear", "is refused")
class RefusesToGrow(Linear):
    """Claims any length and refuses to go there."""

    def resize_length(self, length: int) -> None:
        raise UnsupportedError("no")


@breaks("other_lengths_run_or_are_refused", "projected", "must be refused with UnsupportedError")
class CutsItsMaps(Projected):
    """Runs at lengths it does not claim, on the first columns of its maps."""

    def _check_request(self, *request: Any) -> None: ...

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        keys = min(key.shape[2], self.key_map.shape[1])
        maps = self.key_map[:, :keys], self.value_map[:, :keys]
        return self.attend_compressed(query, maps[0] @ key[:, :, :keys], maps[1] @ value[:, :, :keys])


@breaks("unread_inputs_have_no_influence", "uniform", "NaN instead of None as query and key")
class ReadsInSecret(UniformAverage):
    """Uses a key when it is given one, though the card says that it is not read."""

    def attend(self, query: Tensor | None, key: Tensor | None, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value if key is None else value + 0 * key, key_valid)


@breaks("unfit_requests_are_refused", "linear", "must raise ValueError")
class TakesAnything(Linear):
    """Leaves every request unchecked."""

    def _check_request(self, *request: Any) -> None: ...


@breaks("building_draws_what_is_claimed", "hashed", "random_at_build is not claimed", can={"random_at_build": False})
class RandomInSecret(Hashed):
    """Draws its plane without saying so."""


@breaks("building_draws_what_is_claimed", "linear", "the card claims random_at_build", can={"random_at_build": True})
class RandomInName(Linear):
    """Claims to draw something and draws nothing."""


# --- causality -------------------------------------------------------------------------------------------------------


@breaks("causal_output_ignores_the_future", "softmax", "outputs before position 1")
class Peeks(PlainSoftmax):
    """Has no causal mask."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        allowed = None if key_valid is None else key_valid[:, None, None, :]
        return softmax_over_valid(query @ key.mT, allowed) @ value


@breaks("causal_output_ignores_the_future", "linear", "when the future holds")
class StabilisedByTheFuture(Linear):
    """Divides by the largest feature of the whole length before it adds a small constant, as a public Performer does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        features = (key - key.amax(dim=(-2, -1), keepdim=True)).exp() + 1e-4
        return super().attend(query, features, value, key_valid)


@breaks("causal_output_ignores_the_future", "linear", "and the past is 30 times as large")
class StabilisedByAQuietFuture(Linear):
    """Divides by the largest feature of the whole length, which cancels until all features of the past underflow."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        logs = key - key.square().sum(dim=-1, keepdim=True) / 2
        features = (logs - logs.amax(dim=(2, 3), keepdim=True)).exp()
        out = (query.sigmoid().unsqueeze(-2) @ self.running(features, value)).squeeze(-2)
        weight = (query.sigmoid() * features.cumsum(dim=2)).sum(dim=-1, keepdim=True)
        return out / weight.clamp(min=1e-200)


@breaks("causal_output_ignores_the_future", "hashed", "when the future holds")
class FutureMovesBorders(Hashed):
    """Cuts the sorted sequence in the middle, so later positions decide who shares a bucket, as public Reformers do."""

    def buckets(self, height: Tensor, key_valid: Tensor | None) -> Tensor:
        return height.argsort(dim=-1).argsort(dim=-1) > height.shape[-1] // 2


@breaks("causal_output_ignores_the_future", "projected", "when the future holds", can={"causal": True})
class TriangleOnProjections(Projected):
    """Puts a causal mask on projected keys, which hold the whole length, as a public Linformer does."""

    def attend_compressed(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None = None) -> Tensor:
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        return softmax_over_valid(query @ key.mT, allowed) @ value


@breaks("causal_output_ignores_the_future", "projected", "must be refused with UnsupportedError, but it ran")
class SwallowsCausality(Projected):
    """Builds a causal geometry as if it were not."""

    def __init__(self, geometry: Geometry, options: ProjectedOptions, implementation: str = "eager") -> None:
        super().__init__(replace(geometry, causal=False), options, implementation)


@breaks("padding_in_the_future_has_no_influence", "softmax", "when the rest is padding")
class CountsTheFuture(PlainSoftmax):
    """Sharpens by the number of valid keys, later ones included."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        count = torch.tensor(float(key.shape[2])) if key_valid is None else key_valid.sum(dim=-1)[:, None, None, None]
        return super().attend(query * count.log().to(query), key, value, key_valid)


@breaks("causal_output_sees_the_past", "linear", "sees none of")
class SumsOverFeatures(Linear):
    """Runs its sums along the features instead of the positions, as a public Performer does."""

    def running(self, key: Tensor, counted: Tensor) -> Tensor:
        return (key.unsqueeze(-1) * counted.unsqueeze(-2)).cumsum(dim=3)


@breaks("causal_output_sees_the_past", "softmax", "does not see itself")
class BlindToItself(PlainSoftmax):
    """Sees only what came before, as the blocks of a public linear attention do."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        before = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(-1)
        return softmax_over_valid(query @ key.mT, before) @ value
