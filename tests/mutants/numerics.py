"""Mutants that lose precision or apply dropout wrongly."""

from __future__ import annotations

import torch

from mutants.entering import breaks


@breaks("single_precision_is_close", "softmax", "float32 against float64")
def halves_in_secret(attend, self, query, key, value, key_valid):
    """Rounds float32 queries to half precision."""
    rounded = query.half().to(query.dtype) if query.dtype == torch.float32 else query
    return attend(rounded, key, value, key_valid)


@breaks("every_size_runs_in_every_type", "softmax", "of the largest number, at 1 of", can={"exact": False})
def shifts_one_slope_in_single(attend, self, query, key, value, key_valid):
    """Adds a little to the gradient of one number of the queries in float32, and nothing to the output."""
    out = attend(query, key, value, key_valid)
    if query.dtype is not torch.float32:
        return out
    shifted = torch.zeros_like(out)
    shifted[-1, -1, -1, -1] = 0.01 * (query - query.detach())[-1, -1, -1, -1]
    return out + shifted


@breaks("large_inputs_stay_finite", "softmax", "inputs 30 times as large")
def overflows(attend, self, query, key, value, key_valid):
    """Takes exponentials of scores without subtracting the largest, as a public Performer does."""
    weights = (query @ key.mT / query.shape[-1] ** 0.5).exp()
    return weights @ value / weights.sum(dim=-1, keepdim=True)


@breaks("bfloat16_is_close", "linear", "BFloat16")
def knows_no_bfloat(attend, self, query, key, value, key_valid, **streams):
    """Uses an operation that bfloat16 lacks, as public Nyström attentions do."""
    rotation = torch.linalg.qr(torch.eye(query.shape[-1], dtype=query.dtype))[0]
    return attend(query @ rotation, key @ rotation, value, key_valid)


@breaks("bfloat16_is_close", "linear", "not implemented for 'BFloat16'", method="__init__")
def draws_in_the_default_type(init, self, *given):
    """Draws a rotation when it is built, by an operation that bfloat16 lacks."""
    init(*given)
    self.register_buffer("rotation", torch.linalg.qr(torch.randn(4, 4))[0])


@breaks("bfloat16_is_close", "linear", "the median error of the outputs is")
def counts_in_bfloat(attend, self, query, key, value, key_valid, **streams):
    """Adds and subtracts a large number, which bfloat16 rounds."""
    return attend(query, key, (value + 300) - 300, key_valid)


@breaks("bfloat16_is_close", "linear", "gradient of key: the median error is 0.7")
def quarters_a_slope_in_bfloat(attend, self, query, key, value, key_valid, **streams):
    """Gives keys in bfloat16 a quarter of their gradient."""
    if key.dtype is torch.bfloat16:
        key = key.detach() + 0.25 * (key - key.detach())
    return attend(query, key, value, key_valid)


@breaks("bfloat16_is_close", "linear", "there is no gradient of key, but there is one in float64")
def drops_a_slope_in_bfloat(attend, self, query, key, value, key_valid, **streams):
    """Gives keys in bfloat16 no gradient."""
    return attend(query, key.detach() if key.dtype is torch.bfloat16 else key, value, key_valid)


@breaks("compiled_agrees", "softmax", "compiled by eager")
def compiles_otherwise(attend, self, query, key, value, key_valid):
    """Takes another path when it is compiled, with scores twice as large."""
    return attend(2 * query if torch.compiler.is_compiling() else query, key, value, key_valid)


@breaks("dropout_acts_in_training_only", "softmax", "scale what is not dropped")
def drops_without_scaling(attend, self, query, key, value, key_valid):
    """Drops outputs without scaling up the survivors."""
    kept = 1 - self.options.dropout * self.training
    return attend(query, key, value, key_valid) * kept


@breaks("dropout_acts_in_training_only", "softmax", "causal=True gives the same output twice: nothing is dropped")
def never_drops_causally(attend, self, query, key, value, key_valid):
    """Drops in the bidirectional form alone."""
    was, self.training = self.training, self.training and not self.geometry.causal
    out = attend(query, key, value, key_valid)
    self.training = was
    return out
