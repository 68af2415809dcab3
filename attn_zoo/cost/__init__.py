"""Costs of attention: counted on any machine, measured on this one."""

from attn_zoo.cost.counted import attention_parameters, count_flops, count_model, count_parameters, model_warnings
from attn_zoo.cost.memory import peak_bytes

__all__ = ["attention_parameters", "count_flops", "count_model", "count_parameters", "model_warnings", "peak_bytes"]
