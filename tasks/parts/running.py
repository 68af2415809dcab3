"""Base of the tasks on running text: which text, its tokens, its division into splits, and arrays that are made once."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, DataSet, Split, Task
from attn_zoo.data import cached, data_root, sha256
from attn_zoo.data.digests import dataset_digests

from ..datasets.running_text import NOVELS, WIKITEXT2, WIKITEXT2_VALID, Library, read_text_files, text_files
from .arrays import ArrayExamples
from .tokenisers import DEFAULT_VOCABULARY, Tokeniser, Tokens, check_tokens, make_tokeniser, tokeniser_recipe

HELD_OUT = 8
"""Where a set has no validation or test part, one owner of texts in so many is kept for each."""

LOCATIONS = ("root", "path", "tokenizer")
"""Options that say where data lie."""

Texts = Mapping[str, Sequence[str]]
"""Texts of each split."""

Arrays = dict[str, NDArray[Any]]


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


SETS: Mapping[Files, DataSet[Library]] = {Files.wikitext: WIKITEXT2, Files.wikitext_valid: WIKITEXT2_VALID, Files.novels: NOVELS}


@dataclass
class TextOptions:
    """Options that tasks on running text share."""

    files: Files = Files.wikitext
    """``wikitext``, ``wikitext_valid``, ``novels`` or ``folder``."""
    length: int = 256
    """Tokens of a sequence; none reaches over the end of a text."""
    tokens: Tokens = Tokens.bytes
    """``bytes``, ``wordpiece`` or ``bpe`` learned from the training texts, or ``file``."""
    vocabulary: int = 0
    """Ids there are at most, the three of the zoo included; 0 is 259 for bytes, 8,192 for what is learned, 65,536 for a file."""
    train: int = 0
    """Training sequences that are taken of the text; 0 takes all."""
    data_seed: int = 0
    """Decides the order of the sequences, and what a task draws besides."""
    path: str = ""
    """Folder of text files, where ``files`` is ``folder``."""
    tokenizer: str = ""
    """A ``tokenizer.json``, or a folder that holds one, where ``tokens`` is ``file``."""
    root: str = ""
    """Folder that holds ``wikitext-2`` or ``novels``; empty means $ATTN_ZOO_DATA, else ``data``."""

    def require_texts(self, task: str) -> None:
        """Check these options, and turn names into members of their enumerations.

        Raises:
            ValueError: an option breaks its rule; the message names it.
        """
        known = [choice.value for choice in Files]
        if not isinstance(self.files, Files):
            if self.files not in known:
                raise ValueError(f"{task}.files must be one of {', '.join(known)}; got {self.files!r}")
            self.files = Files(self.files)
        if (self.files is Files.folder) != bool(self.path):
            raise ValueError(f"{task}.path names a folder where files is folder, and only there; got {self.path!r}")
        self.tokens, _ = check_tokens(task, self.tokens, self.vocabulary, self.tokenizer)
        if not 16 <= self.length <= 16_384:
            raise ValueError(f"{task}.length counts tokens and lies in 16 to 16,384; got {self.length}")
        for name, least, most in (("train", 0, 2**31), ("data_seed", 0, 2**32 - 1)):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{task}.{name} lies in {least} to {most:,}; got {getattr(self, name)}")

    @property
    def ids(self) -> int:
        """Ids there are."""
        return self.vocabulary or DEFAULT_VOCABULARY[self.tokens]


class TextTask(Task):
    """A task on running text."""

    options: TextOptions
    padded: ClassVar[bool]
    """Whether sequences can be shorter than ``length``."""

    @abstractmethod
    def arrays(self, texts: Texts, tokeniser: Tokeniser) -> Arrays:
        """``SPLIT ids`` and ``SPLIT labels`` of each split, (examples, length), and whatever else the task keeps of it."""

    @property
    def data_title(self) -> str:
        """The texts."""
        return "text files" if self.options.files is Files.folder else SETS[self.options.files].title

    def made(self) -> Arrays:
        """What ``arrays`` made, now or before; do not change it."""
        return self._splits()[0]

    def examples(self, split: Split) -> ArrayExamples:
        """All sequences of a split.

        Raises:
            FileNotFoundError: the texts, or the tokeniser's file, are not there; the message says what to put where.
            ImportError: tokens other than bytes, and the library is not installed.
            ValueError: a file is damaged or not whole.
        """
        return self._splits()[1][split]

    def _splits(self) -> tuple[Arrays, dict[Split, ArrayExamples]]:
        return _splits(type(self), astuple(self.options), data_root(self.options.root))


@lru_cache(maxsize=2)
def _splits(kind: type[TextTask], options: tuple[Any, ...], root: Path) -> tuple[Arrays, dict[Split, ArrayExamples]]:
    task = kind(kind.card.options(*options))
    o = task.options
    named = {name: getattr(value, "value", value) for name, value in vars(o).items() if name not in LOCATIONS}
    recipe = {"version": kind.card.version, **named, "tokens": tokeniser_recipe(o.tokens, o.ids, o.tokenizer)}
    if o.files is Files.folder:
        recipe["files"] = [[file.name, sha256(file)] for file in text_files(o.path)]
    else:
        recipe["files"] = dataset_digests(SETS[o.files], root)

    def make() -> Arrays:
        texts = divided(read_text_files(o.path) if o.files is Files.folder else SETS[o.files].load(root))
        return task.arrays(texts, make_tokeniser(o.tokens, o.ids, o.tokenizer, lambda: texts["train"]))

    arrays = cached(f"{kind.card.name}-{o.files.value}", recipe, make)
    splits = {}
    for split in SPLITS:
        ids, labels = (torch.from_numpy(arrays[f"{split} {what}"]) for what in ("ids", "labels"))
        splits[split] = ArrayExamples(ids, labels, ids != 0 if kind.padded else None)
    return arrays, splits


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
        raise ValueError(f"texts are divided by author or file; three are needed, there are {len(owners)}")
    valid, tested = set(owners[:held]), set(owners[held : 2 * held]) if test is None else set()

    def of(wanted: set[str]) -> list[str]:
        return [document.text for document in documents if document.owner in wanted]

    return {
        "train": of(set(owners) - valid - tested),
        "valid": of(valid),
        "test": of(tested) if test is None else [document.text for document in test],
    }
