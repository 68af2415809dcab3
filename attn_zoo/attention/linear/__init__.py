"""Sums over keys in place of weights: feature maps of the softmax kernel, and memories that are written at every token."""

from attn_zoo.attention.linear import cosformer as cosformer
from attn_zoo.attention.linear import delta_rule as delta_rule
from attn_zoo.attention.linear import gated_linear as gated_linear
from attn_zoo.attention.linear import linear as linear
from attn_zoo.attention.linear import performer as performer
