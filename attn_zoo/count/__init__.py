"""Costs that are counted, not measured: FLOPs, parameters, and bytes of activations and recurrent states."""

from attn_zoo.count.counter import Tally, as_on_a_cpu, flops_of, kept_bytes, tally
from attn_zoo.count.levels import Counted, Counts, activation_bytes, count_level
from attn_zoo.count.memory import peak_bytes
from attn_zoo.count.models import attention_parameters, count_flops, count_model, count_parameters, model_warnings
from attn_zoo.count.rigs import LEVELS

__all__ = ["LEVELS", "Counted", "Counts", "Tally", "activation_bytes", "as_on_a_cpu", "attention_parameters", "count_flops"]
__all__ += ["count_level", "count_model", "count_parameters", "flops_of", "kept_bytes", "model_warnings", "peak_bytes", "tally"]
