"""Segment recurrence: attention within segments or chunks, and a state that passes from one segment to the next."""

from attn_zoo.attention.recurrent import mega as mega
from attn_zoo.attention.recurrent import transformer_xl as transformer_xl
