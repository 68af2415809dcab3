"""Counted cost of a mechanism relative to softmax: FLOPs at 4,096 tokens and, on causal tasks, the size of the recurrent state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attn_zoo.leaderboard.advise.abilities import Ability
from attn_zoo.leaderboard.heat_costs import LENGTH, byte_count


@dataclass(frozen=True, slots=True)
class State:
    """Size in bytes of a mechanism's recurrent state, and of softmax's keys and values at the same length. Sizes from records are
    sums over all layers of a network. In a recommendation, sizes are those of one layer."""

    bytes: int
    softmax: int
    """Bytes of softmax's keys and values."""
    length: int
    """Number of tokens at which both sizes are counted."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Counted costs of one mechanism relative to softmax, over several tasks."""

    shares: tuple[float, float] | None
    """The mechanism's FLOPs divided by softmax's: the smallest and the largest quotient over the tasks. Tasks on which either
    count is unknown or 0 are left out. None if no task remains."""
    share_unknown: bool
    """True if a task lacks the FLOPs of the mechanism or of softmax."""
    states: tuple[State, ...]
    """One entry per causal task for which the sizes of the mechanism and of softmax are both known, the longest task first."""
    state_unknown: bool
    """True if a causal task lacks the size of the mechanism's or of softmax's state."""
    length: int = LENGTH
    """Number of tokens at which the FLOPs are counted."""

    @property
    def cheaper(self) -> bool:
        """True if the mechanism takes fewer FLOPs than softmax on every task. False if any of these FLOPs are unknown."""
        return self.shares is not None and not self.share_unknown and self.shares[1] < 1

    @property
    def smaller(self) -> bool:
        """True if, on every causal task, the mechanism's recurrent state has a known size and is smaller than softmax's keys and
        values. False without a causal task."""
        return bool(self.states) and not self.state_unknown and all(state.bytes < state.softmax for state in self.states)

    @property
    def words(self) -> str:
        """Cost as text, such as ``0.4 % of softmax's FLOPs at 4,096 tokens; a state of 8.25 KiB, softmax's 32 KiB (64 tokens)``."""
        if self.shares is None:
            told = f"FLOPs at {self.length:,} tokens not counted"
        else:
            least, most = (f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:,.0f}" for share in self.shares)
            told = f"{least}{'' if least == most else f' to {most}'} % of softmax's FLOPs at {self.length:,} tokens"
        if not self.states:
            return told
        state = self.states[0]
        held = f"a state of {byte_count(state.bytes)}, softmax's {byte_count(state.softmax)}"
        return f"{told}; {held} ({state.length:,} tokens)"


def cost(attention: str, abilities: Sequence[Ability]) -> Cost:
    """Return the counted costs of a mechanism over the tasks of ``abilities`` on which it has a score."""
    known = [(ability, ability.rows.get(attention), ability.softmax) for ability in abilities]
    rows = [(ability, row, softmax) for ability, row, softmax in known if row and row.test]
    shares, states, wanted = [], [], 0
    for ability, row, softmax in rows:  # a count of 0 is unknown: only matrix products are counted, and other operations take time
        if softmax and softmax.mechanism_flops_4096 and row.mechanism_flops_4096:
            shares.append(row.mechanism_flops_4096 / softmax.mechanism_flops_4096)
        wanted += ability.causal
        if ability.causal and softmax and softmax.state_bytes is not None and row.state_bytes is not None:
            states.append(State(row.state_bytes, softmax.state_bytes, int(ability.table.task["length"])))
    return Cost(
        shares=(min(shares), max(shares)) if shares else None,
        share_unknown=len(shares) < len(rows),
        states=tuple(sorted(states, key=lambda state: -state.length)),
        state_unknown=len(states) < wanted,
    )
