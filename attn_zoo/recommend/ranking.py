"""Ranking of candidates, with evidence and doubts for each: a pure function of the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attn_zoo.contract import UnknownNameError
from attn_zoo.cost.timing import unstable
from attn_zoo.leaderboard import Table
from attn_zoo.recommend.accuracy import BASELINE, Accuracy, nearest_accuracy
from attn_zoo.recommend.candidates import (
    Candidate,
    Counted,
    Refusal,
    counted,
    is_among,
    measured_candidates,
    refusal,
    unmeasured_candidates,
    warnings,
)
from attn_zoo.recommend.evidence import Figure, Machine, Reading, read_at
from attn_zoo.recommend.need import Need
from attn_zoo.registry import attentions, card
from attn_zoo.rows import RowName

FLOAT = 4
"""Bytes of an fp32 number, the precision of all counts."""

STANDINGS = ("holds", "unknown", "falls")
"""Standings of accuracy against softmax, the best first: not shown to be below it (or exact), not recorded, below it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Layer that meets the requirements, with its evidence."""

    layer: Candidate
    reading: Reading | None
    """Time and memory; None without suitable measurements."""
    counted: Counted
    accuracy: Accuracy | None
    standing: str
    """Standing, one of ``STANDINGS``."""
    times_softmax: float | None
    """Speed relative to the fastest softmax layer: its seconds divided by those of this layer."""
    doubts: tuple[str, ...]

    @property
    def is_softmax(self) -> bool:
        """True for a softmax layer, the baseline."""
        return self.layer.attention == BASELINE


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Ranked layers, refused layers, and notes."""

    need: Need
    ranked: tuple[Choice, ...]
    refused: tuple[Refusal, ...]
    machine: Machine | None
    """Machine of all times; None without measurements."""
    here: bool
    """True if the times are of this machine."""
    recorded: bool
    """True if there were records of accuracy."""
    notes: tuple[str, ...]


def recommend(
    need: Need,
    figures: Sequence[Figure],
    tables: Sequence[Table],
    *,
    here: str,
    rows: Sequence[RowName] = (),
) -> Recommendation:
    """Rank every attention that meets the requirements, without controls.

    The order is by accuracy (not below softmax, not recorded, below softmax), then by measured time, then, for unmeasured layers,
    by counted FLOPs. Without records accuracy is not used. All times are of one machine, preferably this one.

    Args:
        figures: measurements of any machine and size; those that do not fit are listed in the notes.
        tables: leaderboard tables of the records.
        here: name of this machine, from ``machine_of``.
        rows: rows to choose among; all attentions but controls unless given.
    """
    fitting, notes = _fitting(need, figures)
    machine, used, left_out = _one_machine(fitting, here)
    grouped, measured, unknown = measured_candidates(used)
    kept = [layer for layer in measured.values() if (is_among(layer, rows) if rows else not card(layer.attention).control)]
    candidates = [*kept, *unmeasured_candidates(need, kept, rows)]
    refused, choices = [], []
    recorded = bool(tables)
    readings = {layer.key: read_at(grouped.get(layer.key, []), need.length, need.batch) for layer in candidates}
    yardstick = min((r.middle for c in candidates if c.attention == BASELINE and (r := readings[c.key])), default=None)
    for layer in candidates:
        amount = _counted(need, layer)
        reason = refusal(need, layer) or _too_large(need, readings[layer.key], amount, grouped.get(layer.key, []))
        if reason is not None or amount is None:
            refused.append(Refusal(layer.label, str(reason)))
            continue
        choices.append(_choice(need, layer, readings[layer.key], amount, tables, yardstick))
    by_training = need.direction == "training" and all(choice.counted.training_flops is not None for choice in choices)
    ranked = sorted(choices, key=lambda choice: _sort_key(choice, recorded, by_training))
    return Recommendation(
        need=need,
        ranked=tuple(ranked),
        refused=tuple(refused),
        machine=machine,
        here=machine is not None and machine.name == here,
        recorded=recorded,
        notes=tuple(dict.fromkeys([*notes, *left_out, *unknown, *_controls()])),
    )


def _sort_key(choice: Choice, recorded: bool, by_training: bool) -> tuple[int, bool, float, str]:
    standing = STANDINGS.index(choice.standing) if recorded else 0
    flops = choice.counted.training_flops if by_training else choice.counted.flops
    cost = float(flops or 0) if choice.reading is None else choice.reading.middle
    return standing, choice.reading is None, cost, choice.layer.label


def _controls() -> list[str]:
    names = [name for name in attentions() if card(name).control]
    return [f"controls are never recommended: {', '.join(names)}"] if names else []


def _fitting(need: Need, figures: Iterable[Figure]) -> tuple[list[Figure], list[str]]:
    """Figures of the required sizes, direction and type of device, and notes on the others."""
    fitting, notes = [], []
    for figure in figures:
        if figure.machine.device != need.device:
            notes.append(f"{figure.file}: measured on {figure.machine.device}, asked for {need.device}; left out")
        elif (figure.width, figure.heads) != (need.width, need.heads):
            notes.append(
                f"{figure.file}: measured at width {figure.width} with {figure.heads} heads, asked for {need.width} with "
                f"{need.heads}; left out"
            )
        elif figure.direction == need.direction:
            fitting.append(figure)
    return fitting, notes


def _one_machine(figures: Sequence[Figure], here: str) -> tuple[Machine | None, list[Figure], list[str]]:
    """Figures of one machine, since times of two are not comparable: this one, else the one with the most layers."""
    by_machine: dict[Machine, list[Figure]] = {}
    for figure in figures:
        by_machine.setdefault(figure.machine, []).append(figure)
    if not by_machine:
        return None, [], []

    def layers(machine: Machine) -> int:
        return len({(f.attention, str(f.options), f.implementation, f.backend) for f in by_machine[machine] if f.seconds})

    chosen = max(by_machine, key=lambda machine: (machine.name == here, layers(machine), machine.precision == "fp32"))
    notes = [
        f"{', '.join(dict.fromkeys(f.file for f in members))}: times of {machine} are left out, as those of {chosen} are ranked"
        for machine, members in by_machine.items()
        if machine != chosen
    ]
    return chosen, by_machine[chosen], notes


def _counted(need: Need, layer: Candidate) -> Counted | None:
    """Counts of a layer; None if the card refuses the options at this length, for which ``refusal`` gives the reason."""
    try:
        return counted(need, layer)
    except (ValueError, UnknownNameError):
        return None


def _too_large(need: Need, reading: Reading | None, amount: Counted | None, figures: Iterable[Figure]) -> str | None:
    """Reason why a step does not fit into memory; None if it fits, or if that is unknown."""
    for figure in figures:
        if (
            figure.seconds is None
            and "OOM" in (figure.failure or "")
            and figure.length <= need.length
            and figure.batch <= need.batch
        ):
            return f"ran out of memory at {figure.length:,} tokens ({figure.file})"
    if need.memory is None:
        return None
    if reading is not None and reading.bytes is not None:
        needed, how = reading.bytes, f"a step holds {reading.bytes / 2**20:,.0f} MiB ({reading.basis}, {', '.join(reading.files)})"
    elif need.direction == "training" and amount is not None and amount.kept_bytes is not None:
        tokens = FLOAT * need.batch * need.length * need.width  # saved by the projections for their gradients
        needed = amount.kept_bytes + tokens
        of_mechanism, of_tokens = (f"{part / 2**20:,.0f} MiB" for part in (amount.kept_bytes, tokens))
        how = f"autograd alone keeps {of_mechanism} of the mechanism and {of_tokens} of tokens (counted)"
    else:
        return None
    return f"{how}, more than {need.memory / 2**20:,.0f} MiB" if needed > need.memory else None


def _choice(
    need: Need,
    layer: Candidate,
    reading: Reading | None,
    amount: Counted,
    tables: Sequence[Table],
    yardstick: float | None,
) -> Choice:
    accuracy = nearest_accuracy(tables, layer.attention, layer.options, layer.implementation, need.length)
    if layer.attention == BASELINE or card(layer.attention).can.exact:
        standing = "holds"
    elif accuracy is None:
        standing = "unknown"
    else:
        standing = "falls" if accuracy.falls(need.accept) else "holds"
    doubts = [*_doubts_of_cost(need, reading), *_doubts_of_accuracy(need, layer, accuracy), *warnings(need, layer)]
    return Choice(
        layer=layer,
        reading=reading,
        counted=amount,
        accuracy=accuracy,
        standing=standing,
        times_softmax=None if yardstick is None or reading is None else yardstick / reading.middle,
        doubts=tuple(dict.fromkeys(doubts)),
    )


def _doubts_of_cost(need: Need, reading: Reading | None) -> list[str]:
    if reading is None:
        return ["not measured: placed by counted FLOPs of the mechanism alone, which say little of time"]
    doubts = list(reading.doubts)
    if unstable(reading.seconds):
        doubts.append("its timing is unstable")
    untimed = [
        words
        for words, required in (
            ("causality", need.causal and not reading.causal),
            ("padding", need.padding),
            ("other keys", need.cross),
        )
        if required
    ]
    if untimed:
        doubts.append(f"timed without {' and '.join(untimed)}")
    if need.memory is not None and reading.bytes is None:
        doubts.append("its memory was not measured")
    return doubts


def _doubts_of_accuracy(need: Need, layer: Candidate, accuracy: Accuracy | None) -> list[str]:
    if layer.attention == BASELINE:
        return []
    doubts = [] if card(layer.attention).can.exact else ["not exact: it is another function than softmax"]
    if accuracy is None or accuracy.margin is None:
        return [*doubts, "no accuracy of it is recorded beside softmax"]
    if accuracy.margin.count == 1:
        doubts.append("scored with one seed, which may be chance")
    if accuracy.length != need.length:
        doubts.append(f"scored at {accuracy.length:,} tokens, not {need.length:,}")
    if other := [f"{name}={value}" for name, value in accuracy.options.items() if layer.options.get(name) != value]:
        doubts.append(f"scored with {', '.join(other)}")
    if accuracy.over_control is not None and accuracy.over_control <= 0:
        doubts.append("scored no better than a control that does not attend")
    return [*doubts, *(f"where it was scored: {warning}" for warning in accuracy.warnings)]
