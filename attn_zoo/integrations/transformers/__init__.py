"""Mechanisms of attn-zoo in models of Hugging Face transformers, through its attention interface."""

from attn_zoo.integrations.transformers.replace import replace_attention, zoo_layers
from attn_zoo.integrations.transformers.saving import from_pretrained

__all__ = ["from_pretrained", "replace_attention", "zoo_layers"]
