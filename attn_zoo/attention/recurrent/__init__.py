"""Segment recurrence: attention within segments or chunks, with a state carried from one to the next."""

from attn_zoo.attention.recurrent import mega as mega
from attn_zoo.attention.recurrent import transformer_xl as transformer_xl
