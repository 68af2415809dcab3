"""Sparse attention by content: hashing, clustering, routing or sorting chooses which queries and keys are compared."""

from attn_zoo.attention.content import clustered as clustered
from attn_zoo.attention.content import indexer as indexer
from attn_zoo.attention.content import moba as moba
from attn_zoo.attention.content import reformer as reformer
from attn_zoo.attention.content import routing as routing
from attn_zoo.attention.content import sinkhorn as sinkhorn
