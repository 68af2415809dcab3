"""Labelled film reviews: IMDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from attn_zoo.contract import DataSet, Layout
from attn_zoo.data.hub import fetch_rows
from attn_zoo.data.labelled_text import LabelledText, Parts, read_labelled_jsonl, read_parts, read_text_folder

COUNTS = {"train": 25_000, "test": 25_000}
"""Published number of reviews of each split."""


def _jsonl(paths: Sequence[Path]) -> Parts:
    return read_parts(partial(read_labelled_jsonl, texts=["text"], classes={"0": 0, "1": 1}), COUNTS, paths)


def _folder(negative: Path) -> Iterator[LabelledText]:
    """Yield the reviews of a split, from its folders ``neg`` and ``pos``."""
    yield from read_text_folder(negative, 0)
    yield from read_text_folder(negative.with_name("pos"), 1)


def _folders(paths: Sequence[Path]) -> Parts:
    return read_parts(_folder, COUNTS, paths[::2])


def _imdb_download(root: Path) -> None:
    files = {part: root / f"imdb/{part}.jsonl" for part in COUNTS}
    fetch_rows("stanfordnlp/imdb", files, {"label": "label", "text": "text"}, rows=COUNTS)


IMDB: DataSet[Parts] = DataSet(
    name="imdb",
    title="IMDB",
    source="Maas et al. 2011, Large Movie Review Dataset v1.0, https://ai.stanford.edu/~amaas/data/sentiment",
    licence="none given; its authors ask to be cited",
    layouts=(
        Layout(
            "JSON lines",
            tuple((f"imdb/{part}.jsonl.xz", f"imdb/{part}.jsonl") for part in COUNTS),
            _jsonl,
        ),
        Layout(
            "as published",
            tuple((f"aclImdb/{part}/{kind}", f"imdb/aclImdb/{part}/{kind}") for part in COUNTS for kind in ("neg", "pos")),
            _folders,
        ),
    ),
    download=_imdb_download,
)
