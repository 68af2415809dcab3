"""Text classification as in Table 2 of the Linformer paper: SST-2, QNLI, QQP, MRPC and IMDB. Tokens are bytes or parts of words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, DataSet, Examples, Level, Split, Task, TaskSpec
from attn_zoo.contract import Tokens as TokenInputs
from attn_zoo.data import cached, data_root, dataset_digests
from attn_zoo.data.labelled_text import LabelledText, Parts
from attn_zoo.registry import register_task

from .datasets.glue import MRPC, QNLI, QNLI_DEV, QQP, SST2
from .datasets.imdb import IMDB
from .parts.arrays import ArrayExamples, token_examples
from .parts.levels import smoke
from .parts.options import choice, require_range
from .parts.rows import divided, encode_rows
from .parts.tokenisers import DEFAULT_VOCABULARY, Tokens, check_tokens, make_tokeniser, tokeniser_recipe


@dataclass
class Options:
    """Options that all tasks of text classification have."""

    length: int = 256
    """Largest number of tokens of an example; the rest is cut off. Two texts share this number equally, unless one of them needs
    less."""
    tokens: Tokens = Tokens.bytes
    """``bytes``, or ``bpe``, which is learned from the training split."""
    vocabulary: int = 0
    """Largest number of token ids, including three special ids. 0 means 259 for bytes and 8,192 for ``bpe``."""
    train: int = 0
    """Number of training examples. The first examples are used; 0 means all except the validation examples."""
    valid: int = 0
    """Number of validation examples, cut from the training split. 0 means a tenth of the training examples, but at most 5,000."""
    root: str = ""
    """Data folder. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is not set."""

    owner: ClassVar[str] = "sentences"

    def __post_init__(self) -> None:
        require_range(f"{self.owner}.length", self.length, 8, 16_384, "counts tokens")
        self.tokens = check_tokens(self.owner, self.tokens, self.vocabulary)
        for name in ("train", "valid"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self.owner}.{name} must be 0 (all) or a number of examples; got {getattr(self, name)}")

    @property
    def ids(self) -> int:
        """Size of the vocabulary."""
        return self.vocabulary or DEFAULT_VOCABULARY[self.tokens]


def levels(steps: int, **longer: Any) -> Mapping[str, Level]:
    """Return the presets (named sizes of network, data and training) of a task of text classification.

    Args:
        steps: number of training steps of the preset ``lra``, whose network has the published size.
        longer: options of the task in the preset ``lra``.
    """
    return {
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 600, "batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 60, "evaluate_every": 100},
            differs="2 layers of width 64 in place of 12 of width 768, bytes in place of pieces of words",
        ),
        "smoke": smoke({"length": 32, "valid": 200}, steps=4, dim=16, depth=1),
        "lra": Level(
            model={"dim": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0, "dropout": 0.1},
            budget={
                "steps": steps,
                "batch_size": 32,
                "learning_rate": 1e-4,
                "weight_decay": 0.1,
                "warmup_steps": steps * 6 // 100,
                "evaluate_every": max(50, steps // 20),
            },
            options={"tokens": "bpe", "vocabulary": 32_768, **longer},
            differs="the paper's size, ten epochs and a batch of 32; its models were trained on 3.3 thousand million words before",
        ),
    }


class Sentences(Task):
    """Classification of one text, or of two texts with a separator between them.

    Source: Wang et al. 2020, arXiv:2006.04768, Table 2. The table reports the accuracy on the published development split; for
        IMDB, on the test split. The models were pretrained on books and an encyclopedia and then trained on each data set.
    Differs: networks are trained from scratch. The labels of GLUE's test splits are hidden. The published development split is
        therefore the test split here, complete, and validation is cut from the training split. Training examples that also occur in
        the test split are left out, and so are duplicates. Examples are equal if their tokens are equal. Learned tokenisers use the
        training split only.
    """

    options: Any
    data: ClassVar[DataSet[Parts]]

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens, padded at the end to ``length``."""
        return TaskSpec(TokenInputs(self.options.ids), self.options.length, classes=2)

    @property
    def source(self) -> DataSet[Parts]:
        """Data set that the options select."""
        return self.data

    @property
    def data_title(self) -> str:
        """Title of the data set."""
        return self.source.title

    def examples(self, split: Split) -> Examples:
        """Return the examples of a split, as token ids.

        Raises:
            FileNotFoundError: the data are missing.
            ImportError: tokens are not bytes, and the library ``tokenizers`` is not installed.
            ValueError: a file is damaged or incomplete.
        """
        o = self.options
        chosen = (o.length, o.tokens, o.ids, o.valid)
        return _splits(self.source.name, data_root(o.root), chosen, o.train)[SPLITS.index(split)]

    def rows(self, split: Split) -> list[LabelledText]:
        """Return the examples of a split as texts, for networks with their own tokeniser. From the training examples, duplicates
        and texts of the test split are left out.

        Raises:
            FileNotFoundError: files of the data set are missing.
            ValueError: a file is damaged or incomplete.
        """
        rows = divided(self.source.load(data_root(self.options.root)), self.options.valid)[split]
        return rows[: self.options.train or None] if split == "train" else rows


Chosen = tuple[int, Tokens, int, int]
"""Length, kind of tokens, vocabulary, and number of validation examples."""

_SETS = {dataset.name: dataset for dataset in (SST2, QNLI, QNLI_DEV, QQP, MRPC, IMDB)}


@lru_cache(maxsize=2)
def _splits(name: str, root: Path, chosen: Chosen, train: int) -> tuple[ArrayExamples, ...]:
    length, tokens, ids, valid = chosen
    recipe = {
        "version": 1,
        "length": length,
        "tokens": tokeniser_recipe(tokens, ids),
        "valid": valid,
        "files": dataset_digests(_SETS[name], root),
    }
    return token_examples(cached(f"sentences-{name}", recipe, lambda: _read(_SETS[name], root, chosen)), train=train)


def _read(dataset: DataSet[Parts], root: Path, chosen: Chosen) -> dict[str, NDArray[Any]]:
    length, tokens, ids, valid = chosen
    splits = divided(dataset.load(root), valid)
    tokeniser = make_tokeniser(tokens, ids, lambda: (text for row in splits["train"] for text in row.texts))
    arrays: dict[str, NDArray[Any]] = {}
    taken: set[bytes] = set()
    for split in ("test", "valid", "train"):
        rows = encode_rows(tokeniser, splits[split], length)
        keys = [row.tobytes() for row in rows]
        kept = [place for place, key in enumerate(keys) if key not in taken]
        if split == "train":
            kept = list({keys[place]: place for place in reversed(kept)}.values())[::-1]
        taken.update(keys)
        arrays[f"{split} ids"] = rows[kept]
        arrays[f"{split} labels"] = np.array([splits[split][place].label for place in kept], dtype=np.uint8)
    return arrays


_CITED = "in GLUE, Wang et al. 2019; reported by Wang et al. 2020, arXiv:2006.04768, Table 2"


@dataclass
class Sst2Options(Options):
    """Options of the task ``sst2``."""

    owner: ClassVar[str] = "sst2"


@register_task(
    "sst2",
    title="SST-2",
    version="1",
    summary="Predict the sentiment of phrases of film reviews; two classes.",
    source=f"Socher et al. 2013, {_CITED}",
    licence=SST2.licence,
    options=Sst2Options,
    locations=("root",),
    datasets=(SST2,),
    levels=levels(20_000, length=64),
    variants={"short": {"length": 32, "train": 2_000, "valid": 500}},
)
class Sst2(Sentences):
    """Classification of phrases of film reviews by sentiment, as positive or negative.

    Source: 67,349 training phrases, including parts of sentences, and the 872 sentences of GLUE's development split.
    Differs: see ``Sentences``. Phrases of one sentence may be in both train and valid. No test sentence is in train or valid, and
        phrases of test sentences only if they also occur elsewhere, as 1,575 short ones do.
    """

    data = SST2


class QnliFiles(Enum):
    """Splits of QNLI that are available."""

    published = "published"
    """The published splits train and dev. Here, dev is the test split."""
    dev = "dev"
    """Only the published split dev, which is divided into train, valid and test here. This division is not official, so scores
    cannot be compared with published scores."""


@dataclass
class QnliOptions(Options):
    """Options of the task ``qnli``."""

    length: int = 384
    """Largest number of tokens of an example. Question and sentence share this number equally, unless one of them needs less."""
    files: QnliFiles = QnliFiles.published
    """``published``, or ``dev`` if only that split is available."""

    owner: ClassVar[str] = "qnli"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.files = choice("qnli.files", self.files, QnliFiles)


@register_task(
    "qnli",
    title="QNLI",
    version="1",
    summary="Predict whether a sentence answers a question; two classes.",
    source=f"Rajpurkar et al. 2016, {_CITED}",
    licence=QNLI.licence,
    options=QnliOptions,
    locations=("root",),
    datasets=(QNLI, QNLI_DEV),
    levels=levels(32_000, length=128),
    variants={"dev": {"files": "dev", "length": 64}},
)
class Qnli(Sentences):
    """Classification of pairs of a question and a sentence: does the sentence answer the question?

    Source: 104,743 training pairs and 5,463 pairs of GLUE's development split.
    Differs: see ``Sentences``. With ``files=dev``, only the development split is read, and one pair in five is in the test split.
        Pairs are divided, not documents, so a question or a sentence may then be in several splits.
    """

    @property
    def source(self) -> DataSet[Parts]:
        """Data set that the options select: the training and development splits, or the development split alone."""
        return QNLI_DEV if self.options.files is QnliFiles.dev else QNLI


@dataclass
class QqpOptions(Options):
    """Options of the task ``qqp``."""

    owner: ClassVar[str] = "qqp"


@register_task(
    "qqp",
    title="QQP",
    version="1",
    summary="Predict whether two questions ask the same; two classes, F1 of those that do.",
    source=f"Iyer et al. 2017, {_CITED}",
    licence=QQP.licence,
    options=QqpOptions,
    locations=("root",),
    metric="f1",
    datasets=(QQP,),
    levels=levels(110_000, length=128),
    variants={"short": {"length": 64, "train": 2_000, "valid": 500}},
)
class Qqp(Sentences):
    """Classification of pairs of questions as duplicates or not.

    Source: 363,846 training pairs and 40,430 pairs of GLUE's development split.
    Differs: see ``Sentences``. The metric is F1, as in GLUE; the Linformer paper reports accuracy.
    """

    data = QQP


@dataclass
class MrpcOptions(Options):
    """Options of the task ``mrpc``."""

    length: int = 384
    """Largest number of tokens of an example. The two sentences share this number equally, unless one of them needs less."""

    owner: ClassVar[str] = "mrpc"


@register_task(
    "mrpc",
    title="MRPC",
    version="1",
    summary="Predict whether two sentences of news say the same; two classes, F1 of those that do.",
    source="Dolan and Brockett 2005; in GLUE, Wang et al. 2019",
    licence=MRPC.licence,
    options=MrpcOptions,
    locations=("root",),
    metric="f1",
    datasets=(MRPC,),
    levels=levels(1_200, length=128),
    variants={"short": {"length": 64}},
)
class Mrpc(Sentences):
    """Classification of pairs of sentences as paraphrases or not.

    Source: the published division into 4,076 training pairs and 1,725 test pairs, whose labels are known.
    Differs: see ``Sentences``. The Linformer paper does not report this data set. The validation split is a part of the 4,076
        pairs, but not GLUE's development split.
    """

    data = MRPC


@dataclass
class ImdbOptions(Options):
    """Options of the task ``imdb``."""

    length: int = 1_024
    """Number of tokens that are read from the beginning of each review."""

    owner: ClassVar[str] = "imdb"


@register_task(
    "imdb",
    title="IMDB",
    version="1",
    summary="Predict the sentiment of film reviews, by default read as bytes; two classes.",
    source="Maas et al. 2011; reported by Wang et al. 2020, arXiv:2006.04768, Table 2",
    licence=IMDB.licence,
    options=ImdbOptions,
    locations=("root",),
    datasets=(IMDB,),
    levels=levels(7_000, length=512),
    variants={"short": {"length": 64, "train": 2_000, "valid": 500}},
)
class Imdb(Sentences):
    """Classification of film reviews by sentiment, as positive or negative.

    Source: 25,000 training and 25,000 test reviews.
    Differs: see ``Sentences``. With bytes as tokens, the task equals the task ``text`` except for the ids of the tokens.
    """

    data = IMDB
