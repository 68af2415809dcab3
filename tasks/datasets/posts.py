"""Twenty Newsgroups: posts, and a function that keeps only the text of a post's author."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from attn_zoo.contract import DataSet, Layout
from attn_zoo.data import read_bytes
from attn_zoo.data.hub import write_jsonl
from attn_zoo.data.labelled_text import LabelledText, Parts, read_labelled_jsonl, read_parts

GROUPS = (
    *("alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"),
    *("comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey", "sci.crypt"),
    *("sci.electronics", "sci.med", "sci.space", "soc.religion.christian", "talk.politics.guns", "talk.politics.mideast"),
    *("talk.politics.misc", "talk.religion.misc"),
)
"""Newsgroups; the class of a post is the index of its group."""

COUNTS = {"train": 11_314, "test": 7_532}
"""Published number of posts of each split."""

_QUOTED = re.compile(r"\s*(?:[A-Za-z]{1,4})?[>|]|\s*:\s")
_OPENING = re.compile(r"\s*(?:>\s*)?In (?:article|message)\b")
_CLOSING = ("write", "writes", "wrote", "said", "says")
"""Words at the end of a line that introduces a quotation."""

_SIGNATURE = re.compile(r"^--\s*$|^[-_=*~]{8,}\s*$")
_NAMES = re.compile("|".join(re.escape(group) for group in GROUPS), re.IGNORECASE)

SIGNATURE_LINES = 12
"""Largest number of lines of a signature. The line of dashes at its beginning does not count."""


def body(post: str) -> str:
    """Return the author's own text of a post. Headers, quotations and their introductions, the signature, and names of newsgroups
    are removed."""
    lines = post.replace("\r\n", "\n").partition("\n\n")[2].split("\n")
    kept = [line.rstrip() for line in lines if not _is_quotation(line)]
    for place, line in enumerate(kept):
        if _SIGNATURE.match(line) and len(kept) - place - 1 <= SIGNATURE_LINES:
            kept = kept[:place]
            break
    text = "\n".join(kept)
    lower = text.lower()
    if any(group in lower for group in GROUPS):  # a quick test, because matching twenty names takes most of the time
        text = _NAMES.sub("", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _is_quotation(line: str) -> bool:
    """Return True if a line is quoted or introduces a quotation."""
    introduces = line.rstrip(" :.\t").endswith(_CLOSING)
    return introduces or _QUOTED.match(line) is not None or _OPENING.match(line) is not None


_CLASSES = {group: place for place, group in enumerate(GROUPS)}


def _jsonl(paths: Sequence[Path]) -> Parts:
    return read_parts(partial(read_labelled_jsonl, texts=["text"], classes=_CLASSES, label="group"), COUNTS, paths)


def _folder(folder: Path) -> Iterator[LabelledText]:
    """Read one folder per group, with one file per post, in Latin-1."""
    for group, label in _CLASSES.items():
        for path in sorted((folder / group).glob("*")):
            yield LabelledText(label, (read_bytes(path).decode("latin-1"),))


def _folders(paths: Sequence[Path]) -> Parts:
    return read_parts(_folder, COUNTS, paths)


def _download(root: Path) -> None:
    """Download the posts with scikit-learn, which verifies the checksum, into a temporary folder, because it saves a pickle."""
    from sklearn.datasets import fetch_20newsgroups

    with tempfile.TemporaryDirectory() as home:
        for part, count in COUNTS.items():
            bunch = fetch_20newsgroups(data_home=home, subset=part, shuffle=False, remove=())
            posts = [
                {"group": bunch.target_names[label], "id": Path(name).name, "text": text}
                for text, label, name in zip(bunch.data, bunch.target, bunch.filenames, strict=True)
            ]
            if len(posts) != count:
                raise ValueError(f"20 Newsgroups, {part} must have {count} posts, but came with {len(posts)}; fetch it again")
            write_jsonl(root / f"20news/{part}.jsonl", posts)


NEWSGROUPS: DataSet[Parts] = DataSet(
    name="newsgroups",
    title="20 Newsgroups",
    source="J. Rennie's version by date, http://qwone.com/~jason/20Newsgroups",
    licence="none given",
    layouts=(
        Layout(
            "JSON lines",
            tuple((f"20news/{part}.jsonl.xz", f"20news/{part}.jsonl") for part in COUNTS),
            _jsonl,
        ),
        Layout(
            "as published",
            tuple((f"20news-bydate-{part}", f"20news/20news-bydate-{part}") for part in COUNTS),
            _folders,
        ),
    ),
    download=_download,
)
