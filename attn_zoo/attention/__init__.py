"""Attention mechanisms: one folder per family, and one file per mechanism."""

from attn_zoo.attention import content as content
from attn_zoo.attention import controls as controls
from attn_zoo.attention import dense as dense
from attn_zoo.attention import linear as linear
from attn_zoo.attention import low_rank as low_rank
from attn_zoo.attention import mixers as mixers
from attn_zoo.attention import recurrent as recurrent
from attn_zoo.attention import sparse as sparse
