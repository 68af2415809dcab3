"""How much of the teacher a student kept: do its similarities of passages order them alike, and are they as good for use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.text import read_text
from attn_zoo.contract import DamagedDataError
from attn_zoo.data import read_jsonl
from attn_zoo.transplant.encoder import embed
from attn_zoo.transplant.passages import Passages


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences, and whether they say the same; None where nobody said."""

    first: str
    second: str
    same: bool | None


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one model at one stage; None where there is nothing to measure by, or all similarities are one."""

    spearman: float | None
    """Rank correlation of the student's cosine similarities of all pairs of passages with the teacher's."""
    pearson: float | None
    """The linear correlation of the same."""
    cosine: float
    """Mean cosine between the student's and the teacher's embedding of the same passage."""
    neighbours: float
    """Area under the ROC curve of telling two passages that follow each other from two of different places by their similarity."""
    pairs_spearman: float | None = None
    """Rank correlation with the teacher's similarities of the given pairs of sentences."""
    pairs_auc: float | None = None
    """Area under the ROC curve of telling the pairs that say the same from the others."""


class Exam:
    """What all students of a teacher are graded by.

    Args:
        teacher: whose embeddings are what is right.
        passages: two by two they follow each other in a text.
        pairs: their first sentences, then as many second ones; None where there are none.
        same: whether a pair says the same; None where nobody said.
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
        """Grade a student; ``trim`` as in ``embed``."""
        pairs = None if self.pairs is None else embed(student, self.pairs, trim=trim)
        return self._grade(embed(student, self.passages, trim=trim), pairs)

    def _grade(self, found: Tensor, found_pairs: Tensor | None) -> Quality:
        from sklearn.metrics import roc_auc_score  # here, as it takes a second that most commands have no use for

        mine, right = self._similarities(found), self._similarities(self._right)
        ranks, line = _correlations(mine, right)
        pairs_ranks, pairs_auc = None, None
        if found_pairs is not None and self._right_pairs is not None:
            of_pairs = _of_pairs(found_pairs)
            pairs_ranks, _ = _correlations(of_pairs, _of_pairs(self._right_pairs))
            pairs_auc = None if self.same is None else float(roc_auc_score(self.same, of_pairs.numpy()))
        return Quality(
            spearman=ranks,
            pearson=line,
            cosine=float((found * self._right).sum(dim=-1).mean()),
            neighbours=float(roc_auc_score(self._follow, mine.numpy())),
            pairs_spearman=pairs_ranks,
            pairs_auc=pairs_auc,
        )

    def _similarities(self, found: Float[Tensor, "passages dim"]) -> Float[Tensor, " pairs"]:
        found = found.double()
        return (found @ found.T)[self._first, self._second]


def _of_pairs(found: Float[Tensor, "sentences dim"]) -> Float[Tensor, " pairs"]:
    first, second = found.double().chunk(2)
    return (first * second).sum(dim=-1)


def _correlations(mine: Tensor, right: Tensor) -> tuple[float | None, float | None]:
    """Spearman's and Pearson's; None where similarities do not differ by more than rounding."""
    from scipy.stats import pearsonr, spearmanr

    if min(float(mine.std()), float(right.std())) < 1e-6:
        return None, None
    return float(spearmanr(mine, right).statistic), float(pearsonr(mine, right).statistic)


def read_pairs(path: Path, count: int) -> list[Pair]:
    """Pairs from JSON lines with ``sentence1``, ``sentence2`` and, in all or none, ``label``, spread evenly over the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, holds too few, labels some only, or all alike.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no pairs of sentences at {path}: it is no file")
    try:
        rows = list(read_jsonl(path, ["sentence1", "sentence2"]))
    except DamagedDataError as error:
        raise ValueError(f"pairs: {error}") from error
    if len(rows) < count:
        raise ValueError(f"{path} holds {len(rows)} pairs, and {count} are asked for; lower pair_count")
    chosen = [rows[at * len(rows) // count] for at in range(count)]
    labels = {json.dumps(row.get("label")) for row in chosen}
    if labels != {"null"} and labels != {"0", "1"}:
        raise ValueError(f"{path}: label is 0 or 1 in every pair, both occurring, or in none; got {', '.join(sorted(labels))}")
    named = labels != {"null"}
    return [Pair(str(row["sentence1"]), str(row["sentence2"]), bool(row["label"]) if named else None) for row in chosen]


def read_texts(paths: list[Path]) -> str:
    """All text of some files and folders; see ``read_text``."""
    return "\n\n".join(read_text(path) for path in paths)
