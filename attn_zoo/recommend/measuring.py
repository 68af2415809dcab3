"""Measurement of candidates on this machine, at the required length, batch size and direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from attn_zoo.cost.bench import Bench, Tokens
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.workers import Worker, WorkerError
from attn_zoo.recommend.candidates import Candidate, build
from attn_zoo.recommend.evidence import Figure, machine_of
from attn_zoo.recommend.need import Need
from attn_zoo.records import describe_environment

NOW = "just now"
"""File name of figures that were measured now."""

PRECISION = "fp32"


def measure_now(need: Need, layers: Sequence[Candidate], *, rounds: int, tell: Callable[[str], None]) -> list[Figure]:
    """Measure time and memory of each layer, in interleaved rounds, each layer in its own process.

    Args:
        rounds: number of rounds.
        tell: callback with lines of progress.
    """
    device = torch.device(need.device)
    protocol = TimingProtocol.on(need.device, rounds=rounds)
    environment = describe_environment(need.device)
    workers = [
        Worker(
            partial(Bench, partial(_layer, need, layer), Tokens(need.width), device, PRECISION, layer.backend, protocol=protocol),
            environment=protocol.environment(),
            bounded=need.device == "cpu",
        )
        for layer in layers
    ]
    seconds: list[list[float]] = [[] for _ in layers]
    held: list[int | None] = [None] * len(layers)
    failures: list[str | None] = [None] * len(layers)
    point = (need.direction, need.batch, need.length)
    try:
        for turn in range(-1, rounds):
            tell("memory" if turn < 0 else f"round {turn + 1} of {rounds}")
            for at in protocol.ordered(range(len(layers)), max(turn, 0)):
                if failures[at] is not None:
                    continue
                try:
                    if turn < 0:
                        held[at] = sum(workers[at].ask(what, *point) for what in ("peak", "held"))
                    else:
                        seconds[at].append(sum(workers[at].ask("parts", *point)))
                except WorkerError as error:
                    failures[at] = str(error)
    finally:
        for worker in workers:
            worker.stop()
    return [
        Figure(
            attention=layer.attention,
            options=layer.options,
            implementation=layer.implementation,
            backend=layer.backend,
            direction=need.direction,
            length=need.length,
            batch=need.batch,
            width=need.width,
            heads=need.heads,
            seconds=protocol.spread(taken) if taken and failure is None else None,
            bytes=bytes_,
            failure=failure,
            machine=machine_of(environment, PRECISION),
            file=NOW,
            causal=need.causal,
        )
        for layer, taken, bytes_, failure in zip(layers, seconds, held, failures, strict=True)
    ]


def _layer(need: Need, layer: Candidate, length: int) -> nn.Module:
    return build(replace(need, length=length, cross=False), layer)
