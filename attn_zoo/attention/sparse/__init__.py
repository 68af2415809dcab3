"""Sparse attention with fixed patterns: windows, blocks, strides and global tokens decide which keys a query sees."""

from attn_zoo.attention.sparse import bigbird as bigbird
from attn_zoo.attention.sparse import block_sparse as block_sparse
from attn_zoo.attention.sparse import fixed as fixed
from attn_zoo.attention.sparse import local as local
from attn_zoo.attention.sparse import longformer as longformer
from attn_zoo.attention.sparse import strided as strided
