"""Twenty newsgroups: posts with their headers, and what is left of a post without all that names its group."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attn_zoo.contract import DataSet, Layout
from attn_zoo.data import read_bytes
from attn_zoo.data.hub import write_jsonl
from attn_zoo.data.labelled_text import LabelledText, Parts, read_labelled_jsonl, require_count

GROUPS = (
    *("alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"),
    *("comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey", "sci.crypt"),
    *("sci.electronics", "sci.med", "sci.space", "soc.religion.christian", "talk.politics.guns", "talk.politics.mideast"),
    *("talk.politics.misc", "talk.religion.misc"),
)
"""A post's class is the place of its group."""

COUNTS = {"train": 11_314, "test": 7_532}
"""Posts of each part, as published."""

_QUOTED = re.compile(r"\s*(?:[A-Za-z]{1,4})?[>|]|\s*:\s")
_OPENING = re.compile(r"\s*(?:>\s*)?In (?:article|message)\b")
_CLOSING = ("write", "writes", "wrote", "said", "says")
"""What the line ends with that tells whose words follow."""

_SIGNATURE = re.compile(r"^--\s*$|^[-_=*~]{8,}\s*$")
_NAMES = re.compile("|".join(re.escape(group) for group in GROUPS), re.IGNORECASE)

SIGNATURE_LINES = 12
"""A line of dashes begins a signature if no more lines than this follow."""


def body(post: str) -> str:
    """What the author of a post wrote: without headers, quoted lines and who wrote them, signature, and names of groups."""
    lines = post.replace("\r\n", "\n").partition("\n\n")[2].split("\n")
    kept = [line.rstrip() for line in lines if not _is_of_others(line)]
    for place, line in enumerate(kept):
        if _SIGNATURE.match(line) and len(kept) - place - 1 <= SIGNATURE_LINES:
            kept = kept[:place]
            break
    text = "\n".join(kept)
    lower = text.lower()
    if any(group in lower for group in GROUPS):  # a pattern of twenty names takes most of the time
        text = _NAMES.sub("", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _is_of_others(line: str) -> bool:
    """Whether a line is quoted, or says who is quoted."""
    said = line.rstrip(" :.\t").endswith(_CLOSING)
    return said or _QUOTED.match(line) is not None or _OPENING.match(line) is not None


def _whole(part: str, where: Path, posts: Sequence[LabelledText]) -> list[LabelledText]:
    require_count(str(where), posts, COUNTS[part])
    return list(posts)


def _jsonl(paths: Sequence[Path]) -> Parts:
    classes = {group: place for place, group in enumerate(GROUPS)}
    parts = zip(COUNTS, paths, strict=True)
    return {part: _whole(part, path, [*read_labelled_jsonl(path, ["text"], classes, label="group")]) for part, path in parts}


def _folders(paths: Sequence[Path]) -> Parts:
    """One folder a group and one file a post, in Latin-1."""
    parts: Parts = {}
    for part, folder in zip(COUNTS, paths, strict=True):
        posts = [
            LabelledText(label, (read_bytes(path).decode("latin-1"),))
            for label, group in enumerate(GROUPS)
            for path in sorted((folder / group).glob("*"))
        ]
        parts[part] = _whole(part, folder, posts)
    return parts


def _download(root: Path) -> None:
    """Through scikit-learn, which proves the archive's checksum; in a folder of its own, as what it keeps is a pickle."""
    from sklearn.datasets import fetch_20newsgroups

    with tempfile.TemporaryDirectory() as home:
        for part, count in COUNTS.items():
            found = fetch_20newsgroups(data_home=home, subset=part, shuffle=False, remove=())
            posts = [
                {"group": found.target_names[label], "id": Path(name).name, "text": text}
                for text, label, name in zip(found.data, found.target, found.filenames, strict=True)
            ]
            if len(posts) != count:
                raise ValueError(f"20 Newsgroups, {part} came with {len(posts)} posts, not {count}; nothing was kept")
            write_jsonl(root / f"20news/{part}.jsonl", posts)


NEWSGROUPS: DataSet[Parts] = DataSet(
    name="newsgroups",
    title="20 Newsgroups",
    source="J. Rennie's version by date, http://qwone.com/~jason/20Newsgroups",
    licence="none given",
    layouts=(
        Layout("JSON lines", tuple((f"20news/{part}.jsonl.xz", f"20news/{part}.jsonl") for part in COUNTS), _jsonl),
        Layout("as published", tuple((f"20news-bydate-{part}", f"20news/20news-bydate-{part}") for part in COUNTS), _folders),
    ),
    download=_download,
)
