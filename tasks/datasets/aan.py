"""The ACL Anthology Network (AAN): pairs of scientific papers, as Long Range Arena released them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attn_zoo.contract import DataSet, Layout
from attn_zoo.data.labelled_text import LabelledText, Parts, read_labelled_tsv

LONGEST = 16_384
"""Number of characters that are read from the beginning of each paper; Long Range Arena reads 4,000 bytes."""

FOLDERS = ("lra_release/tsv_data", "lra_release/lra_release/tsv_data", "aan")
"""Possible paths, below the data folder, of the folder that contains the files ``new_aan_pairs.*.tsv``."""

PARTS = ("train", "eval", "test")


def _read(paths: Sequence[Path]) -> Parts:
    """Read lines of a label, the names of two papers and their texts, separated by tabs, without a header."""
    classes = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}
    parts: Parts = {}
    for part, path in zip(PARTS, paths, strict=True):
        rows = read_labelled_tsv(path, (3, 4), 0, classes, 5, header=False)
        parts[part] = [LabelledText(row.label, tuple(text[:LONGEST] for text in row.texts)) for row in rows]
    return parts


AAN: DataSet[Parts] = DataSet(
    name="aan",
    title="AAN",
    source="Radev et al. 2013, ACL Anthology Network; pairs of Long Range Arena, Tay et al. 2020",
    licence="none given for the pairs",
    layouts=(
        Layout(
            "Long Range Arena's release",
            tuple(tuple(f"{folder}/new_aan_pairs.{part}.tsv" for folder in FOLDERS) for part in PARTS),
            _read,
        ),
    ),
    obtain="Unpack lra_release.gz, named at https://github.com/google-research/long-range-arena, into the data folder; "
    "no library fetches it",
)
