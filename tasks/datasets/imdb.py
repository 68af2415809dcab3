"""Labelled film reviews: IMDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attn_zoo.contract import DataSet, Layout
from attn_zoo.data.hub import fetch_rows
from attn_zoo.data.labelled_text import Parts, read_labelled_jsonl, read_text_folder, require_count

COUNTS = {"train": 25_000, "test": 25_000}
"""Published number of reviews of each split."""


def _imdb_jsonl(paths: Sequence[Path]) -> Parts:
    classes = {"0": 0, "1": 1}
    parts = zip(COUNTS, paths, strict=True)
    return {part: require_count(path, read_labelled_jsonl(path, ["text"], classes), COUNTS[part]) for part, path in parts}


def _imdb_folders(paths: Sequence[Path]) -> Parts:
    parts = zip(COUNTS, (paths[:2], paths[2:]), strict=True)
    return {
        part: require_count(negative.parent, [*read_text_folder(negative, 0), *read_text_folder(positive, 1)], COUNTS[part])
        for part, (negative, positive) in parts
    }


def _imdb_download(root: Path) -> None:
    files = {part: root / f"imdb/{part}.jsonl" for part in COUNTS}
    fetch_rows("stanfordnlp/imdb", files, {"label": "label", "text": "text"}, rows=COUNTS)


IMDB: DataSet[Parts] = DataSet(
    name="imdb",
    title="IMDB",
    source="Maas et al. 2011, Large Movie Review Dataset v1.0, https://ai.stanford.edu/~amaas/data/sentiment",
    licence="none given; its authors ask to be cited",
    layouts=(
        Layout("JSON lines", tuple((f"imdb/{part}.jsonl.xz", f"imdb/{part}.jsonl") for part in COUNTS), _imdb_jsonl),
        Layout(
            "as published",
            tuple((f"aclImdb/{part}/{kind}", f"imdb/aclImdb/{part}/{kind}") for part in COUNTS for kind in ("neg", "pos")),
            _imdb_folders,
        ),
    ),
    download=_imdb_download,
)
