"""Defects devised without knowledge of the kit: in trained parameters, reused tensors and pickling for other processes."""

from __future__ import annotations

import logging
import os

import torch
from torch import Tensor

from mutants.entering import breaks
from mutants.originals import Sunk

TRAINED, TRACES, PROCESS = "promises_hold_once_trained", "earlier_calls_leave_no_trace", "the_process_is_left_as_it_was"


@breaks(TRAINED, "sunk", "training_keeps_the_promises: output in training, causal=False, against eval mode")
def clamps_in_eval(attend, self, query, key, value, key_valid):
    """Clamps its temperature in eval mode only, at a number that only training reaches."""
    if self.training:
        return attend(query, key, value, key_valid)
    return attend(query * (self.log_temperature.clamp(max=0.1) - self.log_temperature).exp(), key, value, key_valid)


@breaks(TRAINED, "sunk", "eager_agrees_with_the_definition")
def temperature_of_one_head(attend, self, query, key, value, key_valid):
    """Uses the first head's temperature in all heads, which start with equal ones; each head gets a gradient."""
    own = self.log_temperature
    wrong = own[:1].detach() - own.detach()
    return attend(query * wrong.exp(), key, value, key_valid)


@breaks(TRACES, "sunk", "hold new numbers")
class RemembersTheMask(Sunk):
    """Caches a copy of the mask for as long as the caller passes the same tensor, whatever it holds."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        held: list[Tensor] = self.__dict__.setdefault("held", [])
        if key_valid is not None and not (held and held[0] is key_valid):
            held[:] = [key_valid, key_valid.clone()]
        return super().attend(query, key, value, None if key_valid is None else held[1])


@breaks(TRACES, "sunk", "output after a later call")
def writes_into_its_last_output(attend, self, query, key, value, key_valid):
    """Reuses one output tensor where no gradient is recorded, to save memory."""
    out = attend(query, key, value, key_valid)
    if torch.is_grad_enabled():
        return out
    last = self.__dict__.get("last")
    if last is None or (last.shape, last.dtype, last.device) != (out.shape, out.dtype, out.device):
        last = self.__dict__["last"] = torch.empty_like(out)
    kept: Tensor = last.copy_(out)
    return kept


@breaks("calls_keep_no_tensors", "sunk", "held.0")
class KeepsTheMask(RemembersTheMask):
    """Keeps the last mask after the call."""


@breaks("inputs_are_left_alone", "softmax", "writing into the output")
def returns_the_value(attend, self, query, key, value, key_valid):
    """Returns the caller's own tensor where there is one key, whose weight is one."""
    return value if key.shape[2] == query.shape[2] == 1 else attend(query, key, value, key_valid)


@breaks("building_does_not_mutate_options", "local", "building changed its options", method="__init__")
def narrows_to_the_length(init, self, geometry, options, *rest):
    """Lowers the block in the caller's options to the length, which changes them at short lengths only."""
    options.block = min(options.block, geometry.keys)
    init(geometry, options, *rest)


@breaks(PROCESS, "sunk", "changed environment variables", method="__init__")
def sets_the_environment(init, self, *given):
    """Sets a variable of the environment, for all later libraries and processes."""
    init(*given)
    os.environ["ATTN_ZOO_MUTANT"] = "0"


@breaks(PROCESS, "sunk", "level of logging", method="__init__")
def silences_logging(init, self, *given):
    """Silences every logger of the process."""
    init(*given)
    logging.disable(logging.WARNING)


@breaks("modules_in_use_can_be_copied", "sunk", "cannot be pickled", method="__init__")
def holds_a_function(init, self, *given):
    """Holds a lambda, which no other process can import."""
    init(*given)
    self.scale = lambda size: size**-0.5
