"""Order in which tokens are projected and compressed to keys and values."""

from __future__ import annotations

from enum import Enum

from attn_zoo.contract import Attention, CompressingAttention, UnsupportedError


class Order(Enum):
    """Order of the two steps that turn tokens into compressed keys and values: projecting the channels, and compressing the
    length.
    """

    auto = "auto"
    """The order that takes fewer FLOPs."""
    project_first = "project_first"
    compress_first = "compress_first"


def choose_order(asked: Order, mechanism: Attention, source_dim: int) -> Order:
    """Return ``asked`` or, if ``asked`` is ``auto``, the order with fewer FLOPs.

    ``source_dim`` is the width of the tokens before they are projected to keys and values. ``auto`` means ``project_first`` if the
    mechanism cannot compress tokens.

    Raises:
        UnsupportedError: ``asked`` is ``compress_first``, and the mechanism cannot compress tokens once for all heads, or its
            implementation is ``definition``.
    """
    if not isinstance(mechanism, CompressingAttention) or (r := mechanism.compressed_length()) is None:
        if asked is Order.compress_first:
            raise UnsupportedError(
                f"{mechanism.card.name} cannot compress tokens once for all heads, so order must not be 'compress_first'. Use "
                "order='project_first'"
            )
        return Order.project_first
    if asked is Order.compress_first and mechanism.implementation == "definition":
        raise UnsupportedError(
            f"{mechanism.card.name}: order must not be 'compress_first' with implementation='definition', because the definition "
            "takes whole keys and values. Use order='project_first', or another implementation"
        )
    if asked is not Order.auto:
        return asked
    g = mechanism.geometry
    project_first = 4 * g.keys * source_dim * g.key_value_dim + mechanism.compression_flops(g.keys, g.inner_dim, inputs=2)
    compress_first = mechanism.compression_flops(g.keys, source_dim, inputs=1) + 4 * r * source_dim * g.key_value_dim
    return Order.compress_first if compress_first < project_first else Order.project_first
