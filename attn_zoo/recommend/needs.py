"""Use cases of attention, and the tasks that are evidence for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ACCEPT = 5.0
"""How much worse than softmax a mechanism may be and still match it: in points for percentage metrics, else in per cent of
softmax's score."""


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
    settings: str = ""
    """Words of ``attn-zoo run`` with which the tasks have so many tokens; by default those of the ability profile."""

    @property
    def directions(self) -> tuple[bool, ...]:
        """Directions of the tasks: True for causal, False for bidirectional. There is one answer per direction."""
        return tuple(sorted({causal for _, causal in self.tasks}))

    def counts(self, task: str, causal: bool, length: int) -> bool:
        """Return True if runs of a task in this direction, with inputs of this length, can be evidence for the use case."""
        return (task, causal) in self.tasks and length >= self.shortest


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
        settings="level=cpu task.length=512",
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
        settings="level=cpu",
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
"""Use cases that are judged by scores on tasks. Another one, to replace softmax in a trained encoder, is judged by transplants."""
