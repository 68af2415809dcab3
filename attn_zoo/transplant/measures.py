"""Measurements of a student: the quality of its embeddings, and the cost and speed of its attention."""

from __future__ import annotations

import time
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.count import activation_bytes, flops_of
from attn_zoo.integrations.transformers import zoo_layers
from attn_zoo.registry import card
from attn_zoo.transplant.encoder import BATCH, embed
from attn_zoo.transplant.texts import Material, Passages
from attn_zoo.transplant.training import DivergedError

ROUNDS = 7
"""Number of timed rounds per student. A round times one pass of the student and one of the teacher."""


class Exam:
    """Test data with the teacher's embeddings, with which the quality of every student is measured."""

    def __init__(self, teacher: Any, material: Material) -> None:
        self.passages, self.pairs, self.same = material.test, material.pairs, material.same
        self._right = embed(teacher, self.passages, trim=True)
        self._right_pairs = None if self.pairs is None else embed(teacher, self.pairs, trim=True)
        places = torch.arange(len(self.passages)) // 2
        self._first, self._second = torch.triu_indices(len(self.passages), len(self.passages), 1)
        self._follow = (places[self._first] == places[self._second]).numpy()
        self.teacher = self.grade(teacher, trim=True)
        """Quality of the teacher, measured in the same way as that of its students."""

    def grade(self, student: Any, *, trim: bool) -> dict[str, Any]:
        """Return the quality of a student. A measure is None if there are no data for it, or if all similarities are equal.

        - ``spearman``, ``pearson``: correlations between the student's and the teacher's cosine similarities over all pairs of
          passages.
        - ``cosine``: cosine similarity between the student's and the teacher's embedding of a passage, averaged over passages.
        - ``neighbours``: area under the ROC curve if the similarity of two passages predicts whether they are consecutive in a
          text.
        - ``pairs_spearman``: Spearman correlation between the student's and the teacher's similarities of the sentence pairs.
        - ``pairs_auc``: area under the ROC curve if the similarity of two sentences predicts whether they are paraphrases.

        Args:
            trim: True only if the student runs at any length (see ``embed``).

        Raises:
            DivergedError: an embedding is NaN or infinite, because the last training step diverged.
        """
        pairs = None if self.pairs is None else embed(student, self.pairs, trim=trim)
        embeddings = embed(student, self.passages, trim=trim)
        if not all(bool(each.isfinite().all()) for each in (embeddings, pairs) if each is not None):
            raise DivergedError("the embeddings became NaN or infinite. Use lower learning rates")
        from sklearn.metrics import roc_auc_score  # imported here, because the import takes a second

        student, reference = self._similarities(embeddings), self._similarities(self._right)
        spearman, pearson = _correlations(student, reference)
        pairs_spearman, pairs_auc = None, None
        if pairs is not None and self._right_pairs is not None:
            of_pairs, right = (_pair_similarities(each) for each in (pairs, self._right_pairs))
            pairs_spearman, _ = _correlations(of_pairs, right)
            pairs_auc = float(roc_auc_score(self.same, of_pairs.numpy()))
        return {
            "spearman": spearman,
            "pearson": pearson,
            "cosine": float((embeddings * self._right).sum(dim=-1).mean()),
            "neighbours": float(roc_auc_score(self._follow, student.numpy())),
            "pairs_spearman": pairs_spearman,
            "pairs_auc": pairs_auc,
        }

    def _similarities(self, embeddings: Float[Tensor, "passages dim"]) -> Float[Tensor, " pairs"]:
        embeddings = embeddings.double()
        return (embeddings @ embeddings.T)[self._first, self._second]


def _pair_similarities(embeddings: Float[Tensor, "sentences dim"]) -> Float[Tensor, " pairs"]:
    first, second = embeddings.double().chunk(2)
    return (first * second).sum(dim=-1)


def _correlations(student: Tensor, reference: Tensor) -> tuple[float | None, float | None]:
    """Return Spearman's and Pearson's correlations. Both are None if the similarities of one model are equal up to rounding."""
    from scipy.stats import pearsonr, spearmanr

    if min(float(student.std()), float(reference.std())) < 1e-6:
        return None, None
    return float(spearmanr(student, reference).statistic), float(pearsonr(student, reference).statistic)


def spent(student: Any, teacher_flops: int, passage: Passages) -> dict[str, int | None]:
    """Return the cost of a student for one passage of the full length, in evaluation mode.

    - ``attention_flops``, ``softmax_flops``: forward FLOPs of the mechanisms of all layers, and of softmax attention in the same
      layers, by their formulas. Projections are excluded, because every mechanism needs them.
    - ``kept_bytes``, ``softmax_kept_bytes``: bytes that autograd saves for the backward pass of these, in float32 on a CPU, or
      None if they cannot be counted from shapes.
    - ``layers``: number of layers; ``parameters``: number of parameters that the mechanisms add to those of the teacher.
    - ``encoder_flops``, ``teacher_flops``: forward FLOPs of the whole student and teacher, counted by PyTorch.

    Args:
        teacher_flops: result of ``counted_flops`` for the teacher on the same passage.
    """
    stack, softmax = zoo_layers(student), card("softmax")
    kept = [activation_bytes(mechanism.card, mechanism.geometry, mechanism.options) for mechanism in stack]
    usual = [activation_bytes(softmax, mechanism.geometry, softmax.options()) for mechanism in stack]
    return {
        "attention_flops": sum(mechanism.card.cost(mechanism.geometry, mechanism.options).flops for mechanism in stack),
        "softmax_flops": sum(softmax.cost(mechanism.geometry, softmax.options()).flops for mechanism in stack),
        "kept_bytes": None if None in kept else sum(each or 0 for each in kept),
        "softmax_kept_bytes": sum(each or 0 for each in usual),
        "layers": len(stack),
        "parameters": sum(p.numel() for mechanism in stack for p in mechanism.parameters()),
        "encoder_flops": counted_flops(student, passage),
        "teacher_flops": teacher_flops,
    }


@torch.no_grad()
def counted_flops(model: Any, passage: Passages) -> int:
    """Return the FLOPs of one forward pass of ``model``: two for each multiply-add in a matrix product."""
    return flops_of(lambda: model(**passage.call()))


@torch.no_grad()
def timed(teacher: Any, student: Any, passages: Passages) -> dict[str, list[float]]:
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
