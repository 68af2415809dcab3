"""Masked language modelling: which tokens stood where some were hidden, in WikiText-2, novels or any text files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, Examples, Level, Split, Task, TaskSpec
from attn_zoo.contract import Tokens as TokenInputs
from attn_zoo.data import cached, data_root, sha256
from attn_zoo.data.digests import dataset_digests
from attn_zoo.registry import register_task

from .datasets.running_text import NOVELS, WIKITEXT2, WIKITEXT2_VALID, Library, read_text_files, text_files
from .parts.arrays import ArrayExamples
from .parts.masking import first_of_word, mask
from .parts.tokenisers import Tokeniser, Tokens, check_tokens, make_tokeniser, tokeniser_recipe

HELD_OUT = 8
"""Where a set has no validation or test part, one owner of texts in so many is kept for each."""

FEWEST = 8
"""Tokens of the shortest text that is taken; others tell too little of what is missing."""


class Files(Enum):
    """Which text."""

    wikitext = "wikitext"
    """WikiText-2 and its published parts."""
    wikitext_valid = "wikitext_valid"
    """The published valid part of WikiText-2, divided into train and valid, and its published test."""
    novels = "novels"
    """Novels, divided by author."""
    folder = "folder"
    """The text files below ``path``, divided by file."""


@dataclass
class Options:
    """Options of masked language modelling."""

    files: Files = Files.wikitext
    """``wikitext``, ``wikitext_valid``, ``novels`` or ``folder``."""
    length: int = 256
    """Tokens of a sequence; none reaches over the end of a text."""
    tokens: Tokens = Tokens.bytes
    """``bytes``, ``wordpiece`` or ``bpe`` learned from the training texts, or ``file``."""
    vocabulary: int = 0
    """Ids there are at most, the three of the zoo included; 0 is 259 for bytes, 8,192 for what is learned, 65,536 for a file."""
    share: float = 0.15
    """Of the tokens of a sequence, how many are asked."""
    whole_words: bool = False
    """Ask for all tokens of a word or for none."""
    draws: int = 1
    """Copies of each training sequence, each with a mask of its own."""
    train: int = 0
    """Training sequences, before they are copied; 0 takes all."""
    data_seed: int = 0
    """Decides which tokens are masked."""
    path: str = ""
    """Folder of text files, where ``files`` is ``folder``."""
    tokenizer: str = ""
    """A ``tokenizer.json``, or a folder that holds one, where ``tokens`` is ``file``."""
    root: str = ""
    """Folder that holds ``wikitext-2`` or ``novels``; empty means $ATTN_ZOO_DATA, else ``data``."""

    def __post_init__(self) -> None:
        known = [choice.value for choice in Files]
        if not isinstance(self.files, Files):
            if self.files not in known:
                raise ValueError(f"masked_language.files must be one of {', '.join(known)}; got {self.files!r}")
            self.files = Files(self.files)
        if (self.files is Files.folder) != bool(self.path):
            raise ValueError(f"masked_language.path names a folder where files is folder, and only there; got {self.path!r}")
        self.tokens, _ = check_tokens("masked_language", self.tokens, self.vocabulary, self.tokenizer)
        if not 16 <= self.length <= 16_384:
            raise ValueError(f"masked_language.length counts tokens and lies in 16 to 16,384; got {self.length}")
        if not 0.01 <= self.share <= 0.5:
            raise ValueError(f"masked_language.share lies in 0.01 to 0.5; got {self.share}")
        for name, least, most in (("draws", 1, 100), ("train", 0, 2**31), ("data_seed", 0, 2**32 - 1)):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"masked_language.{name} lies in {least} to {most:,}; got {getattr(self, name)}")

    @property
    def ids(self) -> int:
        """Ids there are."""
        return check_tokens("masked_language", self.tokens, self.vocabulary, self.tokenizer)[1]


@register_task(
    "masked_language",
    title="Masked language modelling",
    version="1",
    summary="Which tokens were hidden in running text; perplexity.",
    source="Devlin et al. 2019, arXiv:1810.04805, Section 3.1; texts of Merity et al. 2016, or of your own",
    licence="of the texts: CC BY-SA 3.0 for WikiText-2",
    options=Options,
    locations=("root", "path", "tokenizer"),
    metric="perplexity",
    datasets=(WIKITEXT2, WIKITEXT2_VALID, NOVELS),
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 600, "batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 60, "evaluate_every": 100},
            differs="2 layers of width 64 in place of 12 of width 768, bytes in place of pieces of words, and fewer steps",
        ),
        "smoke": Level(
            model={"dim": 16, "depth": 1, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 4, "batch_size": 8, "learning_rate": 2e-3, "warmup_steps": 1, "evaluate_every": 4},
            options={"length": 32, "train": 500},
            differs="shows only that it runs",
        ),
        "lra": Level(
            model={"dim": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0, "dropout": 0.1},
            budget={
                "steps": 250_000,
                "batch_size": 64,
                "learning_rate": 1e-4,
                "weight_decay": 0.01,
                "warmup_steps": 10_000,
                "evaluate_every": 5_000,
            },
            options={"length": 512, "tokens": "bpe", "vocabulary": 32_768, "draws": 10},
            differs="the paper's size and steps on few of its 3.3 thousand million words, and a batch for one GPU in place of 64",
        ),
    },
    variants={
        "valid": {"files": "wikitext_valid", "length": 128, "whole_words": True, "draws": 2, "train": 1_000},
        "novels": {"files": "novels", "length": 64, "train": 2_000},
    },
)
class MaskedLanguage(Task):
    """Which tokens stood where some were hidden.

    Source: of each sequence 15 % of the tokens are asked; of these 80 % are hidden, 10 % are
        exchanged for any token and 10 % are left as they are (BERT). The Linformer paper trains so
        on books and an encyclopedia and gives curves of perplexity.
    Differs: masks are drawn once: a training sequence has ``draws`` of them, validation and test one each,
        which stays. A text is cut into sequences of nearly equal length, at most ``length``, so that no
        sequence is a short remainder; none reaches over two texts, and there is no second sentence to tell apart.
        With ``whole_words`` words are taken in random order until enough tokens are asked, so that the last may exceed it.
        Perplexity is of tokens: compare only figures of one kind of token.
        ``wikitext`` has its published parts. ``wikitext_valid`` is for those who have no training part: seven in
        eight articles of the published valid part train, the rest validate, the published test tests.
        Of ``novels`` one author in eight validates and one in eight tests, of ``folder`` files
        alike; which they are follows from a hash of their names. Training sequences that also stand in a later split are left out.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Tokens, padded at the end to ``length``, with a label where one is asked."""
        return TaskSpec(TokenInputs(self.options.ids), self.options.length, classes=self.options.ids, labels="position")

    @property
    def data_title(self) -> str:
        """The texts."""
        titles = {Files.wikitext: WIKITEXT2, Files.wikitext_valid: WIKITEXT2_VALID, Files.novels: NOVELS}
        return "text files" if self.options.files is Files.folder else titles[self.options.files].title

    def examples(self, split: Split) -> Examples:
        """All sequences of a split.

        Raises:
            FileNotFoundError: the texts, or the tokeniser's file, are not there; the message says what to put where.
            ImportError: tokens other than bytes, and the library is not installed.
            ValueError: a file is damaged or not whole.
        """
        o = self.options
        masks = (o.share, o.whole_words, o.draws, o.train, o.data_seed)
        return _splits(data_root(o.root), o.files, o.path, o.length, (o.tokens, o.ids, o.tokenizer), masks)[SPLITS.index(split)]


Kind = tuple[Tokens, int, str]
"""Kind of tokens, ids, and the tokeniser's file."""
Masks = tuple[float, bool, int, int, int]
"""Share, whole words, draws, training sequences, and seed."""

_SETS = {Files.wikitext: WIKITEXT2, Files.wikitext_valid: WIKITEXT2_VALID, Files.novels: NOVELS}


@lru_cache(maxsize=2)
def _splits(root: Path, files: Files, path: str, length: int, kind: Kind, masks: Masks) -> tuple[ArrayExamples, ...]:
    recipe = {"version": 1, "length": length, "tokens": tokeniser_recipe(*kind), "masks": masks}
    if files is Files.folder:
        recipe["files"] = [[file.name, sha256(file)] for file in text_files(path)]
    else:
        recipe["files"] = dataset_digests(_SETS[files], root)
    arrays = cached(
        f"masked-language-{files.value}",
        recipe,
        lambda: _read(read_text_files(path) if files is Files.folder else _SETS[files].load(root), length, kind, masks),
    )
    splits = []
    for split in SPLITS:
        ids, labels = (torch.from_numpy(arrays[f"{split} {what}"]) for what in ("ids", "labels"))
        splits.append(ArrayExamples(ids, labels, ids != 0))
    return tuple(splits)


def _read(library: Library, length: int, kind: Kind, masks: Masks) -> dict[str, NDArray[Any]]:
    share, whole_words, draws, train, seed = masks
    texts = divided(library)
    tokeniser = make_tokeniser(*kind, lambda: texts["train"])
    arrays: dict[str, NDArray[Any]] = {}
    taken: set[bytes] = set()
    for number, split in ((2, "test"), (1, "valid"), (0, "train")):
        ids, words = _packed(tokeniser, texts[split], length)
        if split == "train":
            order = np.random.RandomState([seed, 3]).permutation(len(ids))[: train or None]
            ids, words = ids[order], words[order]
        copies = range(draws if split == "train" else 1)
        places = words if whole_words else np.broadcast_to(np.arange(length), ids.shape)
        made = [mask(ids, places, tokeniser.vocabulary, share, [seed, number, copy]) for copy in copies]
        seen, labels = (np.concatenate([getattr(one, what) for one in made]) for what in ("ids", "labels"))
        keys = [row.tobytes() for row in seen]
        kept = np.array([place for place, key in enumerate(keys) if key not in taken])
        kept = kept[np.random.RandomState([seed, 4, number]).permutation(len(kept))]
        taken.update(keys)
        arrays[f"{split} ids"], arrays[f"{split} labels"] = seen[kept], labels[kept]
    return arrays


def divided(library: Library) -> dict[str, list[str]]:
    """Texts of each split. What has no parts, or no validation part of its own, is divided by owner, after a hash of the name.

    Raises:
        ValueError: there are fewer owners than splits.
    """
    if "train" in library:
        return {split: [document.text for document in library[split]] for split in SPLITS}
    test = library.get("test")
    documents = library["valid"] if test is not None else library["all"]
    owners = sorted({document.owner for document in documents}, key=lambda owner: hashlib.sha256(owner.encode()).digest())
    held = max(1, len(owners) // HELD_OUT)
    if len(owners) < (2 if test is not None else 3):
        raise ValueError(f"masked_language: texts are divided by author or file; three are needed, there are {len(owners)}")
    valid, tested = set(owners[:held]), set(owners[held : 2 * held]) if test is None else set()

    def of(wanted: set[str]) -> list[str]:
        return [document.text for document in documents if document.owner in wanted]

    return {
        "train": of(set(owners) - valid - tested),
        "valid": of(valid),
        "test": of(tested) if test is None else [document.text for document in test],
    }


def _packed(tokeniser: Tokeniser, texts: Sequence[str], length: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Ids of sequences of nearly equal length, cut from each text, and for each token the first place of its word."""
    dtype = np.int16 if tokeniser.vocabulary < 2**15 else np.int32
    rows: list[NDArray[Any]] = []
    for text in texts:
        (encoded,) = tokeniser.encode_words([text])
        if len(encoded.ids) < FEWEST:
            continue
        found = np.array([list(encoded.ids), encoded.words], dtype=np.int64)
        count = -(-found.shape[1] // length)
        rows += np.array_split(found, count, axis=1)
    if not rows:
        raise ValueError(f"masked_language: no text of a split has {FEWEST} tokens; give it longer ones")
    padded = np.zeros((2, len(rows), length), dtype=np.int64)
    padded[1] = -(2**40) - np.arange(length)  # padding belongs to no word
    for place, row in enumerate(rows):
        padded[:, place, : row.shape[1]] = row
    return padded[0].astype(dtype), first_of_word(padded[1])
