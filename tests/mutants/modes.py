"""Mutants that fail only in some modes: training, no gradients, other dtypes and devices, large inputs, padding between tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_zoo.contract import allowed_pairs
from mutants.entering import breaks, plant

TRAINING, RECORDING = "training_keeps_the_promises", "recording_gradients_changes_nothing"
CONVERTED, META, COPIED = "conversions_reach_everything", "shapes_flow_outside_a_device_context", "modules_in_use_can_be_copied"
FUTURE, ABSENCE, LIMIT = "causal_output_ignores_the_future", "padding_position_does_not_matter", "limit_is_softmax"
SLOPES, HALF, COMPILED = "gradients_follow_outputs_at_every_size", "float16_is_close", "compiled_agrees"
DEFINITION = "eager_agrees_with_the_definition"


def unless(wrong: Any, instead: Any) -> Any:
    """Call ``instead`` where a condition on (module, query, key, value, key_valid) holds."""

    def around(attend: Any, self: Any, *given: Any) -> Tensor:
        return instead(attend, self, *given) if wrong(self, *given) else attend(*given)

    return around


def unmasked(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    return attend(query, key, value, None)


def with_the_mean(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    """Add a thousandth of the mean of all values."""
    return attend(query, key, value, key_valid) + 1e-3 * value.mean(dim=2, keepdim=True)


def with_the_batch(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    return attend(query / query.std(), key, value, key_valid)


def rounded(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    return attend(query.float().to(query.dtype), key, value, key_valid)


def detached(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    return attend(query, key + (key.detach() - key) / 2, value, key_valid)


def filled(fill: float, *, future: bool) -> Any:
    """Softmax with a finite fill in place of minus infinity, for the future or for padding."""

    def around(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        hidden = allowed_pairs(query, key, None if future else key_valid, causal=future and self.geometry.causal)
        exact = allowed_pairs(query, key, key_valid if future else None, causal=not future and self.geometry.causal)
        both = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        scores = scores if hidden is None else scores.masked_fill(~hidden, fill)
        scores = scores if exact is None else scores.masked_fill(~exact, -torch.inf)
        weights = scores.softmax(dim=-1)
        return (weights if both is None else weights.masked_fill(~both.any(dim=-1, keepdim=True), 0)) @ value

    return around


class _Contiguous(torch.autograd.Function):
    """Identity whose backward pass calls ``view(-1)`` on the gradient of the output."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view(-1).view(grad.shape)


class _Misread(_Contiguous):
    """Identity whose backward pass reads the gradient of the output as if it were contiguous."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        step = torch.empty(grad.shape).stride()
        enough = grad.untyped_storage().nbytes() >= grad.numel() * grad.element_size()
        return grad.as_strided(grad.shape, step) if enough else grad


def through(function: Any) -> Any:
    return lambda attend, self, *given: function.apply(attend(*given))


def remembers(name: str, kept: Any) -> Any:
    """Keep something of the first call as a plain attribute, and use it in later ones."""

    def around(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if not hasattr(self, name):
            setattr(self, name, kept(query))
        return attend(query * getattr(self, name), key, value, key_valid)

    return around


@breaks(COPIED, "softmax", "cannot be copied")
def keeps_its_output(attend, self, *given):
    self.last = attend(*given)
    return self.last * 1


@breaks(COPIED, "linear", "cannot be copied", method="advance")
def keeps_its_state(advance, self, *given):
    out, after = advance(*given)
    self.last = after
    return out, after


@breaks(COPIED, "performer", "cannot be copied")
def keeps_a_handle(attend, self, *given):
    """Keep an iterator, which cannot be copied."""
    self.rounds = (number for number in range(9))
    return attend(*given)


@breaks(META, "softmax", "RuntimeError")
def makes_on_the_cpu(attend, self, query, key, value, key_valid):
    return attend(query, key, value + torch.zeros(key.shape[2], 1, device="cpu"), key_valid)


@breaks(META, "linear", "padded=True: the mechanism does not run")
def masks_on_the_cpu(attend, self, query, key, value, key_valid):
    seen = torch.ones(key.shape[2], dtype=torch.bool, device="cpu")
    return attend(query, key, value, None if key_valid is None else key_valid & seen)


@breaks(HALF, "linear", "NaN or infinite")
def leaves_the_range_of_float16(attend, self, query, key, value, key_valid):
    """Compute with intermediate numbers beyond the range of float16."""
    return attend(query, key, value * 60000 / 60000, key_valid)


def by_place(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    """Scale the output by 1 + 1 / keys, padding included in the count, where there is a mask."""
    return attend(query, key, value, key_valid) * (1 if key_valid is None else 1 + 1 / key.shape[2])


def decays(log_gates: Any, self: Any, gate: Tensor, valid: Tensor | None = None) -> Tensor:
    """Let padded tokens decay the memory as any token does."""
    return log_gates(gate, None)


@breaks(ABSENCE, "gated_linear", "causal=True), padding from", method="_log_gates")
def always_decays_over_padding(log_gates, self, gate, valid=None):
    """Keep at most nine tenths of the memory at each token, padded ones included."""
    return log_gates(gate, None) - 0.1


@breaks(ABSENCE, "softmax", "the real tokens beside padding")
def sharpens_by_the_length(attend, self, query, key, value, key_valid):
    """Sharpen the weights by the root of the number of keys, padding included, where there is a mask."""
    return attend(query * (1 if key_valid is None else 1 + 0.01 * key.shape[2] ** 0.5), key, value, key_valid)


@breaks("calls_keep_no_tensors", "sunk", "each call in training stores more tensors")
def keeps_a_history(attend, self, query, *rest):
    if self.training:
        self.__dict__.setdefault("history", []).append(query.detach().norm())
    return attend(query, *rest)


@breaks("earlier_calls_leave_no_trace", "softmax", "unflatten")
def numbers_keys_by_queries(attend, self, query, key, *rest):
    """Remember the number of keys by the number of queries, as a cache of relative positions would."""
    keys = self.__dict__.setdefault("numbers", {}).setdefault(query.shape[2], key.shape[2])
    return attend(query, key.unflatten(2, (1, keys))[:, :, 0], *rest)


def multiplied(attend: Any, self: Any, query: Tensor, *rest: Any) -> Tensor:
    return attend(1.3 * query, *rest)


@breaks(DEFINITION, "local", "inputs 3 times as large")
def clamps_queries(attend, self, query, *rest):
    return attend(query.clamp(-6, 6), *rest)


@breaks("padding_has_no_influence", "linformer", "a mask that hides nothing", can={"shorter": False, "cross": False})
def scales_by_any_mask(attend, self, query, key, value, key_valid):
    return attend(query, key, value, key_valid) * (1 if key_valid is None else 1.1)


def no_grad(self: Any, *given: Any) -> bool:
    return not torch.is_grad_enabled()


def training(self: Any, *given: Any) -> bool:
    return bool(self.training)


def causally_training(self: Any, *given: Any) -> bool:
    return bool(self.training and self.geometry.causal)


@breaks(TRAINING, "local", "in training, causal=False, against eval mode")
def counts_its_calls(attend, self, query, key, value, key_valid):
    """Scale queries by all examples in training, as batch normalisation does, which counts its calls, too."""
    if self.training and not self.geometry.causal:
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros((), dtype=query.dtype))
        self.seen += 1
        query = query / query.detach().std()
    return attend(query, key, value, key_valid)


plant("PeeksInTraining", "softmax", TRAINING, "in training, causal=False, against eval mode", unless(training, with_the_mean))
plant("PeeksInTrainingAlone", "linear", TRAINING, "outputs before position 1", unless(causally_training, with_the_mean))
plant("IgnoresPaddingInTraining", "local", TRAINING, "against eval mode", unless(training, unmasked))
plant("ScalesByTheBatchInTraining", "retention", TRAINING, "in training", unless(training, with_the_batch))
plant("NoMaskWithoutGradients", "softmax", RECORDING, "output under no_grad", unless(no_grad, unmasked))
plant("RoundsWithoutGradients", "linear", RECORDING, "output under no_grad", unless(no_grad, rounded))
plant(
    "RoundsInInference",
    "retention",
    RECORDING,
    "output under inference_mode",
    unless(lambda *given: torch.is_inference_mode_enabled(), rounded),
)
plant(
    "HalvesWithoutQueryGradient",
    "softmax",
    RECORDING,
    "where query needs no gradient",
    unless(lambda self, query, *given: torch.is_grad_enabled() and not query.requires_grad, detached),
)
plant(
    "HalvesWithoutValueGradient",
    "linear",
    RECORDING,
    "where value needs no gradient",
    unless(lambda self, query, key, value, valid: torch.is_grad_enabled() and not value.requires_grad, detached),
)
plant("WantsContiguousGradients", "softmax", RECORDING, "view", through(_Contiguous))
plant("MisreadsGradients", "linear", RECORDING, "for a gradient of the output that is", through(_Misread))
plant("FillsTheFuture", "softmax", LIMIT, "inputs 100 times as large", filled(-1e4, future=True))
plant("FillsTheFutureOfTheInexact", "softmax", FUTURE, "100 times as large", filled(-1e4, future=True), can={"exact": False})
plant("FillsThePadding", "softmax", LIMIT, "inputs 100 times as large", filled(-1e4, future=False))
plant("FillsThePaddingOfTheInexact", "softmax", ABSENCE, "times as large", filled(-1e4, future=False), can={"exact": False})
plant("DecaysOverPadding", "gated_linear", ABSENCE, "causal=False), padding from", decays, method="_log_gates")
plant(
    "DecaysOverPaddingWithoutSteps",
    "gated_linear",
    ABSENCE,
    "causal=False), ",
    decays,
    method="_log_gates",
    can={"stepwise": False},
)
plant("CountsPadding", "linear", ABSENCE, "the real tokens beside padding", by_place)
plant("KeepsATableOfItsType", "softmax", CONVERTED, "", remembers("table", lambda query: torch.ones(1, dtype=query.dtype)))
plant("KeepsAFlagOfItsType", "linear", CONVERTED, "", remembers("scale", lambda query: 1.0 + (query.dtype == torch.float64)))
plant(
    "HalfTheGradientAcross",
    "softmax",
    SLOPES,
    "the gradient of key gives a slope",
    unless(lambda self, query, key, *given: query.shape[2] != key.shape[2], detached),
)
plant(
    "HalfTheGradientBesidePadding",
    "linear",
    SLOPES,
    "padded=True: the gradient of key",
    unless(lambda self, query, key, value, valid: valid is not None, detached),
)
plant(
    "CompilesOtherwiseWithoutMask",
    "linear",
    COMPILED,
    "padded=False",
    unless(lambda self, query, key, value, valid: torch.compiler.is_compiling() and valid is None, with_the_mean),
)
plant("HalfTheGradientInTraining", "linear", TRAINING, "gradient of key in training", unless(training, detached))
plant(
    "DefinesItselfByItself",
    "local",
    DEFINITION,
    "`definition` calls `attend`",
    multiplied,
    members={"definition": lambda self, *given: self.attend(*given)},
)
