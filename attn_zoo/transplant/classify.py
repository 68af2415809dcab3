"""Text classification with a student (an encoder whose attention was replaced), as in Table 2 of the Linformer paper."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from attn_zoo.data.labelled_text import LabelledText
from attn_zoo.transplant.encoder import BATCH, mean_hidden
from attn_zoo.transplant.passages import Passages, read_in
from attn_zoo.transplant.setting import Setting
from attn_zoo.transplant.training import fit

ROUNDS = 7
"""Number of timed rounds per student. A round times one pass of the student and one of the teacher."""


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Labelled texts of one classification task, for training and for testing. Texts are stored as passages (token sequences)."""

    name: str
    title: str
    classes: int
    train: Passages
    train_labels: Int[Tensor, " train"]
    test: Passages
    test_labels: Int[Tensor, " test"]

    @property
    def facts(self) -> dict[str, Any]:
        """Title, numbers of examples, and the accuracy of always answering the most frequent class of the test examples."""
        majority = float(self.test_labels.bincount().max()) / len(self.test_labels)
        return {"title": self.title, "train": len(self.train), "test": len(self.test), "majority": majority}


def labelled(
    name: str, title: str, train: Sequence[LabelledText], test: Sequence[LabelledText], tokenizer: Any, setting: Setting
) -> Labelled:
    """Return a classification task as passages, from the first examples of ``train`` and ``test``. Training examples with the same
    tokens as a test example are left out.

    If two texts of an example are too long together, the longer one is truncated. Both texts get segment id 0, as in the
    training of sentence encoders.
    """
    tests, learned = test[: setting.classify_tests], train[: setting.classify_train]
    test_passages, train_passages = _encoded(tests, tokenizer, setting.length), _encoded(learned, tokenizer, setting.length)
    tested = set(map(tuple, test_passages.ids.tolist()))
    new = torch.tensor([tuple(row) not in tested for row in train_passages.ids.tolist()])
    labels = torch.tensor([row.label for row in learned])[new]
    answers = torch.tensor([row.label for row in tests])
    classes = 1 + max(int(labels.max()), int(answers.max()))
    return Labelled(name, title, classes, train_passages[new], labels, test_passages, answers)


def _encoded(rows: Sequence[LabelledText], tokenizer: Any, length: int) -> Passages:
    texts, *seconds = zip(*(row.texts for row in rows), strict=True)
    return read_in(texts, tokenizer, length, *seconds)


def classify(student: Any, task: Labelled, setting: Setting, *, trim: bool, seed: int) -> float:
    """Train a copy of the student with a linear layer on its mean hidden state, and return the accuracy on the test examples.

    Args:
        trim: True to drop the padding that all passages of a batch share. The student must then run at any length.

    Raises:
        DivergedError: a loss is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    own = copy.deepcopy(student)
    head = nn.Linear(own.config.hidden_size, task.classes)
    nn.init.normal_(head.weight, std=own.config.hidden_size**-0.5, generator=generator)
    nn.init.zeros_(head.bias)

    def logits(passages: Passages) -> Tensor:
        return head(mean_hidden(own, passages.trimmed() if trim else passages))

    fit(
        own,
        lambda rows: F.cross_entropy(logits(task.train[rows]), task.train_labels[rows]),
        len(task.train),
        what=f"classification, {task.name}",
        head=head,
        steps=setting.classify_steps,
        batch=setting.classify_batch,
        rate=setting.classify_rate,
        mechanism_rate=setting.classify_rate * setting.mechanism_factor,
        generator=generator,
    )
    order = task.test.valid.sum(dim=1).argsort(stable=True)
    with torch.no_grad():
        answers = torch.cat([logits(batch).argmax(dim=-1) for batch in task.test[order].batches(BATCH)])
    return float((answers == task.test_labels[order]).double().mean())


@torch.no_grad()
def timed(teacher: Any, student: Any, passages: Passages) -> Mapping[str, list[float]]:
    """Return the seconds of forward passes on the same passages, in one list for ``teacher`` and one for ``student``. In every
    round, both models run once. The first round is a warm-up without timing."""
    call = passages[:BATCH].call()
    seconds: dict[str, list[float]] = {"teacher": [], "student": []}
    for at in range(ROUNDS + 1):
        turn = [("teacher", teacher), ("student", student)]
        for name, model in turn if at % 2 else reversed(turn):
            began = time.perf_counter()
            model(**call)
            if at:
                seconds[name].append(time.perf_counter() - began)
    return seconds
