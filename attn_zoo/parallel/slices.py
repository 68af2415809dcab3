"""Which positions of a sequence each process holds, and cutting E and F accordingly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from attn_zoo.attention.low_rank._projections import LowRankAttention, MatrixMap
from attn_zoo.attention.low_rank._windows import WindowMap
from attn_zoo.contract import LengthMap, UnsupportedError


def slices(length: int, ranks: int, window: int = 1) -> tuple[slice, ...]:
    """Positions by process: as many each as whole windows allow, the first processes one window more.

    Raises:
        UnsupportedError: there are fewer windows than processes.
    """
    windows = math.ceil(length / window)
    if windows < ranks:
        raise UnsupportedError(
            f"{length} tokens in windows of {window} make {windows} pieces, too few for {ranks} processes; use fewer processes"
        )
    each, more = divmod(windows, ranks)
    ends = [min(length, window * (each * (rank + 1) + min(more, rank + 1))) for rank in range(ranks)]
    return tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))


def cut_of(mechanism: LowRankAttention, ranks: int) -> tuple[slice, ...]:
    """``slices`` for a mechanism: anywhere between tokens for matrices, between windows where it projects by these.

    Raises:
        UnsupportedError: too few tokens for so many processes, or windows that begin at different positions.
    """
    windows = {map_.window for map_ in mechanism.maps if isinstance(map_, WindowMap)}
    if len(windows) > 1:
        raise UnsupportedError(
            f"{mechanism.card.name}: heads of several projected lengths have windows that begin at different positions; "
            "use one projected length, or projection=learned"
        )
    return slices(mechanism.geometry.keys, ranks, *windows)


def keep_columns(mechanism: LowRankAttention, at: slice) -> None:
    """Leave a mechanism with E's and F's columns of some positions. What layers share is cut for the first of them alone.

    Raises:
        UnsupportedError: what layers share is for another length than this layer.
    """
    n, held = mechanism.geometry.keys, at.stop - at.start
    dense = matrices(mechanism.maps)
    for map_ in dense:
        if map_.length == n:
            columns = map_.weight.detach()[..., at].clone()
            trained = isinstance(map_.weight, nn.Parameter)
            map_.weight = nn.Parameter(columns, requires_grad=map_.weight.requires_grad) if trained else columns
            map_.length = held
        elif map_.length != held:
            raise UnsupportedError(
                f"{mechanism.card.name}: the projection that layers share is for {map_.length} keys, this layer for {n}; "
                "call resize_length on every layer first"
            )
    if dense:
        mechanism.geometry = mechanism.geometry_at(held)


def matrices(maps: Sequence[LengthMap]) -> list[MatrixMap]:
    """Those of the maps that are matrices with a column for each position."""
    return [map_ for map_ in maps if isinstance(map_, MatrixMap)]
