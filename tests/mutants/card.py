"""Mutants with a card that is false or incomplete, or that do not refuse requests beyond their claims."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from attn_zoo.attention.linear.linear import Linear
from attn_zoo.attention.low_rank import linformer
from attn_zoo.attention.low_rank.linformer import Linformer
from attn_zoo.contract import Geometry, UnsupportedError, by_length
from mutants.entering import breaks, plant
from mutants.originals import PlainSoftmax


@breaks("card_is_complete", "softmax", "equation is empty", equation=" ")
class Untold(PlainSoftmax):
    """Does not say which equation it computes."""


@dataclass
class Demanding:
    width: int


@dataclass
class Listed:
    widths: list[int] = field(default_factory=list)


@dataclass
class Unshrinking(linformer.Options):
    projected_length: int = by_length("6", lambda g: 6)


@breaks("defaults_suit_every_length", "linformer", "the method warnings warns of the defaults at")
class DoubtedByDefault(Linformer):
    """Warns about its own default projected length for long inputs."""

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        return ("many keys",) if options.projected_length > 100 else ()


@breaks("card_is_complete", "softmax", "the default options do not support")
class CausalInName(PlainSoftmax):
    """Claims a causal form that its defaults lack."""

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        return "not causal" if geometry.causal else None


@breaks("request_checking_is_inherited", "softmax", "overrides forward")
class SwallowsKeywords(PlainSoftmax):
    """Accepts any keyword and ignores it, as a public Linformer does with its mask."""

    def forward(self, query: Any, key: Any, value: Any, **ignored: Any) -> Tensor:
        return self.attend(query, key, value, None)


@breaks("output_is_like_the_queries", "softmax", "float64, but the inputs have torch.float32")
def widens(attend, self, query, key, value, key_valid):
    """Returns float64 for inputs of any dtype."""
    return attend(query, key, value, key_valid).double()


@breaks("output_is_like_the_queries", "linear", "NaN or infinite")
def zero_by_zero(attend, self, query, key, value, key_valid, **streams):
    """Divides by a sum that may vanish."""
    return attend(query, key, value, key_valid) / (query > 5).any(dim=-1, keepdim=True)


@breaks("cross_lengths_run_or_are_refused", "linear", "must raise UnsupportedError", can={"cross": False}, method="__init__")
def swallows_cross(init, self, geometry, *rest):
    """Accepts unequal lengths of queries and keys and ignores one of them."""
    init(replace(geometry, queries=geometry.keys), *rest)


@breaks(
    "cross_lengths_run_or_are_refused",
    "linear",
    "output has shape (3, 2, 33, 8), but the queries have (3, 2, 9, 8)",
    can={"causal": False},
)
def square_only(attend, self, query, key, value, key_valid, **streams):
    """Claims cross attention and returns one output for each key."""
    return attend(query, key, value, key_valid).mean(dim=2, keepdim=True).expand_as(value)


@breaks("other_lengths_run_or_are_refused", "softmax", "RuntimeError")
def whole_blocks_only(attend, self, query, key, value, key_valid):
    """Claims any length and runs at multiples of three only."""
    return attend(query.unflatten(2, (-1, 3)).flatten(2, 3), key, value, key_valid)


@breaks("other_lengths_run_or_are_refused", "linformer", "RuntimeError")
def wants_the_whole_length(attend, self, query, key, value, key_valid):
    """Claims shorter inputs and runs at one length only."""
    keys, values = self.maps[0].matrix[:, 0]
    return self.attend_compressed(query, keys @ key, values @ value)


@breaks("resizing_leads_to_the_new_length", "linformer", "RuntimeError", method="resize_length")
def resizes_in_name(resize_length, self, length):
    """Records the new length and leaves its maps unchanged."""
    self.geometry = self.geometry_at(length)


@breaks("resizing_leads_to_the_new_length", "linear", "is unsupported", method="resize_length")
def refuses_to_grow(resize_length, self, length):
    """Claims any length and refuses to be resized."""
    raise UnsupportedError("no")


@breaks("other_lengths_run_or_are_refused", "linformer", "must raise UnsupportedError")
class CutsItsMaps(Linformer):
    """Runs at lengths it does not claim, on the first columns of its maps."""

    def _check_request(self, *request: Any) -> None: ...

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        n = self.geometry.keys
        return super().attend(query, key[:, :, :n], value[:, :, :n], key_valid)


@breaks("unread_inputs_have_no_influence", "uniform", "NaN instead of None as query and key")
def reads_in_secret(attend, self, query, key, value, key_valid):
    """Uses a key when it is given one, though the card says that it is not read."""
    return attend(query, key, value if key is None else value + 0 * key, key_valid)


@breaks("unfit_requests_are_refused", "linear", "must raise ValueError")
class TakesAnything(Linear):
    """Skips the check of every request."""

    def _check_request(self, *request: Any) -> None: ...


COMPLETE, DRAWS, CLAIMED = "card_is_complete", "building_draws_what_is_claimed", "random_at_build"
SHORT = "the default options are unsupported at"
plant("CannotBeBuiltWithoutAnOption", "linear", COMPLETE, "width", options=Demanding)
plant("HasAnOptionThatNoCommandSets", "linear", COMPLETE, "type list", options=Listed)
plant("HasAVariantLikeItsDefaults", "linformer", COMPLETE, "equals the defaults", variants={"twice": {"projected_length": 18}})
plant("RefusesShortInputsByDefault", "linformer", "defaults_suit_every_length", SHORT, options=Unshrinking)
plant("RandomInSecret", "reformer", DRAWS, f"does not declare {CLAIMED}", can={CLAIMED: False})
plant("RandomInName", "linear", DRAWS, f"the card declares {CLAIMED}", can={CLAIMED: True})
