"""Causal language modelling: predict the next token of running text. Tokens that repeat earlier text are scored separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import SPLITS, Level, Split, TaskSpec
from attn_zoo.contract import Tokens as TokenInputs
from attn_zoo.registry import register_task

from .datasets.running_text import NOVELS, WIKITEXT2
from .parts.levels import smoke
from .parts.options import require_range
from .parts.running import LOCATIONS, Arrays, TextOptions, Texts, TextTask, require_fresh
from .parts.tokenisers import Tokeniser, Tokens


@dataclass
class Options(TextOptions):
    """Options of the task ``causal_language``."""

    run: int = 0
    """Number of tokens of a repetition: a token counts as repeated if it and the ``run`` - 1 tokens before it also occur earlier in
    the sequence. 0 means 8 for bytes and 2 for other tokens."""
    rare: int = 20
    """Largest number of times that repeated text may occur in the training text. Text that occurs more often does not count as
    repeated, because a network can memorise it."""

    def __post_init__(self) -> None:
        self.require_texts("causal_language")
        if self.run != 0 and not 2 <= self.run <= min(16, self.length):
            raise ValueError(f"causal_language.run must be 0 or from 2 to 16; got {self.run}")
        require_range("causal_language.rare", self.rare, 0, 2**31, "counts occurrences")


@register_task(
    "causal_language",
    title="Causal language modelling",
    version="1",
    summary="Predict the next token of running text. Tokens that repeat rare text of the sequence have a separate perplexity.",
    source="Arora et al. 2023 (Zoology), arXiv:2312.04927, Section 3; texts of Merity et al. 2016, or of your own",
    licence="of the texts: CC BY-SA 3.0 for WikiText-2, PSF-2.0 for Python",
    options=Options,
    locations=LOCATIONS,
    metric="perplexity",
    datasets=(WIKITEXT2, NOVELS),
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 2000, "batch_size": 16, "learning_rate": 3e-3, "warmup_steps": 100, "evaluate_every": 250},
            differs="bytes, 2 layers of width 64, WikiText-2 in place of the Pile, and a thousandth of the tokens",
        ),
        "smoke": smoke({"length": 32, "train": 500}, steps=4, dim=16, depth=1),
        "lra": Level(
            model={"dim": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0, "dropout": 0.1},
            budget={
                "steps": 20_000,
                "batch_size": 32,
                "learning_rate": 6e-4,
                "weight_decay": 0.1,
                "warmup_steps": 200,
                "evaluate_every": 1_000,
            },
            options={"length": 1024, "tokens": "bpe", "vocabulary": 32_768},
            differs="the size of the published models of 125 M parameters, on few of the Pile's tokens, and batches for one GPU",
        ),
    },
    variants={
        "novels": {"files": "novels", "length": 64, "train": 2_000, "run": 5},
    },
)
class CausalLanguage(TextTask):
    """Prediction of the next token at every position of a sequence.

    A token counts as ``repeated`` if it is the last token of a repetition: consecutive tokens, such as a name, that also occur
    earlier in the sequence and are rare in the training text. The option ``run`` is the length of a repetition. To predict the
    token, a network must find the earlier occurrence (associative recall). All other tokens are called the ``rest``.

    Source: Arora et al. 2023 study pairs of tokens that are repeated in the context and rare in training. The second tokens of
        these pairs are 6 % of all tokens. They account for 82 % of the difference in perplexity between a gated convolution and
        attention on the Pile, at 1,024 tokens.
    Differs: by default, tokens are bytes, and a repetition has 8 bytes. A text is cut into sequences of exactly ``length`` tokens;
        the remainder is not used. Texts are divided into splits as in the task ``masked_language``. Sequences of train and valid
        that also occur in a later split are left out. Perplexity is per token, so compare it only between runs with the same kind
        of token.
    """

    options: Options
    padded = False

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: inputs are tokens. The label at each position is the next token."""
        o = self.options
        return TaskSpec(TokenInputs(o.ids), o.length, classes=o.ids, labels="position", causal=True)

    def slices(self, split: Split) -> dict[str, Bool[Tensor, "examples length"]]:
        """Return two masks of the tokens to predict: ``repeated`` for tokens that end a repetition of text that is rare in
        training, and ``rest`` for all others."""
        repeated = torch.from_numpy(self.made()[f"{split} repeated"])
        return {"repeated": repeated, "rest": ~repeated}

    def arrays(self, texts: Texts, tokeniser: Tokeniser) -> Arrays:
        """Return the sequences of each split, the next token at each position, and a mask of the repeated tokens.

        Raises:
            ValueError: every sequence of a split also occurs in a later split.
        """
        o, run = self.options, self.options.run or (8 if self.options.tokens is Tokens.bytes else 2)
        rows: dict[str, NDArray[Any]] = {}
        taken: set[bytes] = set()
        for number, split in ((2, "test"), (1, "valid"), (0, "train")):
            windows = _windows(tokeniser, texts[split], o.length + 1)
            order = np.random.RandomState([o.data_seed, number]).permutation(len(windows))
            keys = [windows[place, :-1].tobytes() for place in order]
            order = order[[key not in taken for key in keys]]
            taken.update(keys)
            require_fresh("causal_language", split, len(order))
            rows[split] = windows[order[: (split == "train" and o.train) or None]]
        codes = dict(zip(SPLITS, _codes([rows[split] for split in SPLITS], run), strict=True))
        frequency = np.bincount(codes["train"].ravel(), minlength=1 + max(int(code.max()) for code in codes.values()))
        arrays: Arrays = {}
        for split in SPLITS:
            arrays[f"{split} ids"], arrays[f"{split} labels"] = rows[split][:, :-1].copy(), rows[split][:, 1:].copy()
            repeated = np.zeros(arrays[f"{split} ids"].shape, dtype=bool)
            repeated[:, -codes[split].shape[1] :] = stood_before(codes[split]) & (frequency[codes[split]] <= o.rare)
            arrays[f"{split} repeated"] = repeated
        return arrays


def _windows(tokeniser: Tokeniser, texts: Sequence[str], length: int) -> NDArray[Any]:
    """Return sequences of ``length`` tokens. Each begins with the last token of the previous one, and none spans two texts."""
    windows = []
    for text in texts:
        ids = np.array(list(tokeniser.encode([text])[0]), dtype=tokeniser.dtype)
        starts = np.arange((len(ids) - 1) // (length - 1)) * (length - 1)
        windows.append(ids[starts[:, None] + np.arange(length)])
    rows = np.concatenate(windows)
    if not len(rows):
        raise ValueError(
            f"causal_language: each split must have a text of at least {length} tokens, but one split has no such text. Give "
            "longer texts, or choose a smaller length"
        )
    return rows


def _codes(rows: list[NDArray[Any]], run: int) -> list[NDArray[np.int64]]:
    """Return a code for each run of ``run`` tokens, at its last token. Equal codes mean equal runs in all arrays."""
    together = np.concatenate(rows).astype(np.int64)
    vocabulary = int(together.max()) + 1
    codes, count = together, vocabulary  # codes are below count
    for step in range(1, run):
        if count * vocabulary > 2**63:
            codes, count = _numbered(codes)
        codes, count = codes[:, :-1] * vocabulary + together[:, step:], count * vocabulary
    codes, _ = _numbered(codes)
    return np.split(codes, np.cumsum([len(part) for part in rows])[:-1])


def _numbered(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Number the codes from 0 in their order, and return how many there are."""
    distinct, numbers = np.unique(codes, return_inverse=True)
    return numbers.reshape(codes.shape), len(distinct)


def stood_before(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the numbers that also occur earlier in the same row."""
    order = np.argsort(codes, axis=1, kind="stable")
    ordered = np.take_along_axis(codes, order, axis=1)
    again = np.zeros(codes.shape, dtype=bool)
    np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return again
