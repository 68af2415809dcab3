"""Token mixers without queries and keys: averages or Fourier transforms mix the values of all positions."""

from attn_zoo.attention.mixers import fnet as fnet
from attn_zoo.attention.mixers import pooling as pooling
