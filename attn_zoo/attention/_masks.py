"""Pairs of queries and keys, from the contract."""

from attn_zoo.contract import allowed_pairs as allowed_pairs
