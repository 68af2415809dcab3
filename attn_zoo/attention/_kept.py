"""Bytes that autograd keeps of what several mechanisms compute, in float32: terms of the cards' ``activation_bytes``."""

from __future__ import annotations

FLOAT, INDEX, MASK = 4, 8, 1
"""Bytes of a number, of an index and of a truth value."""


def softmax_bytes(rows: int, columns: int, *, masks: int | None = None) -> int:
    """``softmax_over_valid``: its result; with a mask of ``masks`` truth values also the masked result and two inverted masks."""
    weights = FLOAT * rows * columns
    return weights if masks is None else 2 * weights + 2 * MASK * masks


def quotient_bytes(rows: int, width: int) -> int:
    """``divide_features``: numerators, and denominators before and after the floor."""
    return FLOAT * rows * (width + 2)


def fused_bytes(rows: int, width: int) -> int:
    """Fused attention as on a CPU: its output and one normaliser a row; the weights are computed anew. Inputs not included."""
    return FLOAT * rows * (width + 1)


def split_bytes(heads: int, parts: int, group: int, each: int, *, base: int | None = None, products: int = 1) -> int:
    """A tensor (1, heads, parts, rows, columns) that meets others in batched products, ``group`` parts at a time.

    A product reads a group in place if its matrices lie evenly in memory: those of one head, of one part or of all parts; the
    group then keeps the whole tensor alive. Others are copied.

    Args:
        each: numbers in a part of a head.
        base: numbers in memory where parts overlap, so that not even all of them lie evenly; None where they do not.
        products: how many a group takes part in, each with a copy of its own.
    """
    sizes = [min(group, parts - start) for start in range(0, parts, group)]
    copied = [heads > 1 and size > 1 and (size < parts or base is not None) for size in sizes]
    kept = 0 if all(copied) else heads * parts * each if base is None else base
    return FLOAT * (kept + products * heads * each * sum(size for size, copy in zip(sizes, copied, strict=True) if copy))
