"""Costs that come out the same on every machine: FLOPs, parameters, and the bytes of activations and states."""

from attn_zoo.cost.counted.counter import Tally, as_on_a_cpu, flops_of, kept_bytes, tally
from attn_zoo.cost.counted.levels import LEVELS, Counted, Counts, activation_bytes, count_level
from attn_zoo.cost.counted.models import attention_parameters, count_flops, count_model, count_parameters, model_warnings

__all__ = ["LEVELS", "Counted", "Counts", "Tally", "activation_bytes", "as_on_a_cpu", "attention_parameters", "count_flops"]
__all__ += ["count_level", "count_model", "count_parameters", "flops_of", "kept_bytes", "model_warnings", "tally"]
