"""Layer around a mechanism. It projects tokens to heads, calls the mechanism, and projects the outputs back to tokens."""

from attn_zoo.layer.multi_head import CACHED_BYTES, MultiHeadAttention
from attn_zoo.layer.order import Order
from attn_zoo.layer.stacks import join_layers
from attn_zoo.layer.states import LayerState, Remembered

__all__ = ["CACHED_BYTES", "LayerState", "MultiHeadAttention", "Order", "Remembered", "join_layers"]
