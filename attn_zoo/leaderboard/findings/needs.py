"""Needs, the tasks that speak for each, and the mechanism to take by the records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from attn_zoo.leaderboard.comparisons import SEEDS_NEEDED
from attn_zoo.leaderboard.findings.abilities import BASELINE, Ability, Judgement, Verdict, judge
from attn_zoo.leaderboard.findings.costs import Cost, cost
from attn_zoo.leaderboard.statistics import Estimate


@dataclass(frozen=True, slots=True)
class Need:
    """A use of attention, and the tasks whose scores speak for it."""

    title: str
    tasks: Mapping[tuple[str, bool], str]
    """By task name and whether it is causal, why its score speaks for the need."""
    small_state: bool = False
    """Whether the state must be known and smaller than softmax's keys and values; of those that qualify the smallest is taken."""
    name: str = ""
    """Name on the command line."""

    @property
    def directions(self) -> tuple[bool, ...]:
        """Whether its tasks are causal; a need of both directions is answered for each."""
        return tuple(sorted({causal for _, causal in self.tasks}))


QUALIFIES: tuple[Verdict, ...] = ("better", "as good")
"""Verdicts of a mechanism that may be taken."""
_JUDGED: tuple[Verdict, ...] = (*QUALIFIES, "worse", "no better", "unclear")

_RECALL = {
    "mqar": "each key must find its one value among many pairs",
    "copying": "every token must come back exactly and in order",
    "induction": "the token after the last occurrence must be found",
    "haystack": "one place of a long text holds the answer",
}
_BOTH_WAYS = {(name, False): why for name, why in _RECALL.items()}
_CAUSAL = {(name, True): why for name, why in _RECALL.items()} | {
    ("fuzzy_recall", True): "keys and values of several tokens must be found whole",
    ("needle", True): "few places of a long input hold the answers",
}

NEEDS = (
    Need(
        "Long documents classified",
        {
            ("text", False): "the class of a review depends on all of its bytes",
            ("imdb", False): "the class of a review depends on all of its words",
            ("retrieval", False): "two documents are compared as wholes",
            ("haystack", False): "one place of a long text decides",
            ("selective", False): "marked tokens anywhere in the input are counted together",
        },
        name="documents",
    ),
    Need(
        "Vision at high resolution",
        {
            ("mosaic", False): "one patch must be found by what another shows",
            ("pathfinder", False): "two ends of a long line in a picture must be joined",
            ("pixels", False): "a picture is read pixel by pixel",
            ("cifar10", False): "objects are told by small patches of a photograph",
            ("cifar100", False): "objects of many classes are told by small patches of a photograph",
        },
        name="vision",
    ),
    Need(
        "Causal generation with little memory",
        {
            ("causal_language", True): "the next token of a text depends on those before it",
            **_CAUSAL,
            ("flip_flop", True): "what was written last must be kept until it is read",
            ("selective", True): "marked tokens are counted together as they come",
        },
        small_state=True,
        name="generation",
    ),
    Need("Exact recall", {**_BOTH_WAYS, **_CAUSAL}, name="recall"),
)
"""Needs that tasks speak for; the fifth, a drop-in for a trained encoder, is judged by transplants (``drop_in``)."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A score minus softmax's."""

    at: str
    """Ability, or quality of an encoder."""
    amount: Estimate
    unit: str

    @property
    def low(self) -> float:
        """Lower bound; every gain that is judged has an interval."""
        assert self.amount.half_width is not None, "of at least SEEDS_NEEDED seeds"
        return self.amount.mean - self.amount.half_width


@dataclass(frozen=True, slots=True)
class Choice:
    """A mechanism that is cheaper than softmax, and its gains."""

    label: str
    gains: tuple[Gain, ...]
    costs: str
    """In words."""
    attention: str

    @property
    def worst(self) -> float:
        """The least lower bound of its gains."""
        return min(gain.low for gain in self.gains)


@dataclass(frozen=True, slots=True)
class Answer:
    """What to take for a need."""

    title: str
    direction: str
    """``read both ways`` or ``causal`` where a need is answered for both; else empty."""
    spoken: tuple[tuple[str, str], ...]
    """Abilities that it rests on, each with why it speaks for the need."""
    silent: tuple[tuple[str, str], ...]
    """Abilities that are recorded and say nothing, each with the reason."""
    compared: bool
    """Whether another mechanism than softmax has enough seeds at all abilities that it rests on."""
    missing: tuple[str, ...]
    """Names of tasks that speak for the need and are not recorded."""
    chosen: tuple[Choice, ...]
    """Those that qualify, the one to take first."""
    nearest: Choice | None
    """Where none qualifies, of those that are cheaper the one whose greatest loss is least."""


Pricing = Callable[[str, Sequence[Ability]], Cost | None]
"""Cost of an attention by abilities; None for one that is no candidate."""


def costs_of(names: Collection[str] | None) -> Pricing:
    """Recorded costs of the candidates ``names``; None for all."""
    return lambda name, abilities: cost(name, abilities) if names is None or name in names else None


def answers(need: Need, abilities: Sequence[Ability], accept: float, priced: Pricing = cost) -> list[Answer]:
    """The answer to ``need`` in each of its directions; see ``answer``."""
    found = [answer(need, causal, abilities, accept, priced) for causal in need.directions]
    words = ["causal" if causal else "read both ways" for causal in need.directions]
    return [replace(one, direction=word) for one, word in zip(found, words, strict=True)] if len(found) > 1 else found


def answer(need: Need, causal: bool, abilities: Sequence[Ability], accept: float, priced: Pricing = cost) -> Answer:
    """The choice for ``need``: at every ability that speaks for it better than softmax or as good, better than the best control,
    and of fewer FLOPs than softmax; of those the cheapest.

    Args:
        priced: cost of each candidate; by default as recorded, at 4,096 tokens.
    """
    speaking, mute = voices(need, causal, abilities)
    found, compared = [], False
    for name in {name for ability in speaking for name, row in ability.rows.items() if not row.control} - {BASELINE}:
        spent, judgements = priced(name, speaking), [judge(ability, name, accept) for ability in speaking]
        if spent is None:
            continue
        compared |= all(_is_judged(judgement) for judgement in judgements)
        if spent.cheaper and (spent.smaller or not need.small_state):
            found.append((spent, name, judgements))
    found.sort(key=lambda one: (_price(need, one[0]), one[1]))
    good = [_choice(*one) for one in found if all(judgement.verdict in QUALIFIES for judgement in one[2])]
    judged = [_choice(*one) for one in found if all(_is_judged(judgement) for judgement in one[2])]
    recorded = {_key(ability) for ability in abilities}
    return Answer(
        title=need.title,
        direction="",
        spoken=tuple((ability.name, need.tasks[_key(ability)]) for ability in speaking),
        silent=tuple(mute),
        compared=compared,
        missing=tuple(key[0] for key in need.tasks if key[1] == causal and key not in recorded),
        chosen=tuple(good),
        nearest=None if good else max(judged, key=lambda choice: choice.worst, default=None),
    )


def voices(need: Need, causal: bool, abilities: Sequence[Ability]) -> tuple[list[Ability], list[tuple[str, str]]]:
    """Abilities that speak for ``need`` in one direction, and the names of those that do not, each with the reason.

    An ability speaks where softmax has at least ``SEEDS_NEEDED`` seeds and is itself better than the best control.
    """
    ours = [(ability, _mute(ability)) for ability in abilities if ability.causal == causal and _key(ability) in need.tasks]
    return [ability for ability, why in ours if why is None], [(ability.name, why) for ability, why in ours if why is not None]


def _key(ability: Ability) -> tuple[str, bool]:
    return str(ability.table.task["name"]), ability.causal


def _mute(ability: Ability) -> str | None:
    """Why an ability says nothing of what is lost against softmax."""
    verdict = judge(ability, BASELINE).verdict
    if ability.silent:
        return ability.silent
    reasons = {
        "above controls": None,
        "not run": "softmax was not run",
        "failed": "softmax failed at a seed",
        "few seeds": f"softmax or the control {ability.table.control} has fewer than {SEEDS_NEEDED} seeds",
    }
    return reasons.get(verdict, f"softmax is no better than the control {ability.table.control}")


def _is_judged(judgement: Judgement) -> bool:
    return judgement.verdict in _JUDGED


def _price(need: Need, spent: Cost) -> tuple[float, ...]:
    assert spent.shares, "asked of what is cheaper than softmax"
    share = spent.shares[1]
    return (spent.states[0].bytes, share) if need.small_state else (share,)


def _choice(spent: Cost, name: str, judgements: Sequence[Judgement]) -> Choice:
    gains = tuple(Gain(j.name, j.gain, j.ability.unit) for j in judgements if j.gain)
    return Choice(name, gains, spent.words, name)
