"""Mechanisms of attn-zoo in models of timm, through timm's argument ``attn_layer`` or in place of the attention of an existing
model.
"""

from attn_zoo.integrations.timm.layer import TimmAttention, attention_layer
from attn_zoo.integrations.timm.replace import ReplacedLayer, Replacement, replace_attention
from attn_zoo.integrations.timm.sizes import set_input_size

__all__ = ["ReplacedLayer", "Replacement", "TimmAttention", "attention_layer", "replace_attention", "set_input_size"]
