"""Costs that are counted, not measured: FLOPs, parameters, and bytes of activations and recurrent states."""

from attn_zoo.count.costs import activation_bytes, attention_parameters, count_flops, count_model, count_parameters, model_warnings
from attn_zoo.count.counter import Counts, as_on_a_cpu, flops_of, kept_bytes, peak_bytes, tally

__all__ = ["Counts", "activation_bytes", "as_on_a_cpu", "attention_parameters", "count_flops", "count_model", "count_parameters"]
__all__ += ["flops_of", "kept_bytes", "model_warnings", "peak_bytes", "tally"]
