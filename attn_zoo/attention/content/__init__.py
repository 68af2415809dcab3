"""Pairs of positions chosen by content: hashing, clustering, routing, sorting."""

from attn_zoo.attention.content import clustered as clustered
from attn_zoo.attention.content import reformer as reformer
from attn_zoo.attention.content import routing as routing
from attn_zoo.attention.content import sinkhorn as sinkhorn
