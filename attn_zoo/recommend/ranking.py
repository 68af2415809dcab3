"""Recommendation of a mechanism: the candidates, which meet the requirements and can be built, and the choice among them.

If no candidate matches softmax, softmax is recommended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_zoo.contract import Cost as Counts
from attn_zoo.contract import UnknownNameError, choose_implementation
from attn_zoo.count import activation_bytes
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.leaderboard import Table
from attn_zoo.leaderboard.advise.abilities import Ability, Judgement, abilities, judge
from attn_zoo.leaderboard.advise.costs import Cost, State
from attn_zoo.leaderboard.advise.drop_in import drop_in
from attn_zoo.leaderboard.advise.needs import QUALIFIES, Answer, Choice, Need, answer
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.leaderboard.heat_costs import byte_count
from attn_zoo.recommend.requirements import Requirements
from attn_zoo.registry import attention_options, attentions, card
from attn_zoo.rows import RowName

CUDA_DTYPE = torch.bfloat16
"""Data type for which ``auto`` chooses an implementation on CUDA."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Mechanism that meets the requirements: its options at the required length, its implementation and its cost."""

    attention: str
    options: Mapping[str, Any]
    """Given options. All others have their defaults, which may depend on the required length."""
    implementation: str
    """Requested implementation or, for ``auto``, the implementation that is chosen for the device."""
    cost: Cost
    warnings: tuple[str, ...]
    flops: int | None = None
    """FLOPs of one layer's mechanism for one example, in a forward pass or in training as required; None if not counted."""

    @property
    def label(self) -> str:
        """Row name with the implementation, such as ``linformer[projected_length=64] (sdpa)``."""
        return f"{RowName(self.attention, self.options)} ({self.implementation})"

    @property
    def share(self) -> float:
        """FLOPs of the mechanism divided by softmax's, or infinity if they are not counted."""
        return self.cost.shares[1] if self.cost.shares else float("inf")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Mechanism that does not meet the requirements, with the reason."""

    label: str
    reason: str


def candidates(required: Requirements, rows: Sequence[RowName] = ()) -> tuple[list[Candidate], list[Refusal]]:
    """Return two lists: the mechanisms that meet the requirements, the cheapest first, and those that do not, with the reasons.

    Args:
        rows: mechanisms with options to choose among; by default all mechanisms except controls. Softmax is always added.

    Raises:
        ValueError: the cost of softmax cannot be counted for these requirements.
    """
    asked = list(rows) or [RowName(name) for name in attentions() if not card(name).control]
    if not any(row.attention == BASELINE for row in asked):
        asked.append(RowName(BASELINE))
    baseline = card(BASELINE)
    softmax = baseline.cost(required.geometry, attention_options(baseline, required.geometry, {}))
    found, refused = [], []
    for row in asked:
        try:
            found.append(_candidate(required, row, softmax))
        except (ValueError, UnknownNameError) as error:
            refused.append(Refusal(str(row), str(error)))
    return sorted(found, key=lambda each: (each.share, each.label)), refused


def _candidate(required: Requirements, row: RowName, softmax: Counts) -> Candidate:
    """Check a row against the requirements and return it as a candidate.

    Raises:
        ValueError, UnknownNameError: the row does not meet the requirements; the message says why.
    """
    entry, geometry = card(row.attention), required.geometry
    missing = {
        "has no causal form": required.reads_past and not entry.can.causal,
        "has no recurrent form, so each token would be computed from the whole sequence": required.decode
        and not entry.can.stepwise
        and row.attention != BASELINE,
        "cannot mask padded keys": required.padding and not entry.can.key_padding,
        "supports self-attention only": required.cross and not entry.can.cross,
    }
    for reason, holds in missing.items():
        if holds:
            raise ValueError(f"{row.attention} {reason}")
    with torch.device("meta"):  # takes no memory and computes nothing
        build(required, row)
    options = attention_options(entry, geometry, row.options)
    dtype = CUDA_DTYPE if required.device == "cuda" else None
    taken = row.implementation
    if taken == "auto":
        taken = choose_implementation(entry, geometry, options, torch.device(required.device), dtype)
    counts = entry.cost(geometry, options)
    if (needed := _bytes(required, row, counts, options)) is not None and required.memory is not None and needed > required.memory:
        raise ValueError(
            f"{row.attention} needs {byte_count(needed)} (counted, not measured); the limit is {byte_count(required.memory)}"
        )
    cost, warnings = _cost(required, counts, softmax), entry.build.warnings(geometry, options)
    return Candidate(row.attention, row.options, taken, cost, warnings, _flops(required, counts))


def _cost(required: Requirements, counts: Counts, softmax: Counts) -> Cost:
    """Return the cost of the mechanism of one layer at the required length, relative to softmax."""
    own, its = (_flops(required, each) for each in (counts, softmax))
    share = own / its if own and its else None  # a count of 0 counts as unknown: see Cost.shares
    states: tuple[State, ...] = ()
    if counts.state_bytes is not None and softmax.state_bytes is not None:
        states = (State(counts.state_bytes, softmax.state_bytes, required.length),)
    return Cost(
        shares=None if share is None else (share, share),
        share_unknown=share is None,
        states=states,
        state_unknown=required.reads_past and not states,
        length=required.length,
    )


def _flops(required: Requirements, counts: Counts) -> int | None:
    if required.direction == "forward":
        return counts.flops
    return None if counts.backward_flops is None else counts.flops + counts.backward_flops


def _bytes(required: Requirements, row: RowName, counts: Counts, options: Any) -> int | None:
    """Return the bytes of the mechanism of one layer for the batch, to compare with the memory limit. Return None without a limit
    or a count.
    """
    if required.memory is None:
        return None
    if required.decode:
        return None if counts.state_bytes is None else required.batch * counts.state_bytes
    kept = activation_bytes(card(row.attention), required.geometry, options, row.implementation)
    return None if kept is None else required.batch * kept


def build(required: Requirements, row: RowName) -> MultiHeadAttention:
    """Build an attention layer from the sizes of ``required`` and the mechanism of ``row``, on the current default device.

    Raises:
        UnknownNameError: the mechanism, an option or the implementation is unknown.
        ValueError: an option is out of its range, or the mechanism does not support the sizes of the layer.
    """
    return MultiHeadAttention(
        required.width,
        required.heads,
        row.attention,
        length=required.length,
        context_length=required.length if required.cross else None,
        causal=required.reads_past,
        implementation=row.implementation,
        **row.options,
    )


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommended mechanism with all the evidence."""

    required: Requirements
    candidates: tuple[Candidate, ...]
    """Mechanisms that meet the requirements, the cheapest first."""
    refused: tuple[Refusal, ...]
    answer: Answer
    """Which candidates to use for the use case, according to the records."""
    judged: Mapping[str, tuple[Judgement, ...]]
    """For each mechanism among the candidates except softmax, its verdicts on all recorded tasks of the required direction."""
    transplanted: frozenset[str]
    """Mechanisms that were put into a trained model."""
    named: bool
    """True if the user named the rows to choose among."""
    need: Need | None
    """Use case that decides which records count as evidence. None for a trained model, which is judged by transplants."""

    def candidate(self, attention: str) -> Candidate | None:
        """Return the cheapest candidate of a mechanism, or None if there is none."""
        return next((each for each in self.candidates if each.attention == attention), None)

    @property
    def qualified(self) -> list[Candidate]:
        """Candidates that are cheaper than softmax and match it on every deciding task (one on whose score the recommendation is
        based), the cheapest first."""
        names = dict.fromkeys(choice.attention for choice in self.answer.chosen)
        return [each for name in names if (each := self.candidate(name))]

    @property
    def taken(self) -> Candidate | None:
        """Recommended candidate, which is softmax if no other qualifies. None if nothing meets the requirements."""
        return next(iter(self.qualified), self.candidate(BASELINE))

    @property
    def choice(self) -> Choice | None:
        """Evidence for the recommended candidate. If softmax is recommended, evidence for the candidate that came
        closest. None if no candidate has evidence on every deciding task."""
        taken = self.taken
        own = [each for each in self.answer.chosen if taken and each.attention == taken.attention]
        return own[0] if own else self.answer.nearest

    def at_deciding(self, attention: str) -> list[Judgement]:
        """Return the verdicts on a mechanism on the deciding tasks (those on whose scores the recommendation is based)."""
        deciding = {name for name, _ in self.answer.evidence}
        return [one for one in self.judged.get(attention, ()) if one.ability.name in deciding]

    def untried(self) -> tuple[Candidate, list[Ability]] | None:
        """Return the candidate for which more runs are most likely to change the recommendation, and the tasks on which it must
        still be shown to match softmax. Return None if there is no such candidate.

        These are deciding tasks: the recommendation is based on their scores. The candidate is cheaper than softmax (with
        ``decode``, its state is smaller, too), did not lose on a deciding task, and was not put into a trained model. Of several
        candidates, the one with the fewest unmatched deciding tasks is returned; among equals, the one that
        matches softmax on the most recorded tasks, then the cheapest.
        """
        found = []
        for each in self.candidates:
            judgements = self.at_deciding(each.attention)
            lacking = [one.ability for one in judgements if one.verdict not in QUALIFIES]
            lost = any(one.verdict in ("worse", "no better", "failed") for one in judgements) or each.attention in self.transplanted
            good = sum(one.verdict in QUALIFIES for one in self.judged.get(each.attention, ()))
            if each.cost.cheaper and (each.cost.smaller or not self.required.decode) and not lost and (lacking or not judgements):
                found.append((len(lacking), -good, each.share, each.label, each, lacking))
        return min(found, key=lambda one: one[:4])[4:] if found else None


def recommend(
    required: Requirements,
    tables: Sequence[Table],
    transplant: Mapping[str, Any] | None = None,
    *,
    rows: Sequence[RowName] = (),
) -> Recommendation:
    """Return a recommendation: the cheapest mechanism that meets the requirements and takes fewer FLOPs than softmax.

    On every deciding task (one on whose score the recommendation is based), the mechanism must also match softmax and beat the
    controls, which cannot select tokens by content. If there is no such mechanism, softmax is recommended.

    Args:
        required: requirements, which also choose the deciding tasks.
        transplant: content of a file that ``attn-zoo transplant`` wrote. For a trained model, the evidence is
            this content instead of scores on tasks.
        rows: mechanisms with options to choose among; by default all mechanisms except controls.

    Raises:
        ValueError: the task that the user named has no records in the required direction, ``transplant`` is the file of another
            experiment, or the cost of softmax cannot be counted for these requirements.
    """
    found, refused = candidates(required, rows)
    costs: dict[str, Cost] = {each.attention: each.cost for each in reversed(found)}
    every = [ability for ability in abilities(tables) if ability.causal == required.reads_past]
    tried: set[str] = set()
    need = None
    if required.trained:
        tried = {point["attention"] for point in (transplant or {}).get("points", ())}
        fits = not (required.reads_past or required.cross)
        said = drop_in(transplant if fits else None, required.accept, costs)
    else:
        need = required.need({str(ability.table.task["name"]): ability.name for ability in every})
        said = answer(need, required.reads_past, every, required.accept, lambda name, _: costs.get(name))
    judged = {name: tuple(judge(ability, name, required.accept) for ability in every) for name in costs if name != BASELINE}
    return Recommendation(required, tuple(found), tuple(refused), said, judged, frozenset(tried), bool(rows), need)
