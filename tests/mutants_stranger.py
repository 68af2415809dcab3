"""Defects drawn by somebody who had not read the kit, in softmax attention."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from mutants import breaks
from originals_stranger import Alibi, Blockwise, Defined, DropoutOptions, Kept, Rotated, Sunk
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attn_zoo.contract import Cost, Geometry, Growth, allowed_pairs, softmax_over_valid

# --- softmax with a sink and a temperature ---------------------------------------------------------------------------


@breaks("padding_amounts_to_shorter_inputs", "sunk", "30 positions padded to 31")
class MasksAfterSoftmax(Sunk):
    """Sets the weights of padded keys to zero after they have taken their share."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        weights = super().weights(query, key, None)
        return weights if key_valid is None else weights * key_valid[:, None, None, :]


@breaks("batch_mates_have_no_influence", "sunk", "an example alone against in a batch")
class RepeatsTheMask(Sunk):
    """Repeats the mask for the heads in the order heads, batch, where the scores are in the order batch, heads."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        if key_valid is None:
            return super().weights(query, key, None)
        batch, heads, keys = key.shape[:3]
        mask = key_valid.repeat(heads, 1).view(batch, heads, keys)
        each = [super(RepeatsTheMask, self).weights(query, key, mask[:, head]) for head in range(heads)]
        return torch.stack([weights[:, head] for head, weights in enumerate(each)], dim=1)


@breaks("inputs_are_left_alone", "sunk", "the call changed")
class ScalesInPlace(Sunk):
    """Scales the caller's queries in place where no gradient is needed."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        if torch.is_grad_enabled():
            return super().weights(query, key, key_valid)
        query.mul_(2)
        return super().weights(query / 2, key, key_valid)


@breaks("inputs_are_left_alone", "sunk", "key_valid")
class OpensTheMask(Sunk):
    """Lets an example without keys see its first one, by writing into the caller's mask."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        if key_valid is not None:
            key_valid[:, 0] |= ~key_valid.any(dim=-1)
        return super().weights(query, key, key_valid)


def one_temperature(geometry: Geometry, options: DropoutOptions) -> Cost:
    return Cost(4 * geometry.queries * geometry.keys * geometry.inner_dim, parameters=geometry.heads)


def no_products(geometry: Geometry, options: DropoutOptions) -> Cost:
    return Cost(flops=0, parameters=2 * geometry.heads)


@breaks("shapes_flow_outside_a_device_context", "sunk", "RuntimeError", cost=one_temperature)
class KeepsALooseSink(Sunk):
    """Holds its sink as a tensor that is no parameter: no optimiser, checkpoint or device knows it."""

    def __init__(self, geometry: Geometry, options: DropoutOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        del self.sink
        self.sink = torch.zeros(geometry.heads, 1, 1, requires_grad=True)


@breaks("gradients_end_in_inputs_and_parameters", "sunk", "neither an input nor a parameter", cost=one_temperature)
class ListsItsSinks(Sunk):
    """Holds a list of parameters, one for each head, which modules do not look into, and moves it at every call."""

    def __init__(self, geometry: Geometry, options: DropoutOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        del self.sink
        self.sinks = [nn.Parameter(torch.zeros(1, 1)) for _ in range(geometry.heads)]

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        scores = query * query.shape[-1] ** -0.5 @ key.mT * self.log_temperature.exp().to(query.dtype)
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        sinks = torch.stack([sink.to(query) for sink in self.sinks])
        scores = torch.cat([scores, sinks.expand(*scores.shape[:3], 1)], dim=-1)
        return softmax_over_valid(scores, None if allowed is None else F.pad(allowed, (0, 1), value=True))[..., :-1]


@breaks("gradients_follow_outputs_at_every_size", "sunk", "log_temperature")
class RemembersItsTemperature(Sunk):
    """Computes the temperature once in evaluation, and never again."""

    _cached: Tensor | None = None

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        if self.training:
            self._cached = None
            return super().weights(query, key, key_valid)
        if self._cached is None:
            self._cached = (self.log_temperature.exp() / 1.0).detach().clone()
        now = self.log_temperature.exp()
        return super().weights(query * (self._cached / now.detach()).to(query.dtype), key, key_valid)


@breaks("copies_are_independent", "sunk", "after the original was changed")
class BindsItsFirstSelf(Sunk):
    """Keeps a function over itself, which a deep copy does not rebind: the copy reads the temperature of the original."""

    def __init__(self, geometry: Geometry, options: DropoutOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.temperature = lambda: self.log_temperature.exp()

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        mine = self.log_temperature.exp()
        return super().weights(query * (self.temperature() / mine).to(query.dtype), key, key_valid)


@breaks("calls_keep_no_tensors", "sunk", "last_weights")
class KeepsItsWeights(Sunk):
    """Keeps the weights of the last call for a picture, and with them n × n numbers."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        weights = self.weights(query, key, key_valid)
        self.last_weights = weights.detach()
        return self.dropped(weights) @ value


@breaks("calls_are_silent", "sunk", "query")
class Prints(Sunk):
    """Leaves a line of debugging in."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        print("query", tuple(query.shape))
        return super().attend(query, key, value, key_valid)


@breaks("calls_are_silent", "sunk", "no fused kernel")
class WarnsAlways(Sunk):
    """Warns at every call."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        warnings.warn("no fused kernel for sinks; using the slow path", stacklevel=2)
        return super().attend(query, key, value, key_valid)


@breaks("the_process_is_left_as_it_was", "sunk", "the state of random")
class SeedsPython(Sunk):
    """Seeds Python's generator when built, so that whatever else draws from it repeats itself."""

    def __init__(self, geometry: Geometry, options: DropoutOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        random.seed(0)


@breaks("the_process_is_left_as_it_was", "sunk", "tf32")
class TunesTheProcess(Sunk):
    """Switches on the search for convolutions, for every network in the process."""

    def __init__(self, geometry: Geometry, options: DropoutOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        torch.backends.cudnn.benchmark = True


@breaks("dropout_acts_in_training_only", "sunk", "survivors")
class DropsUnscaled(Sunk):
    """Drops weights without scaling up those that stay, so that outputs are smaller in training."""

    def dropped(self, weights: Tensor) -> Tensor:
        return weights * (torch.rand_like(weights) >= self.options.dropout) if self.training else weights


@breaks("gradients_follow_dropout", "sunk", "slope")
class DropsAnew(Sunk):
    """Recomputes the weights in the backward pass with another draw of dropout."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if not self.training:
            return super().attend(query, key, value, key_valid)
        out: Tensor = checkpoint(super().attend, query, key, value, key_valid, use_reentrant=False, preserve_rng_state=False)
        return out


@breaks("no_future_leaks_at_any_border", "sunk", "before position")
class CountsInBytes(Sunk):
    """Compares positions in 8 bits to save memory: they start anew at 256."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        if not self.geometry.causal:
            return super().weights(query, key, key_valid)
        place = torch.arange(key.shape[2], device=key.device).to(torch.uint8)
        allowed = place[:, None] >= place if key_valid is None else (place[:, None] >= place) & key_valid[:, None, None]
        scores = query * query.shape[-1] ** -0.5 @ key.mT * self.log_temperature.exp().to(query.dtype)
        scores = torch.cat([scores, self.sink.to(scores.dtype).expand(*scores.shape[:3], 1)], dim=-1)
        return softmax_over_valid(scores, F.pad(allowed, (0, 1), value=True))[..., :-1]


@breaks("every_size_runs_in_every_type", "sunk", "IndexError")
class SqueezesItsHeads(Sunk):
    """Squeezes every axis of one, and so the heads where there is one."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        raised = self.log_temperature.squeeze().exp()[:, None, None]
        return super().weights(query * (raised / self.log_temperature.exp()).to(query.dtype), key, key_valid)


@breaks("cost_formula_is_exact", "sunk", "two examples")
class StacksTheBatch(Sunk):
    """Lays the batch out as one long sequence, masked to its own example: right, at batch times the cost."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        batch, queries, keys = len(query), query.shape[2], key.shape[2]
        example = torch.arange(batch, device=key.device)
        same = example.repeat_interleave(queries)[:, None] == example.repeat_interleave(keys)
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        if allowed is not None:
            same = same & allowed.expand(batch, 1, queries, keys)[:, 0].reshape(batch * queries, keys).repeat(1, batch)
        long_query, long_key, long_value = (x.transpose(0, 1).flatten(1, 2)[None] for x in (query, key, value))
        scores = long_query * query.shape[-1] ** -0.5 @ long_key.mT * self.log_temperature.exp().to(query.dtype)
        scores = torch.cat([scores, self.sink.to(scores.dtype).expand(*scores.shape[:3], 1)], dim=-1)
        weights = self.dropped(softmax_over_valid(scores, F.pad(same, (0, 1), value=True))[..., :-1])
        return (weights @ long_value)[0].unflatten(1, (batch, queries)).transpose(0, 1)


@breaks("output_is_like_the_queries", "sunk", "bfloat16")
class PromotesUnderPadding(Sunk):
    """Adds a mask in float32, and answers in it, where there is padding."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        weights = self.dropped(self.weights(query, key, key_valid))
        wide = torch.promote_types(value.dtype, torch.float32)
        return weights @ value if key_valid is None else weights.to(wide) @ value.to(wide)


@breaks("the_process_is_left_as_it_was", "sunk", "draws from")
class JittersInTraining(Sunk):
    """Adds noise to its scores in training, which no option states."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().weights(query + 0.01 * torch.randn_like(query) if self.training else query, key, key_valid)


@breaks("recording_gradients_changes_nothing", "sunk", "no input needs")
class SkipsGradientsOfTheFirstLayer(Sunk):
    """Takes a path without gradients where no input needs one, and loses those of its parameters."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)):
            return super().attend(query, key, value, key_valid)


@breaks("time_grows_as_printed", "sunk", "numbers written", time=Growth("n d"), memory=Growth("n d"), cost=no_products)
class ComparesAllPairs(Sunk):
    """Adds the value of the nearest key, found in blocks without a matrix product: all pairs are compared, and the card says n."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        rows = []
        for some in query.split(64, dim=2):
            far = torch.cdist(some, key, p=1) * self.log_temperature.exp()
            best = far.min(dim=-1, keepdim=True)
            rows.append(value.gather(2, best.indices.expand_as(some)) * (-best.values).exp())
        return torch.cat(rows, dim=2)


@breaks("eager_agrees_with_the_definition", "sunk", "from the definition")
class ScalesFor64(Defined):
    """Divides scores by 8, whatever the width of a head."""

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().weights(query * (query.shape[-1] ** 0.5 / 8), key, key_valid)


@breaks("memory_layout_has_no_influence", "sunk", "against contiguous inputs")
class StridesTheValues(Sunk):
    """Reads the values as if rows followed each other in memory."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        heads, n, d = value.shape[1:]
        return super().attend(query, key, value.as_strided(value.shape, (heads * n * d, n * d, d, 1)), key_valid)


# --- exact, by blocks ------------------------------------------------------------------------------------------------


@breaks("limit_is_softmax", "blockwise", "100 times as large")
class StartsAtZero(Blockwise):
    """Takes the highest score to be 0 at least, so that a row of low scores vanishes."""

    def first_maximum(self, query: Tensor) -> Tensor:
        return query.new_zeros((*query.shape[:3], 1))


@breaks("limit_is_softmax", "blockwise", "100 times as large")
class ClampsScores(Blockwise):
    """Clamps its scores for stability."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key).clamp(-50, 50)


@breaks("limit_is_softmax", "blockwise", "padded=True")
class MasksByTheFirstBlock(Blockwise):
    """Reads the mask of padding from its start for every block."""

    def allowed(self, query: Tensor, part: slice, key_valid: Tensor | None) -> Tensor | None:
        return super().allowed(query, part, None if key_valid is None else key_valid.roll(part.start, dims=1))


# --- windows and rotations -------------------------------------------------------------------------------------------


@breaks("heads_keep_to_themselves", "alibi", "RuntimeError")
class SlopesOfPowersOfTwo(Alibi):
    """Has slopes for 1, 2, 4, 8 … heads only."""

    def slopes(self, device: torch.device) -> Tensor:
        heads = 2 ** (self.geometry.heads.bit_length() - 1)
        return 2.0 ** (-8 * torch.arange(1, heads + 1, device=device) / heads)


@breaks("conversions_reach_everything", "rotated", "converted to")
class TableOfTheFirstType(Rotated):
    """Keeps its table in the type of the first call, and serves it to later ones."""

    def table(self, x: Tensor, start: int, half: int) -> tuple[Tensor, Tensor]:
        tables: dict[Any, Any] = self.__dict__.setdefault("tables", {})
        if (place := (start, x.shape[2])) not in tables:
            tables[place] = tuple(t.to(x.dtype) for t in super().table(x, start, half))
        found: tuple[Tensor, Tensor] = tables[place]
        return found


@breaks("earlier_calls_leave_no_trace", "rotated", "nference")
class TableOfInference(Rotated):
    """Keeps its table as the first call made it: one in inference mode leaves what no later gradient may use."""

    def table(self, x: Tensor, start: int, half: int) -> tuple[Tensor, Tensor]:
        tables: dict[Any, Any] = self.__dict__.setdefault("tables", {})
        if (place := (start, x.shape[2], x.dtype, x.device)) not in tables:
            tables[place] = tuple(t.to(x.dtype) for t in super().table(x, start, half))
        found: tuple[Tensor, Tensor] = tables[place]
        return found


@breaks("every_size_runs_in_every_type", "rotated", "parameters rounded to torch.bfloat16")
class RoundsPositions(Rotated):
    """Counts positions in the type of the inputs: bfloat16 knows no whole number between 256 and 258."""

    def table(self, x: Tensor, start: int, half: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(start, start + x.shape[2], device=x.device).to(x.dtype)
        angle = place[:, None] * (10000 ** (-torch.arange(half, device=x.device) / max(half, 1))).to(x.dtype)
        return angle.cos(), angle.sin()


@breaks("steps_answer_as_one_call", "rotated", "against one call")
class StepsFromZero(Rotated):
    """Rotates each piece of a sequence as if it were the first."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Kept]:
        before, new = state.position, value.shape[2]
        keys, values = torch.cat([state.key, self.rotate(key, 0)], dim=2), torch.cat([state.value, value], dim=2)
        past = torch.ones(new, before + new, dtype=torch.bool, device=value.device).tril(before)
        return softmax_over_valid(self.rotate(query, 0) @ keys.mT * query.shape[-1] ** -0.5, past) @ values, Kept(keys, values)


@dataclass(frozen=True)
class Ring(Kept):
    """As many tokens as the attention was built for."""

    read: int = 0

    @property
    def position(self) -> int:
        return self.read


@breaks("steps_answer_as_one_call", "rotated", "built for")
class ForgetsBeyondItsBuild(Rotated):
    """Drops the oldest tokens from its state once it has read as many as it was built for."""

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Kept:
        state = super().initial_state(batch, dtype=dtype, device=device)
        return Ring(state.key, state.value)

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Any]:
        if state.key.shape[0] != len(value):
            raise ValueError(f"the state is of {state.key.shape[0]} examples, got {len(value)}")
        room, new = self.geometry.keys, value.shape[2]
        keys = torch.cat([state.key, self.rotate(key, state.position)], dim=2)
        values = torch.cat([state.value, value], dim=2)
        past = torch.ones(new, keys.shape[2], dtype=torch.bool, device=value.device).tril(keys.shape[2] - new)
        out = softmax_over_valid(self.rotate(query, state.position) @ keys.mT * query.shape[-1] ** -0.5, past) @ values
        return out, Ring(keys[:, :, -room:], values[:, :, -room:], state.position + new)


@breaks("large_inputs_stay_finite", "rotated", "zeros")
class DividesByARoot(Rotated):
    """Normalises queries and keys by the root of a sum of squares, whose gradient at zero is not a number."""

    def rotate(self, x: Tensor, start: int) -> Tensor:
        return super().rotate(x / (x.square().sum(dim=-1, keepdim=True).sqrt() + 1e-6), start)
