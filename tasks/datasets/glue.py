"""SST-2, QNLI, QQP and MRPC, which are data sets of GLUE.

The labels of GLUE's test splits are hidden. The split ``test`` here is therefore GLUE's development split. Only MRPC has its
published test split, whose labels are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from attn_zoo.contract import DataSet, Layout
from attn_zoo.data.hub import fetch_rows
from attn_zoo.data.labelled_text import LabelledText, Parts, read_labelled_jsonl, read_labelled_tsv, read_parts

COUNTS = {
    "sst2/train": 67_349,
    "sst2/dev": 872,
    "qnli/train": 104_743,
    "qnli/dev": 5_463,
    "qqp/train": 363_846,
    "qqp/dev": 40_430,
    "mrpc/train": 4_076,
    "mrpc/test": 1_725,
}
"""Published number of examples of each split. MRPC's training split contains GLUE's training and development splits."""

YES_NO = {"0": 0, "1": 1}
ENTAILMENT = {"entailment": 0, "not_entailment": 1, **YES_NO}

Table = tuple[tuple[int, ...], int, int]
"""Layout of a table: indices of the text columns, index of the label column, and number of columns."""


def _read(name: str, parts: Sequence[str], rows: Callable[[Path], Iterable[LabelledText]], paths: Sequence[Path]) -> Parts:
    """Read the rows of each file, and check their number."""
    return read_parts(rows, {"train" if part == "train" else "test": COUNTS[f"{name}/{part}"] for part in parts}, paths)


def _layouts(
    name: str,
    parts: tuple[str, ...],
    fields: Sequence[str],
    classes: dict[str, int],
    folder: str,
    table: Table,
    files: Sequence[str],
) -> tuple[Layout[Parts], ...]:
    texts, label, columns = table
    lines = partial(read_labelled_jsonl, texts=fields, classes=classes)
    # A few lines of QQP's published table are truncated, and usually skipped.
    cells = partial(read_labelled_tsv, texts=texts, label=label, classes=classes, columns=columns, skip_broken=name == "qqp")
    return (
        Layout(
            "JSON lines",
            tuple((f"{name}/{part}.jsonl.xz", f"{name}/{part}.jsonl") for part in parts),
            partial(_read, name, parts, lines),
        ),
        Layout(
            "as published",
            tuple((f"glue/{folder}/{file}", f"glue_data/{folder}/{file}", f"{folder}/{file}") for file in files),
            partial(_read, name, parts, cells),
        ),
    )


def _download(name: str, parts: dict[str, str], fields: Sequence[str]) -> Callable[[Path], None]:
    """Return a function that downloads splits of GLUE from the hub. ``parts`` maps the hub's names of splits to the published
    names."""

    def download(root: Path) -> None:
        files = {split: root / f"{name}/{part}.jsonl" for split, part in parts.items()}
        rows = {split: COUNTS[f"{name}/{part}"] for split, part in parts.items()}
        fetch_rows("nyu-mll/glue", files, {field: field for field in ("label", *fields)}, config=name, rows=rows)

    return download


def _qnli(parts: tuple[str, ...]) -> tuple[Layout[Parts], ...]:
    files = [f"{part}.tsv" for part in parts]
    return _layouts("qnli", parts, ("question", "sentence"), ENTAILMENT, "QNLI", ((1, 2), 3, 4), files)


SST2: DataSet[Parts] = DataSet(
    name="sst2",
    title="SST-2",
    source="Socher et al. 2013, Stanford Sentiment Treebank, as in GLUE, Wang et al. 2019, https://gluebenchmark.com",
    licence="none given",
    layouts=_layouts("sst2", ("train", "dev"), ("sentence",), YES_NO, "SST-2", ((0,), 1, 2), ("train.tsv", "dev.tsv")),
    download=_download("sst2", {"train": "train", "validation": "dev"}, ("sentence",)),
)

QNLI: DataSet[Parts] = DataSet(
    name="qnli",
    title="QNLI",
    source="Rajpurkar et al. 2016, SQuAD, as in GLUE, Wang et al. 2019, https://gluebenchmark.com",
    licence="CC BY-SA 4.0",
    layouts=_qnli(("train", "dev")),
    download=_download("qnli", {"train": "train", "validation": "dev"}, ("question", "sentence")),
)

QNLI_DEV: DataSet[Parts] = DataSet(
    name="qnli-dev",
    title="QNLI (its dev part alone, divided here)",
    source=QNLI.source,
    licence=QNLI.licence,
    layouts=_qnli(("dev",)),
    download=_download("qnli", {"validation": "dev"}, ("question", "sentence")),
)

QQP: DataSet[Parts] = DataSet(
    name="qqp",
    title="QQP",
    source="Iyer et al. 2017, Quora Question Pairs, as in GLUE, Wang et al. 2019, https://gluebenchmark.com",
    licence="Quora's terms; not for commercial use",
    layouts=_layouts("qqp", ("train", "dev"), ("question1", "question2"), YES_NO, "QQP", ((3, 4), 5, 6), ("train.tsv", "dev.tsv")),
    download=_download("qqp", {"train": "train", "validation": "dev"}, ("question1", "question2")),
)

MRPC: DataSet[Parts] = DataSet(
    name="mrpc",
    title="MRPC",
    source="Dolan and Brockett 2005, Microsoft Research Paraphrase Corpus",
    licence="Microsoft Research licence, for research",
    layouts=_layouts(
        "mrpc",
        ("train", "test"),
        ("sentence1", "sentence2"),
        YES_NO,
        "MRPC",
        ((3, 4), 0, 5),
        ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"),
    ),
    download=_download("mrpc", {"train+validation": "train", "test": "test"}, ("sentence1", "sentence2")),
)
