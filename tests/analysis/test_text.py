"""Text from files of every supported format, and error messages for files whose content is of another format."""

from __future__ import annotations

import gzip
import json
import lzma

import pytest

from attn_zoo.analysis import read_text
from attn_zoo.analysis.text import default_text, stretches


def lines(*texts: str) -> bytes:
    return "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts).encode() + b"\n"


def test_files_of_every_kind(tmp_path):
    cases = {
        "a.txt": "naïve\ntext".encode(),
        "b.txt.xz": lzma.compress(b"packed"),
        "c.md.gz": gzip.compress(b"# zipped"),
        "d.jsonl": lines("one\u2028line", "two"),
        "e.jsonl.xz": lzma.compress(lines("three")),
    }
    wanted = ["naïve\ntext", "packed", "# zipped", "one\u2028line\n\ntwo", "three"]
    for (name, content), text in zip(cases.items(), wanted, strict=True):
        (tmp_path / name).write_bytes(content)
        assert read_text(tmp_path / name) == text
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert read_text(tmp_path) == "\n\n".join(wanted), "a folder's files in order, others left out"


def test_a_text_that_is_no_string_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": 1}\n')
    with pytest.raises(ValueError, match="line 2: each text must be a string; got int"):
        read_text(tmp_path / "a.jsonl")


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the file or folder .* does not exist"):
        read_text(tmp_path / "nowhere.txt")
    with pytest.raises(FileNotFoundError, match="must hold text files"):
        read_text(tmp_path)


def test_stretches_share_the_text_out_between_words():
    text = " ".join(f"word{at}" for at in range(100))
    parts = stretches(text, 7)
    assert len(parts) == 7 and "".join(parts) == text
    assert all(part.startswith("word") for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) < 20


def test_the_default_text_is_prose():
    text, where = default_text()
    assert len(text) > 100_000
    assert "The language reference" not in where and where.startswith("language reference of Python 3.")
