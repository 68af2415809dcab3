"""Positions of each process, and the corresponding columns of E and F."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from attn_zoo.attention.low_rank._projections import LowRankAttention, MatrixMap
from attn_zoo.attention.low_rank._window_maps import WindowMap
from attn_zoo.contract import LengthMap, UnsupportedError


def slices(length: int, ranks: int, window: int = 1) -> tuple[slice, ...]:
    """Positions of each process, in whole windows of tokens; if these do not divide evenly, the first processes get one more.

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
    """Positions of each process for a mechanism: matrices are cut between any tokens, projections by windows between windows.

    Raises:
        UnsupportedError: too few tokens for the number of processes, or windows that begin at different positions.
    """
    windows = {map_.window for map_ in mechanism.maps if isinstance(map_, WindowMap)}
    if len(windows) > 1:
        raise UnsupportedError(
            f"{mechanism.card.name}: heads of several projected lengths have windows that begin at different positions; "
            "use one projected length, or projection=learned"
        )
    return slices(mechanism.geometry.keys, ranks, *windows)


def keep_columns(mechanism: LowRankAttention, at: slice) -> None:
    """Reduce E and F of a mechanism to the columns of some positions; matrices shared by layers are cut in the first one only.

    Raises:
        UnsupportedError: a shared matrix has another length than this layer.
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
    """Maps that are matrices with a column for each position."""
    return [map_ for map_ in maps if isinstance(map_, MatrixMap)]
