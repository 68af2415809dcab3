"""Token mixers, which have no queries and keys: they mix the values of all positions by averages or Fourier transforms."""

from attn_zoo.attention.mixers import fnet as fnet
from attn_zoo.attention.mixers import pooling as pooling
