"""Mutants that break a promise that a single output does not show: heads, the process, options, errors, resizing, empty inputs."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.dense import softmax
from attn_zoo.attention.linear import linear, retention
from mutants.entering import breaks, plant

HEADS, PROCESS, OPTIONS = "heads_keep_to_themselves", "the_process_is_left_as_it_was", "options_hold_beyond_the_variants"
RESIZED, ERRORS, EMPTY = "resizing_keeps_what_was_trained", "calls_recover_from_errors", "empty_inputs_are_answered_or_refused"
SERVED = "some_setting_is_served"


@breaks(HEADS, "linear", "when head 1 holds")
def scales_by_all_heads(attend, self, query, key, value, key_valid):
    return attend(query, key / key.detach().abs().amax(dim=(1, 3), keepdim=True), value, key_valid)


@breaks(HEADS, "softmax", "head 2 when head 1 holds")
def leaks_to_the_next_head(attend, self, query, key, value, key_valid):
    return attend(query, key, value + 1e-3 * value.roll(1, dims=1), key_valid)


@breaks(HEADS, "softmax", "when head 0 holds")
def follows_the_first_head(attend, self, query, key, value, key_valid):
    return attend(query + 1e-3 * query[:, :1].detach(), key, value, key_valid)


def first(act: Any) -> Any:
    """Call ``act(module)`` before each call of a method of the base."""

    def around(attend: Any, self: Any, *given: Any) -> Tensor:
        act(self)
        return attend(*given)

    return around


@dataclass
class Reversible(softmax.Options):
    reverse: bool = False
    """Read the sequence from its end."""


@dataclass
class Powered(linear.Options):
    power: int = 1


@dataclass
class Named(linear.Options):
    kernel: str = "plain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel not in ("plain", "loud", "quiet"):
            raise ValueError(f"kernel is one of plain, loud, quiet; got {self.kernel!r}")


@dataclass
class Unchecked(linear.Options):
    kernel: str = "plain"


@dataclass
class Tempered(retention.Options):
    temperature: float = 1.0


@breaks(OPTIONS, "retention", "temperature=2.0: ", options=Tempered)
def ignores_padding_when_hot(attend, self, query, key, value, key_valid):
    return attend(query, key, value, None if self.options.temperature > 1 else key_valid)


@breaks(OPTIONS, "softmax", "reverse=True: ", options=Reversible, can={"exact": False})
def reads_from_the_end(attend, self, query, key, value, key_valid):
    if not self.options.reverse:
        return attend(query, key, value, key_valid)
    turned = None if key_valid is None else key_valid.flip(1)
    return attend(*(x.flip(2) for x in (query, key, value)), turned).flip(2)


@breaks(OPTIONS, "linear", "power=2: ", options=Powered)
def knows_one_power(attend, self, query, key, value, key_valid):
    return attend(query, key, value, key_valid) if self.options.power == 1 else attend(query, key.bool(), value, key_valid)


@breaks(OPTIONS, "linear", "kernel=quiet: ", options=Named)
def quiet_without_padding(attend, self, query, key, value, key_valid):
    return attend(query, key, value, None if self.options.kernel == "quiet" else key_valid)


@breaks(OPTIONS, "linear", "kernel=unheard-of: output_is_like_the_queries: KeyError", options=Unchecked)
def looks_up_any_text(attend, self, query, key, value, key_valid):
    return attend(query, key * {"plain": 1, "loud": 2}[self.options.kernel], value, key_valid)


@breaks(OPTIONS, "linear", "building must succeed, or raise", options=Unchecked, method="__init__")
def looks_up_when_built(init, self, geometry, options, *rest):
    assert {"plain": 1, "loud": 2}[options.kernel]
    init(geometry, options, *rest)


@breaks(OPTIONS, "linear", "power=2: ", options=Powered)
def half_the_gradient_of_powers(attend, self, query, key, value, key_valid):
    return attend(query, key if self.options.power == 1 else key + (key.detach() - key) / 2, value, key_valid)


@breaks(RESIZED, "linformer", "depend on the trained weights", method="resize_length")
def half_anew_when_resized(resize_length, self, length):
    another = length != self.geometry.keys
    resize_length(length)
    if another:
        self.maps[0].weight.data[-1] = 0


@breaks(RESIZED, "linformer", "froze own_maps.0.weight", method="resize_length")
def freezes_when_resized(resize_length, self, length):
    resize_length(length)
    self.maps[0].weight.requires_grad_(False)


@breaks(RESIZED, "linformer", "and eval mode; got", method="resize_length")
def narrows_when_resized(resize_length, self, length):
    another = length != self.geometry.keys
    resize_length(length)
    if another:
        self.float()


@breaks(RESIZED, "reformer", "changed rotations", method="resize_length")
def hashes_anew_when_resized(resize_length, self, length):
    if length != self.geometry.keys:
        self.rotations = torch.randn_like(self.rotations)
    self.geometry = self.geometry_at(length)


@breaks(ERRORS, "softmax", "a call is on already")
def busy_after_an_error(attend, self, *given):
    """Set a flag for the duration of a call, which an error leaves set."""
    if getattr(self, "busy", False):
        raise RuntimeError("a call is on already")
    self.busy = True
    out = attend(*given)
    self.busy = False
    return out


@breaks(ERRORS, "performer", "the call after an error")
def scaled_after_an_error(attend, self, *given):
    """Double a buffer for the duration of the call, which an error leaves doubled."""
    self.directions.mul_(2)
    out = attend(*given) * 1
    self.directions.div_(2)
    return out


@breaks(ERRORS, "linear", "the call after an error")
def forgets_after_an_error(attend, self, query, key, value, key_valid):
    """Scale the output by 1.01 after a call that failed before its length was recorded."""
    known, self.seen = getattr(self, "seen", None), None
    out = attend(query, key, value if known is None else value + 0, key_valid)
    if known is None and getattr(self, "called", False):
        out = out * 1.01
    self.seen, self.called = key.shape[2], True
    return out


@breaks(EMPTY, "linear", "ZeroDivisionError", method="check_lengths")
def divides_by_the_batch(check_lengths, self, batch, *given):
    check_lengths(batch, *given)
    assert self.geometry.keys * batch // batch


@breaks(EMPTY, "softmax", "IndexError", method="check_lengths")
def looks_at_the_first_mask(check_lengths, self, batch, queries, keys, key_valid):
    check_lengths(batch, queries, keys, key_valid)
    if key_valid is not None:
        key_valid[0].any()


def refuses_all(cls: Any, implementation: str, geometry: Any, options: Any) -> str | None:
    return "no" if implementation == "sdpa" else None


plant("MixesInName", "local", HEADS, "no head influences another", can={"mixes_heads": True})
plant("SeedsItsCalls", "softmax", PROCESS, "a call draws from torch", first(lambda self: torch.manual_seed(0)))
plant("SeedsWhenBuilt", "linformer", PROCESS, "building seeds torch", first(lambda self: torch.manual_seed(0)), method="__init__")
plant("DrawsWhenBuilt", "local", PROCESS, "building draws from torch", first(lambda self: torch.rand(1)), method="__init__")
plant("DrawsFromRandom", "retention", PROCESS, "the state of random", first(lambda self: random.random()))
plant("SetsThreads", "softmax", PROCESS, "number of threads", first(lambda self: torch.set_num_threads(2)))
plant("SetsPrecision", "linear", PROCESS, "precision of", first(lambda self: torch.set_float32_matmul_precision("medium")))
plant(
    "SilencesWarnings",
    "performer",
    PROCESS,
    "filters of warnings",
    first(lambda self: warnings.simplefilter("ignore", Warning, append=True)),
)
plant(
    "SetsThreadsInTraining",
    "retention",
    PROCESS,
    "in training",
    first(lambda self: torch.set_num_threads(3 if self.training else 1)),
)
plant(
    "RefusesEverything",
    "softmax",
    SERVED,
    "sdpa supports no variant of the card: no",
    members={"refuses": classmethod(refuses_all)},
)
