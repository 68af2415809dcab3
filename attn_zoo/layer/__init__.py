"""The layer around a mechanism: q/k/v projections, head split, mechanism, output projection."""

from attn_zoo.layer.multi_head import CACHED_BYTES, MultiHeadAttention
from attn_zoo.layer.order import Order
from attn_zoo.layer.stacks import join_layers
from attn_zoo.layer.states import LayerState, Remembered

__all__ = ["CACHED_BYTES", "LayerState", "MultiHeadAttention", "Order", "Remembered", "join_layers"]
