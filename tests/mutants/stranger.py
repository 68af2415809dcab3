"""Defects devised without knowledge of the kit, in softmax attention with a sink and a temperature."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attn_zoo.contract import Cost, Geometry, allowed_pairs, softmax_over_valid
from mutants.entering import breaks
from mutants.originals import ORIGINALS, Sunk, SunkOptions

# --- softmax with a sink and a temperature ---------------------------------------------------------------------------


@breaks("padding_amounts_to_shorter_inputs", "sunk", "30 positions padded to 31")
def masks_after_softmax(attend, self, query, key, value, key_valid):
    """Sets the weights of padded keys to zero after they have taken their share: here their values are zero."""
    return attend(query, key, value, None)


@breaks("batch_mates_have_no_influence", "sunk", "an example in a batch against it alone")
def repeats_the_mask(attend, self, query, key, value, key_valid):
    """Repeats the mask for the heads in the order heads, batch, where the scores are in the order batch, heads."""
    if key_valid is None:
        return attend(query, key, value, None)
    batch, heads, keys = key.shape[:3]
    mask = key_valid.repeat(heads, 1).view(batch, heads, keys)
    return torch.stack([attend(query, key, value, mask[:, head])[:, head] for head in range(heads)], dim=1)


@breaks("inputs_are_left_alone", "sunk", "before and after the call")
def scales_in_place(attend, self, query, key, value, key_valid):
    """Scales the caller's queries in place where no gradient is needed."""
    if torch.is_grad_enabled():
        return attend(query, key, value, key_valid)
    query.mul_(2)
    return attend(query / 2, key, value, key_valid)


@breaks("inputs_are_left_alone", "sunk", "key_valid")
def opens_the_mask(attend, self, query, key, value, key_valid):
    """Lets an example without valid keys see its first key, by writing into the caller's mask."""
    if key_valid is not None:
        key_valid[:, 0] |= ~key_valid.any(dim=-1)
    return attend(query, key, value, key_valid)


def one_temperature(geometry: Geometry, options: SunkOptions) -> Cost:
    return replace(ORIGINALS["sunk"].cost(geometry, options), parameters=geometry.heads)


@breaks("shapes_flow_outside_a_device_context", "sunk", "RuntimeError", cost=one_temperature, method="__init__")
def keeps_a_loose_sink(init, self, *given):
    """Holds its sink as a tensor that is no parameter: no optimiser, checkpoint or device knows it."""
    init(*given)
    del self.sinks
    self.sinks = torch.zeros(self.geometry.heads, requires_grad=True)


@breaks("gradients_end_in_inputs_and_parameters", "sunk", "neither an input nor a parameter", cost=one_temperature)
class ListsItsSinks(Sunk):
    """Holds a plain list of parameters, one for each head, which modules do not register, and casts them at every call."""

    def __init__(self, geometry: Geometry, options: SunkOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        del self.sinks
        self.listed = [nn.Parameter(torch.zeros(1)) for _ in range(geometry.heads)]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        self.sinks = torch.cat([sink.to(query) for sink in self.listed])  # type: ignore[assignment]  # the defect
        return super().attend(query, key, value, key_valid)


@breaks("gradients_follow_outputs_at_every_size", "sunk", "log_temperature")
class RemembersItsTemperature(Sunk):
    """Computes the temperature once in eval mode, and never again."""

    _cached: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if self.training:
            self._cached = None
            return super().attend(query, key, value, key_valid)
        if self._cached is None:
            self._cached = (self.log_temperature.exp() / 1.0).detach().clone()
        now = self.log_temperature.exp()
        return super().attend(query * (self._cached / now.detach()).to(query.dtype), key, value, key_valid)


@breaks("calls_keep_no_tensors", "sunk", "last_weights")
def keeps_its_weights(attend, self, query, key, value, key_valid):
    """Keeps the weights of the last call, n × n numbers, as for a plot."""
    self.last_weights = (query @ key.mT).softmax(dim=-1).detach()
    return attend(query, key, value, key_valid)


@breaks("calls_are_silent", "sunk", "query")
def prints(attend, self, query, *rest):
    """Prints a line of debugging output at every call."""
    print("query", tuple(query.shape))
    return attend(query, *rest)


@breaks("calls_are_silent", "sunk", "no fused kernel")
def warns_always(attend, self, query, key, value, key_valid):
    """Warns at every call."""
    warnings.warn("no fused kernel for sinks; using the slow path", stacklevel=2)
    return attend(query, key, value, key_valid)


@breaks("the_process_is_left_as_it_was", "sunk", "the state of random", method="__init__")
def seeds_python(init, self, *given):
    """Seeds Python's generator when built, so that whatever else draws from it repeats itself."""
    init(*given)
    random.seed(0)


@breaks("the_process_is_left_as_it_was", "sunk", "cuDNN", method="__init__")
def tunes_the_process(init, self, *given):
    """Switches on cuDNN's search for the fastest convolutions, for every network in the process."""
    init(*given)
    torch.backends.cudnn.benchmark = True


@breaks("gradients_follow_dropout", "sunk", "slope")
def drops_anew(attend, self, query, key, value, key_valid):
    """Recomputes the weights in the backward pass with a new draw of dropout."""
    if not self.training:
        return attend(query, key, value, key_valid)
    out: Tensor = checkpoint(attend, query, key, value, key_valid, use_reentrant=False, preserve_rng_state=False)
    return out


@breaks("every_size_runs_in_every_type", "sunk", "IndexError")
def squeezes_its_heads(attend, self, query, key, value, key_valid):
    """Squeezes every axis of size one, including that of the heads where there is one head."""
    raised = self.log_temperature.squeeze().exp()[:, None, None]
    return attend(query * (raised / self.log_temperature.exp()).to(query.dtype), key, value, key_valid)


@breaks("cost_formula_is_exact", "sunk", "two examples")
def stacks_the_batch(attend, self, query, key, value, key_valid):
    """Lays the batch out as one long sequence, masked to its own example: right, at batch times the cost."""
    batch, queries, keys = len(query), query.shape[2], key.shape[2]
    example = torch.arange(batch, device=key.device)
    same = example.repeat_interleave(queries)[:, None] == example.repeat_interleave(keys)
    allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
    if allowed is not None:
        same = same & allowed.expand(batch, 1, queries, keys)[:, 0].reshape(batch * queries, keys).repeat(1, batch)
    long_query, long_key, long_value = (x.transpose(0, 1).flatten(1, 2)[None] for x in (query, key, value))
    scores = long_query @ long_key.mT * query.shape[-1] ** -0.5 * self.log_temperature.exp().to(query.dtype)
    out = softmax_over_valid(scores, same, self.sinks) @ long_value
    return out[0].unflatten(1, (batch, queries)).transpose(0, 1)


@breaks("output_is_like_the_queries", "sunk", "bfloat16")
def promotes_under_padding(attend, self, query, key, value, key_valid):
    """Returns float32 if there is padding."""
    out = attend(query, key, value, key_valid)
    return out if key_valid is None else out.to(torch.promote_types(value.dtype, torch.float32))


@breaks("the_process_is_left_as_it_was", "sunk", "draws from")
def jitters_in_training(attend, self, query, key, value, key_valid):
    """Adds noise to its queries in training, which no option states."""
    return attend(query + 0.01 * torch.randn_like(query) if self.training else query, key, value, key_valid)


@breaks("recording_gradients_changes_nothing", "sunk", "no input needs")
def skips_gradients_of_the_first_layer(attend, self, query, key, value, key_valid):
    """Takes a path without gradients where no input needs one, and loses the gradients of its parameters."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)):
        return attend(query, key, value, key_valid)


@breaks("eager_agrees_with_the_definition", "sunk", "from the definition")
def scales_for64(attend, self, query, key, value, key_valid):
    """Divides scores by 8, whatever the width of a head."""
    return attend(query * (query.shape[-1] ** 0.5 / 8), key, value, key_valid)
