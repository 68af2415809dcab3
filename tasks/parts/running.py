"""Base class of tasks on running text, with texts, tokenisers, division into splits, and a cache."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from platform import python_version
from typing import Any, ClassVar

from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, DataSet, Split, Task
from attn_zoo.data import cached, data_root, dataset_digests, sha256

from ..datasets.running_text import NOVELS, WIKITEXT2, Library, python_files, read_files, text_files
from .arrays import ArrayExamples, token_examples
from .options import choice, require_range
from .tokenisers import DEFAULT_VOCABULARY, Tokeniser, Tokens, check_tokens, make_tokeniser, tokeniser_recipe

HELD_OUT = 8
"""If a data set has no splits, one owner (author or file) in ``HELD_OUT`` is held out for valid, and one for test."""

LOCATIONS = ("root", "path")
"""Names of the options that say where files are."""

Texts = Mapping[str, Sequence[str]]
"""Texts of each split."""

Arrays = dict[str, NDArray[Any]]


class Files(Enum):
    """Source of the texts."""

    wikitext = "wikitext"
    """WikiText-2 with its published splits."""
    novels = "novels"
    """Novels, divided by author."""
    python = "python"
    """Code of Python's standard library, as installed, divided by file."""
    folder = "folder"
    """Text files below ``path``, divided by file."""


SETS: Mapping[Files, DataSet[Library]] = {Files.wikitext: WIKITEXT2, Files.novels: NOVELS}

TITLES: Mapping[Files, str] = {
    Files.python: f"standard library of Python {python_version()}",
    Files.folder: "text files",
}
"""Titles of the sources whose texts are not in the data folder."""


@dataclass
class TextOptions:
    """Options that all tasks on running text have."""

    files: Files = Files.wikitext
    """Source of the texts: ``wikitext``, ``novels``, ``python`` or ``folder``."""
    length: int = 256
    """Length of a sequence in tokens; no sequence contains parts of two texts."""
    tokens: Tokens = Tokens.bytes
    """``bytes``, or ``bpe``, which is learned from the training texts."""
    vocabulary: int = 0
    """Largest number of token ids, including three special ids. 0 means 259 for bytes and 8,192 for ``bpe``."""
    train: int = 0
    """Largest number of training sequences; 0 for all."""
    data_seed: int = 0
    """Seed of the order of sequences and of other random choices, such as masks."""
    path: str = ""
    """Folder of the text files, only for ``files=folder``."""
    root: str = ""
    """Data folder, which contains ``wikitext-2`` or ``novels``. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable
    is not set."""

    def require_texts(self, task: str) -> None:
        """Check these options, and convert strings such as ``bytes`` to members of enumerations.

        Raises:
            ValueError: an option is out of its range.
        """
        self.files = choice(f"{task}.files", self.files, Files)
        if (self.files is Files.folder) != bool(self.path):
            raise ValueError(f"{task}.path must name a folder if files=folder, and be empty otherwise; got {self.path!r}")
        self.tokens = check_tokens(task, self.tokens, self.vocabulary)
        require_range(f"{task}.length", self.length, 16, 16_384, "counts tokens")
        require_range(f"{task}.train", self.train, 0, 2**31, "counts sequences")
        require_range(f"{task}.data_seed", self.data_seed, 0, 2**32 - 1, "is a seed")

    @property
    def ids(self) -> int:
        """Size of the vocabulary."""
        return self.vocabulary or DEFAULT_VOCABULARY[self.tokens]


class TextTask(Task):
    """Base class of tasks on running text."""

    options: TextOptions
    padded: ClassVar[bool]
    """True if sequences can be shorter than ``length``."""

    @abstractmethod
    def arrays(self, texts: Texts, tokeniser: Tokeniser) -> Arrays:
        """Return the arrays ``SPLIT ids`` and ``SPLIT labels`` of each split, such as ``train ids``, with the shape (examples,
        length). Other arrays that the task needs may be added."""

    @property
    def data_title(self) -> str:
        """Title of the texts."""
        return TITLES.get(self.options.files) or SETS[self.options.files].title

    def made(self) -> Arrays:
        """Return the result of ``arrays``. It is cached, so it must not be modified."""
        return self._splits()[0]

    def examples(self, split: Split) -> ArrayExamples:
        """Return the sequences of a split.

        Raises:
            FileNotFoundError: the texts are missing.
            ImportError: tokens are not bytes, and the library ``tokenizers`` is not installed.
            ValueError: a file is damaged or incomplete.
        """
        return self._splits()[1][split]

    def _splits(self) -> tuple[Arrays, dict[Split, ArrayExamples]]:
        return _splits(type(self), astuple(self.options), data_root(self.options.root))


@lru_cache(maxsize=2)
def _splits(kind: type[TextTask], options: tuple[Any, ...], root: Path) -> tuple[Arrays, dict[Split, ArrayExamples]]:
    task = kind(kind.card.options(*options))
    o = task.options
    named = {name: getattr(value, "value", value) for name, value in vars(o).items() if name not in LOCATIONS}
    recipe = {"version": kind.card.version, **named, "tokens": tokeniser_recipe(o.tokens, o.ids)}
    files = _named_files(o)
    recipe["files"] = dataset_digests(SETS[o.files], root) if files is None else [[name, sha256(file)] for name, file in files]

    def make() -> Arrays:
        texts = divided(SETS[o.files].load(root) if files is None else read_files(files))
        return task.arrays(texts, make_tokeniser(o.tokens, o.ids, lambda: texts["train"]))

    arrays = cached(f"{kind.card.name}-{o.files.value}", recipe, make)
    return arrays, dict(zip(SPLITS, token_examples(arrays, padded=kind.padded), strict=True))


def require_fresh(task: str, split: str, count: int) -> None:
    """Check that a split has sequences that do not occur in a later split. ``count`` is their number.

    Args:
        task: name of the task, for the message.

    Raises:
        ValueError: there are none.
    """
    if not count:
        raise ValueError(
            f"{task}: every sequence of {split} also occurs in a later split, so none is left for {split}. Give other texts"
        )


def _named_files(options: Any) -> list[tuple[str, Path]] | None:
    """Return the name and path of the text files that the options name, or None for a data set."""
    if options.files is Files.folder:
        return text_files(options.path)
    return python_files() if options.files is Files.python else None


def divided(library: Library) -> dict[str, list[str]]:
    """Return the texts of each split. A data set without splits is divided by a hash of the owner of each text, such as its author.

    Raises:
        ValueError: there are fewer owners than splits.
    """
    if "train" in library:
        return {split: [document.text for document in library[split]] for split in SPLITS}
    owners = sorted({document.owner for document in library["all"]}, key=lambda owner: hashlib.sha256(owner.encode()).digest())
    held = max(1, len(owners) // HELD_OUT)
    if len(owners) < len(SPLITS):
        raise ValueError(f"there must be at least one author or file for each split, but the texts have only {len(owners)} in all")
    wanted = {"train": {*owners[2 * held :]}, "valid": {*owners[:held]}, "test": {*owners[held : 2 * held]}}
    return {split: [document.text for document in library["all"] if document.owner in of] for split, of in wanted.items()}
