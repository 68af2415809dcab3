"""Use cases of attention, the tasks that are evidence for each, and the mechanism that the records recommend for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from attn_zoo.leaderboard.advise.abilities import Ability, Judged, Judgement, judge
from attn_zoo.leaderboard.advise.costs import Cost, cost
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED
from attn_zoo.leaderboard.statistics import Estimate


@dataclass(frozen=True, slots=True)
class Need:
    """Use case of attention, such as classifying long documents, and the tasks whose scores are evidence for it."""

    title: str
    tasks: Mapping[tuple[str, bool], str]
    """For each task, the reason why its score is evidence. Keys are pairs: the task's name, and True if the task is causal."""
    small_state: bool = False
    """True if the recurrent state must be smaller than softmax's keys and values. The mechanism with the smallest state is then
    recommended first."""
    name: str = ""
    """Name on the command line."""
    shortest: int = 0
    """Number of tokens that a task needs to count as evidence; above 0 if the use case is about long inputs."""

    @property
    def directions(self) -> tuple[bool, ...]:
        """Directions of the tasks: True for causal, False for bidirectional. There is one answer per direction."""
        return tuple(sorted({causal for _, causal in self.tasks}))

    def counts(self, task: str, causal: bool, length: int) -> bool:
        """Return True if runs of a task in this direction, with inputs of this length, can be evidence for the use case."""
        return (task, causal) in self.tasks and length >= self.shortest


QUALIFIES: tuple[Judged, ...] = ("better", "as good")
"""Verdicts with which a mechanism matches softmax on a task."""
_JUDGED: tuple[Judged, ...] = (*QUALIFIES, "worse", "no better", "unclear")

_RECALL = {
    "mqar": "each key must find its one value among many pairs",
    "copying": "every token must be reproduced exactly and in order",
    "induction": "the token after the last occurrence must be found",
    "haystack": "one place of a long text holds the answer",
}
_BOTH_WAYS = {(name, False): why for name, why in _RECALL.items()} | {
    ("needle", False): "few places of a long input hold the answers",
}
_CAUSAL = {(name, True): why for name, why in _RECALL.items()} | {
    ("fuzzy_recall", True): "keys and values of several tokens must be found whole",
    ("needle", True): "few places of a long input hold the answers",
}

NEEDS = (
    Need(
        "Classify long documents",
        {
            ("text", False): "the class of a review depends on all of its bytes",
            ("imdb", False): "the class of a review depends on all of its words",
            ("retrieval", False): "two documents are compared as wholes",
            ("haystack", False): "one place of a long text decides the answer",
            ("needle", False): "few places of a long input hold the answers",
            ("selective", False): "marked tokens anywhere in the input are counted together",
        },
        name="documents",
        shortest=512,
    ),
    Need(
        "Recognise large images",
        {
            ("mosaic", False): "one patch must be found by the content of another patch",
            ("pathfinder", False): "two ends of a long line in a picture must be joined",
            ("pixels", False): "a picture is read pixel by pixel",
            ("cifar10", False): "objects must be recognised from small patches of a photograph",
            ("cifar100", False): "objects of many classes must be recognised from small patches of a photograph",
        },
        name="vision",
        shortest=196,
    ),
    Need(
        "Generate text with little memory",
        {
            ("causal_language", True): "the next token of a text depends on those before it",
            **_CAUSAL,
            ("flip_flop", True): "the value written last must be kept until it is read",
            ("selective", True): "marked tokens are counted together as they come",
        },
        small_state=True,
        name="generation",
    ),
    Need("Recall exact tokens", {**_BOTH_WAYS, **_CAUSAL}, name="recall"),
)
"""Use cases that are judged by scores on tasks. ``drop_in`` judges one more: replacing softmax in a trained encoder."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Difference between the scores of a mechanism and of softmax on one task, positive if the mechanism is better."""

    at: str
    """Name of the task or, for a trained encoder, of the quality that the score measures."""
    amount: Estimate
    unit: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Mechanism that is cheaper than softmax, with its differences from softmax on the tasks that are evidence."""

    label: str
    gains: tuple[Gain, ...]
    costs: str
    """Cost as text."""
    attention: str

    @property
    def worst(self) -> float:
        """Worst difference from softmax on any task, taken at the lower end of its interval."""
        return min(gain.amount.low for gain in self.gains)


@dataclass(frozen=True, slots=True)
class Answer:
    """Mechanisms to use for one use case, with the evidence."""

    title: str
    direction: str
    """``bidirectional`` or ``causal`` if the use case has one answer per direction; else empty."""
    evidence: tuple[tuple[str, str], ...]
    """Names of the tasks that count as evidence, each with the reason."""
    no_evidence: tuple[tuple[str, str], ...]
    """Names of recorded tasks that do not count as evidence, each with the reason."""
    compared: bool
    """True if at least one mechanism that is cheaper than softmax has enough seeds on every task that counts as evidence."""
    missing: tuple[str, ...]
    """Names of the use case's tasks that have no records."""
    chosen: tuple[Choice, ...]
    """Mechanisms that can be recommended, the cheapest first."""
    nearest: Choice | None
    """Mechanism that is cheaper than softmax and loses least on its worst task. None if a mechanism is recommended, or if no
    cheaper mechanism has a verdict on every task."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks, or of the qualities of an encoder, that count as evidence."""
    lengths: tuple[int, ...] = ()
    """Input lengths of the tasks that count as evidence, in ascending order."""
    shortest: int = 0
    """Number of tokens that a task needs to count as evidence."""

    @property
    def scored_at(self) -> str:
        """Lengths of the evidence in tokens, such as ``36 to 80``; empty if no length is known."""
        return " to ".join(dict.fromkeys(f"{length:,}" for length in (self.lengths[:1] + self.lengths[-1:])))


Pricing = Callable[[str, Sequence[Ability]], Cost | None]
"""Function from a mechanism and abilities to the cost of the mechanism, or None if it cannot be recommended."""


def costs_of(names: Collection[str] | None) -> Pricing:
    """Return a function that computes the counted costs of a mechanism on the tasks of abilities.

    Args:
        names: mechanisms that may be recommended; None for all. For any other mechanism, the function returns None.
    """
    return lambda name, abilities: cost(name, abilities) if names is None or name in names else None


def answers(need: Need, abilities: Sequence[Ability], accept: float, priced: Pricing = cost) -> list[Answer]:
    """Return one answer to a use case per direction (bidirectional, causal) of its tasks, by the rules of ``answer``."""
    words = {False: "bidirectional", True: "causal"} if len(need.directions) > 1 else {}
    return [replace(answer(need, causal, abilities, accept, priced), direction=words.get(causal, "")) for causal in need.directions]


def answer(need: Need, causal: bool, abilities: Sequence[Ability], accept: float, priced: Pricing = cost) -> Answer:
    """Return which mechanisms to use for a use case in one direction, the cheapest first.

    A task counts as evidence if it has at least ``need.shortest`` tokens, and if softmax has at least ``SEEDS_NEEDED`` seeds on it
    and beats the best control. A mechanism can be recommended if it takes fewer FLOPs than softmax, and if it matches softmax and
    beats the best control on every task that counts. With ``need.small_state``, its recurrent state must also be smaller than
    softmax's keys and values, and the mechanism with the smallest state comes first.

    Args:
        accept: largest acceptable loss against softmax, in points or per cent (see ``ACCEPT``).
        priced: function that returns the cost of a mechanism over abilities; by default the recorded cost at 4,096 tokens.
    """
    ours = [
        (ability, _no_evidence(ability, need)) for ability in abilities if ability.causal == causal and _key(ability) in need.tasks
    ]
    evidence = [ability for ability, why in ours if why is None]
    found, compared = [], False
    for name in {name for ability in evidence for name, row in ability.rows.items() if not row.control} - {BASELINE}:
        spent, judgements = priced(name, evidence), [judge(ability, name, accept) for ability in evidence]
        if spent is None:
            continue
        if spent.cheaper and (spent.smaller or not need.small_state):
            found.append((spent, name, judgements))
            compared |= _are_judged(judgements)
    found.sort(key=lambda one: (_price(need, one[0]), one[1]))
    good = [_choice(*one) for one in found if all(judgement.verdict in QUALIFIES for judgement in one[2])]
    judged = [_choice(*one) for one in found if _are_judged(one[2])]
    recorded = {_key(ability) for ability in abilities}
    return Answer(
        title=need.title,
        direction="",
        evidence=tuple((ability.name, need.tasks[_key(ability)]) for ability in evidence),
        no_evidence=tuple((ability.name, why) for ability, why in ours if why is not None),
        compared=compared,
        missing=tuple(key[0] for key in need.tasks if key[1] == causal and key not in recorded),
        chosen=tuple(good),
        nearest=None if good else max(judged, key=lambda choice: choice.worst, default=None),
        tasks=tuple(dict.fromkeys(_key(ability)[0] for ability in evidence)),
        lengths=tuple(sorted({int(length) for ability in evidence if (length := ability.table.task.get("length"))})),
        shortest=need.shortest,
    )


def _key(ability: Ability) -> tuple[str, bool]:
    return str(ability.table.task["name"]), ability.causal


def _no_evidence(ability: Ability, need: Need) -> str | None:
    """Return why an ability among the tasks of a use case cannot show a loss against softmax, or None if it can."""
    length = ability.table.task.get("length") or 0
    if not need.counts(*_key(ability), length):
        return f"{length:,} tokens, and this use case begins at {need.shortest:,}"
    if ability.no_evidence:
        return ability.no_evidence
    reasons = {
        "above controls": None,
        "not run": "softmax was not run",
        "failed": "softmax failed at a seed",
        "few seeds": f"softmax or the control {ability.table.control} has fewer than {SEEDS_NEEDED} seeds",
    }
    return reasons.get(judge(ability, BASELINE).verdict, f"softmax is no better than the control {ability.table.control}")


def _are_judged(judgements: Sequence[Judgement]) -> bool:
    return all(judgement.verdict in _JUDGED for judgement in judgements)


def _price(need: Need, spent: Cost) -> tuple[float, ...]:
    assert spent.shares, "only mechanisms known to be cheaper than softmax have a price"
    share = spent.shares[1]
    return (spent.states[0].bytes, share) if need.small_state else (share,)


def _choice(spent: Cost, name: str, judgements: Sequence[Judgement]) -> Choice:
    gains = tuple(Gain(j.name, j.gain, j.ability.unit) for j in judgements if j.gain)
    return Choice(name, gains, spent.words, name)
