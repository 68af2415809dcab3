"""Passages: token sequences of one length, cut from text. Some are shortened and padded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attn_zoo.analysis.text import CHARACTERS_PER_TOKEN, stretches

TELLING = 20
"""A line of the test text with at least this number of characters is removed from the training texts. Shorter lines, such as
headings, are kept."""
SHORTEST = 8
"""Minimum number of tokens of a shortened passage, including special tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Passages:
    """Token sequences of one length, padded at their ends."""

    ids: Int[Tensor, "passages length"]
    valid: Bool[Tensor, "passages length"]
    """True for a real token."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> Passages:
        """Select passages by slice, indices or mask."""
        return Passages(self.ids[rows], self.valid[rows])

    def trimmed(self) -> Passages:
        """Return the passages without the padding that all of them have at the end."""
        longest = int(self.valid.sum(dim=1).max())
        return Passages(self.ids[:, :longest], self.valid[:, :longest])

    def batches(self, size: int) -> Iterator[Passages]:
        """Yield batches of at most ``size`` passages, in order."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def call(self) -> dict[str, Tensor]:
        """Return the passages as keyword arguments of a model of the library transformers."""
        return {"input_ids": self.ids, "attention_mask": self.valid.to(torch.long)}


def join(parts: Sequence[Passages]) -> Passages:
    """Return several collections of passages as one. All passages must have the same length."""
    return Passages(torch.cat([part.ids for part in parts]), torch.cat([part.valid for part in parts]))


def cut(text: str, tokenizer: Any, length: int, places: int, *, following: int = 1, what: str) -> Passages:
    """Return passages of exactly ``length`` tokens, including special tokens. They are taken from the beginnings of equally long
    parts of the text.

    Args:
        tokenizer: fast tokenizer of transformers.
        places: number of parts of the text.
        following: number of consecutive passages from each part. They are neighbours in the result.
        what: name of the text, for the error message.

    Raises:
        ValueError: the text is too short.
    """
    rows: list[list[int]] = []
    for at, stretch in enumerate(stretches(text, places)):
        windows: list[list[int]] = []
        for part in (stretch[: CHARACTERS_PER_TOKEN * length * following], stretch):
            found = tokenizer(part, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
            windows = [row for row in found if len(row) == length][:following]
            if len(windows) == following:
                break
        if len(windows) < following:
            raise ValueError(
                f"{what} is too short: each of its {places} parts must give {following} passages of {length} tokens, but part "
                f"{at + 1} gives {len(windows)}. Give more text, or ask for fewer or shorter passages"
            )
        rows += windows
    ids = torch.tensor(rows)
    return Passages(ids, torch.ones_like(ids, dtype=torch.bool))


def shorten(passages: Passages, share: float, tokenizer: Any, generator: torch.Generator) -> Passages:
    """Return all passages, with some cut to random lengths and padded. ``share`` is the share of cut passages, which are evenly
    spaced among all. A cut passage keeps its last token, a special token.

    Passages with at most ``SHORTEST`` tokens are returned unchanged.
    """
    length, padding = passages.ids.shape[1], tokenizer.pad_token_id or 0
    if length <= SHORTEST:
        return passages
    ids, valid = passages.ids.clone(), passages.valid.clone()
    lengths = torch.randint(SHORTEST, length, (len(ids),), generator=generator)
    for row in range(len(ids)):
        if int(share * (row + 1)) > int(share * row):
            end = int(lengths[row])
            ids[row, end - 1] = passages.ids[row, -1]
            ids[row, end:], valid[row, end:] = padding, False
    return Passages(ids, valid)


def read_in(texts: Sequence[str], tokenizer: Any, length: int, seconds: Sequence[str] | None = None) -> Passages:
    """Return each text as one passage, truncated or padded to ``length`` tokens.

    Args:
        seconds: second text of each passage, or None. If two texts are too long together, the longer one is truncated.
    """
    tokenizer.padding_side = "right"
    pairs = None if seconds is None else list(seconds)
    found = tokenizer(list(texts), pairs, truncation=True, max_length=length, padding="max_length", return_tensors="pt")
    return Passages(found["input_ids"], found["attention_mask"].bool())


def without(text: str, others: Iterable[str]) -> tuple[str, int]:
    """Return the text without the lines that also occur in other texts, and the number of removed lines. White space and case are
    ignored. Lines of fewer than ``TELLING`` characters are never removed."""
    known = {digest for other in others for digest in line_digests(other)}
    lines = text.split("\n")
    kept = [line for line in lines if _digest(line) not in known]
    return "\n".join(kept), len(lines) - len(kept)


def line_digests(text: str) -> set[str]:
    """Return the digests of all lines of the text that have at least ``TELLING`` characters."""
    return {digest for line in text.split("\n") if (digest := _digest(line)) is not None}


def _digest(line: str) -> str | None:
    plain = " ".join(line.lower().split())
    return hashlib.sha256(plain.encode()).hexdigest() if len(plain) >= TELLING else None


def digest_of(passages: Mapping[str, Passages]) -> str:
    """Return a digest of all tokens in the passages. Equal digests mean equal passages."""
    whole = hashlib.sha256()
    for name in sorted(passages):
        whole.update(name.encode())
        whole.update(passages[name].ids.numpy().tobytes())
        whole.update(passages[name].valid.numpy().tobytes())
    return whole.hexdigest()[:16]
