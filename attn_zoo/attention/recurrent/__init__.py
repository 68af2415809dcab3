"""Attention within segments, with what came before carried on."""

from attn_zoo.attention.recurrent import mega as mega
from attn_zoo.attention.recurrent import transformer_xl as transformer_xl
