"""What it costs: counted on any machine, measured on this one."""

from attn_zoo.cost.counted import attention_parameters, count_flops, count_model, count_parameters, doubts_of_model
from attn_zoo.cost.measured import peak_bytes

__all__ = ["attention_parameters", "count_flops", "count_model", "count_parameters", "doubts_of_model", "peak_bytes"]
