"""Token mixers without queries and keys: averages and Fourier transforms."""

from attn_zoo.attention.mixers import fnet as fnet
from attn_zoo.attention.mixers import pooling as pooling
