"""Compact letter display: rows that share a letter do not differ significantly (Piepho 2004)."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

_ALPHABET = string.ascii_letters + "".join(chr(code) for code in range(0x100, 0x250))  # further Latin letters
_MOST_GROUPS = 200
_LONGEST_RUN = 3
"""Longest run of neighbouring letters that is printed in full."""


def tie_letters(labels: Sequence[str], apart: set[frozenset[str]]) -> Mapping[str, str]:
    """Assign a letter to every maximal group of rows that all tie, and return the letters of each row's groups by label.

    Letters are empty where there are more than 200 groups. Groups are the maximal cliques of the graph of ties, enumerated by the
    algorithm of Bron and Kerbosch 1973 with a pivot.

    Args:
        labels: labels of rows, the best first.
        apart: pairs that differ significantly.
    """
    ties = {one: {other for other in labels if other != one and frozenset((one, other)) not in apart} for one in labels}
    groups: list[set[str]] = []

    def extend(group: set[str], candidates: set[str], done: set[str]) -> None:
        if not candidates and not done:
            groups.append(group)
        if not candidates or len(groups) > _MOST_GROUPS:
            return
        pivot = max(sorted(candidates | done), key=lambda label: len(ties[label] & candidates))
        for label in sorted(candidates - ties[pivot]):
            extend(group | {label}, candidates & ties[label], done & ties[label])
            candidates, done = candidates - {label}, done | {label}

    extend(set(), set(labels), set())
    if len(groups) > _MOST_GROUPS:
        return dict.fromkeys(labels, "")
    place = {label: at for at, label in enumerate(labels)}
    groups.sort(key=lambda group: sorted(place[label] for label in group))
    named = list(zip(groups, _ALPHABET, strict=False))
    return {label: "".join(letter for group, letter in named if label in group) for label in labels}


def short_letters(letters: str) -> str:
    """Shorten runs of more than three neighbouring letters: ``c-h`` for ``cdefgh``."""
    runs: list[str] = []
    for letter in letters:
        if runs and _ALPHABET.index(letter) == _ALPHABET.index(runs[-1][-1]) + 1:
            runs[-1] += letter
        else:
            runs.append(letter)
    return "".join(run if len(run) <= _LONGEST_RUN else f"{run[0]}-{run[-1]}" for run in runs)
