"""Sequence parallelism: each process holds a slice of the tokens, and one all-reduce sums their projected keys and values."""

from __future__ import annotations

from attn_zoo.parallel.collectives import all_reduce_sum
from attn_zoo.parallel.linformer import SequenceParallelLinformer, parallelise
from attn_zoo.parallel.replicas import gather_state, reduce_gradients

__all__ = ["SequenceParallelLinformer", "all_reduce_sum", "gather_state", "parallelise", "reduce_gradients"]
