"""Quality of a student: how well its similarities between passages agree with those of the teacher, and how well they
distinguish related passages from others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import DamagedDataError
from attn_zoo.data import read_jsonl
from attn_zoo.transplant.encoder import embed
from attn_zoo.transplant.passages import Passages
from attn_zoo.transplant.training import DivergedError


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences with a label ``same``: True for paraphrases, False for other pairs, and None if the pair has no label."""

    first: str
    second: str
    same: bool | None


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality measures of one model after a stage of a trial: the swap of the mechanism, distillation, or fine-tuning. A measure
    is None if there are no data for it, or if all similarities are equal."""

    spearman: float | None
    """Spearman correlation between the student's and the teacher's cosine similarities over all pairs of passages."""
    pearson: float | None
    """Pearson correlation between the student's and the teacher's cosine similarities over all pairs of passages."""
    cosine: float
    """Cosine similarity between the student's and the teacher's embedding of a passage, averaged over passages."""
    neighbours: float
    """Area under the ROC curve if the similarity of two passages predicts whether they are consecutive in a text."""
    pairs_spearman: float | None = None
    """Spearman correlation between the student's and the teacher's similarities of the given sentence pairs."""
    pairs_auc: float | None = None
    """Area under the ROC curve if the similarity of two sentences predicts whether they are paraphrases."""


class Exam:
    """Test data with the teacher's embeddings, with which the quality of every student is computed.

    Args:
        teacher: model whose embeddings are the reference.
        passages: test passages. Passages 2 i and 2 i + 1 are consecutive in a text.
        pairs: first sentences of all sentence pairs, followed by all second sentences, or None.
        same: label of each pair, True for paraphrases. None if there are no labels.
    """

    def __init__(self, teacher: Any, passages: Passages, pairs: Passages | None, same: list[bool] | None) -> None:
        self.passages, self.pairs, self.same = passages, pairs, same
        self._right = embed(teacher, passages, trim=True)
        self._right_pairs = None if pairs is None else embed(teacher, pairs, trim=True)
        places = torch.arange(len(passages)) // 2
        self._first, self._second = torch.triu_indices(len(passages), len(passages), 1)
        self._follow = (places[self._first] == places[self._second]).numpy()
        self.teacher = self._grade(self._right, self._right_pairs)

    def grade(self, student: Any, *, trim: bool) -> Quality:
        """Return the quality of a student. Set ``trim`` to True only if the student runs at any length (see ``embed``).

        Raises:
            DivergedError: an embedding is NaN or infinite, because the last training step diverged.
        """
        pairs = None if self.pairs is None else embed(student, self.pairs, trim=trim)
        embeddings = embed(student, self.passages, trim=trim)
        if not all(bool(each.isfinite().all()) for each in (embeddings, pairs) if each is not None):
            raise DivergedError("the embeddings became NaN or infinite. Use lower learning rates")
        return self._grade(embeddings, pairs)

    def _grade(self, embeddings: Tensor, pair_embeddings: Tensor | None) -> Quality:
        from sklearn.metrics import roc_auc_score  # imported here, because the import takes a second

        student, reference = self._similarities(embeddings), self._similarities(self._right)
        spearman, pearson = _correlations(student, reference)
        pairs_ranks, pairs_auc = None, None
        if pair_embeddings is not None and self._right_pairs is not None:
            pair_similarities = _pair_similarities(pair_embeddings)
            pairs_ranks, _ = _correlations(pair_similarities, _pair_similarities(self._right_pairs))
            pairs_auc = None if self.same is None else float(roc_auc_score(self.same, pair_similarities.numpy()))
        return Quality(
            spearman=spearman,
            pearson=pearson,
            cosine=float((embeddings * self._right).sum(dim=-1).mean()),
            neighbours=float(roc_auc_score(self._follow, student.numpy())),
            pairs_spearman=pairs_ranks,
            pairs_auc=pairs_auc,
        )

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


def read_pairs(path: Path, count: int) -> list[Pair]:
    """Return ``count`` sentence pairs that are evenly spaced in a file of JSON lines. Each line has ``sentence1`` and
    ``sentence2``. Either all lines have a ``label``, 0 or 1, or none has.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, holds too few pairs, has labels for some pairs only, or has the same label for all.
    """
    if not path.is_file():
        raise FileNotFoundError(f"the file of pairs {path} does not exist. Name an existing file")
    try:
        rows = list(read_jsonl(path, ["sentence1", "sentence2"]))
    except DamagedDataError as error:
        raise ValueError(f"pairs: {error}") from error
    if len(rows) < count:
        raise ValueError(f"pair_count= must be at most {len(rows)}, because {path} has {len(rows)} pairs; got {count}")
    chosen = [rows[at * len(rows) // count] for at in range(count)]
    labels = {json.dumps(row.get("label")) for row in chosen}
    if labels != {"null"} and labels != {"0", "1"}:
        raise ValueError(
            f"{path}: if one pair has a label, every pair must have the label 0 or 1, and both labels must occur; got "
            f"{', '.join(sorted(labels))}"
        )
    labelled = labels != {"null"}
    return [Pair(str(row["sentence1"]), str(row["sentence2"]), bool(row["label"]) if labelled else None) for row in chosen]
