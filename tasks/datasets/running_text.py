"""Running text: WikiText-2, novels, Python's standard library, and the text files in any folder."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attn_zoo.contract import DamagedDataError, DataSet, Layout, MissingDataError
from attn_zoo.data import open_text, read_jsonl
from attn_zoo.data.hub import fetch_lines
from attn_zoo.data.labelled_text import check_texts


class Document(NamedTuple):
    """A text and its owner, which is an author, an article or a file. All texts of one owner are in the same split."""

    owner: str
    text: str


Library = dict[str, list[Document]]
"""Documents of each split. If the data set has no splits, the only key is ``all``."""

TOKENS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
"""Published number of words of each split of WikiText-2. The end of each line counts as a word."""

_TITLE = re.compile(r"^ = [^=\n].* = \n", re.MULTILINE)
"""Pattern of an article's title; titles of sections have more equals signs."""

SUFFIXES = (".txt", ".txt.gz", ".txt.xz")


def _wikitext(paths: Sequence[Path]) -> Library:
    found: Library = {}
    for part, path in zip(TOKENS, paths, strict=True):
        with open_text(path) as lines:
            kept = list(lines)
        words = sum(len(line.split()) + 1 for line in kept)
        if words != TOKENS[part]:
            raise DamagedDataError(f"{path} must hold {TOKENS[part]:,} words, as published, but holds {words:,}; it is incomplete")
        found[part] = articles("".join(kept))
    return found


def articles(text: str) -> list[Document]:
    """Return the articles in the text of a WikiText file. An article ends where the title of the next one begins."""
    starts = [match.start() for match in _TITLE.finditer(text)] or [0]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return [Document(f"{number} {piece[:40]}", piece) for number, piece in enumerate(pieces)]


def _novels(paths: Sequence[Path]) -> Library:
    """Read novels whose ``id`` is Author_Title_Year.

    Raises:
        DamagedDataError: an id or a text is not text.
    """
    found = []
    for number, row in enumerate(read_jsonl(paths[0], ["id", "text"]), 1):
        check_texts(f"{paths[0]}, line {number}", [row["id"], row["text"]])
        found.append(Document(row["id"].split("_")[0], row["text"]))
    return {"all": found}


def _download(root: Path) -> None:
    files = {split: root / f"wikitext-2/{part}.txt" for split, part in zip(("train", "validation", "test"), TOKENS, strict=True)}
    fetch_lines("Salesforce/wikitext", files, config="wikitext-2-v1")


WIKITEXT2: DataSet[Library] = DataSet(
    name="wikitext-2",
    title="WikiText-2",
    source="Merity et al. 2016, arXiv:1609.07843",
    licence="CC BY-SA 3.0",
    layouts=(
        Layout("text", tuple((f"wikitext-2/{part}.txt.xz", f"wikitext-2/{part}.txt") for part in TOKENS), _wikitext),
        Layout("as published", tuple((f"wikitext-2/wiki.{part}.tokens",) for part in TOKENS), _wikitext),
    ),
    download=_download,
)

NOVELS: DataSet[Library] = DataSet(
    name="novels",
    title="English novels",
    source="https://github.com/computationalstylistics/100_english_novels, of which any may be taken",
    licence="public domain where the author's rights have ended",
    layouts=(Layout("JSON lines", (("novels/novels.jsonl.xz", "novels/novels.jsonl"),), _novels),),
    obtain="Write one novel a line, an object with id (Author_Title_Year) and text",
)


STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
"""Folder of Python's standard library."""
NOT_EVERYWHERE = ("site-packages", "dist-packages", "test", "tests", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo")
"""Folders that ``python_files`` leaves out. They are not part of the standard library, or some distributions of Python lack
them."""
OF_A_BUILD = "_sysconfigdata_"
"""Prefix of file names that ``python_files`` leaves out. These files differ between builds of the same version of Python."""


def text_files(folder: str) -> list[tuple[str, Path]]:
    """Return the name and the path of each text file in a folder, ordered by path. The name is the path relative to the folder.

    Raises:
        MissingDataError: the folder does not exist, or holds fewer than three text files (one for each split).
    """
    place = Path(folder).expanduser()
    found = sorted(path for path in place.rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))
    if len(found) < 3:
        raise MissingDataError(
            f"files=folder needs at least three text files ({', '.join(SUFFIXES)}), one for each split; {place} holds {len(found)}"
        )
    return [(path.relative_to(place).as_posix(), path) for path in found]


def python_files(library: Path = STANDARD_LIBRARY) -> list[tuple[str, Path]]:
    """Return the name and the path of each Python file of the standard library, ordered by name. The name is the path relative to
    ``library``.

    Folders that differ between installations (``NOT_EVERYWHERE``) and files that differ between builds (prefix ``OF_A_BUILD``) are
    left out.

    Raises:
        MissingDataError: there are fewer than three files (one for each split).
    """
    found = []
    for folder, inside, names in os.walk(library):
        inside[:] = [name for name in inside if name not in NOT_EVERYWHERE]  # not walked
        found += [Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(OF_A_BUILD)]
    if len(found) < 3:
        raise MissingDataError(
            f"files=python needs the code of Python's standard library, but {library} holds only {len(found)} files of it"
        )
    return sorted((path.relative_to(library).as_posix(), path) for path in found)


def read_files(files: Sequence[tuple[str, Path]]) -> Library:
    """Return one document per file. The owner of a document is the name of its file.

    Raises:
        DamagedDataError: a file is not UTF-8, or cannot be decompressed.
    """
    documents = []
    for name, path in files:
        with open_text(path) as lines:
            documents.append(Document(name, lines.read()))
    return {"all": documents}
