"""Functions that draw random examples without repetition. The random numbers are equal on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, Split

from .arrays import ArrayExamples

BLOCK = 1024
"""Number of examples that are drawn at once, which limits the memory that is needed."""

_BLOCKS_IN_VAIN = 20
"""Drawing fails after this number of consecutive blocks without a new example."""

Drawn = tuple[NDArray[np.int64], ...]
"""Arrays of examples: tokens (examples, length), then other arrays with one entry for each example."""


def draw_splits(
    name: str, seed: int, sizes: Mapping[Split, int], draw: Callable[[np.random.RandomState, int, Split], Drawn]
) -> dict[Split, Drawn]:
    """Return randomly drawn splits. No token sequence occurs twice, within a split or across splits.

    Each split has its own random number generator. The test split is drawn first, so that it does not depend on the sizes of the
    other splits.

    Args:
        name, seed: name of the task and a number. The seed of a generator is a hash of the name, the number and the split.
        sizes: number of examples of each split.
        draw: function that draws at most a given number of examples of a split. The only method of the generator that it may call
            is ``random_sample``, whose numbers numpy guarantees never to change. The examples must not depend on the machine.

    Raises:
        ValueError: there are probably fewer different examples than required.
    """
    seen: set[bytes] = set()
    found = {}
    for split in reversed(SPLITS):
        random = stream(f"{name} {seed} {split}")
        blocks: list[Drawn] = []
        count = in_vain = 0
        while count < sizes[split]:
            block = _unseen(draw(random, BLOCK, split), seen, sizes[split] - count)
            count += len(block[0])
            in_vain = 0 if len(block[0]) else in_vain + 1
            if in_vain == _BLOCKS_IN_VAIN:
                raise ValueError(
                    f"{name}: only {len(seen)} different examples were found. Ask for fewer examples, or for longer ones"
                )
            blocks.append(block)
        found[split] = tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return found


def stream(name: str) -> np.random.RandomState:
    """Return a random number generator whose seed is a hash of ``name``."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.RandomState([int.from_bytes(digest[at : at + 4], "little") for at in range(0, 32, 4)])


def examples_of(drawn: Drawn) -> ArrayExamples:
    """Return examples that consist of the drawn tokens and labels, without padding. They are stored in the smallest dtype that
    holds them."""
    return ArrayExamples(_compact(drawn[0]), _compact(drawn[1]))


def below(random: np.random.RandomState, bound: int, *shape: int) -> NDArray[np.int64]:
    """Return an array of random integers from 0 to ``bound`` - 1, drawn uniformly. ``randint`` is not used because its numbers
    differ between 32-bit and 64-bit systems."""
    return (random.random_sample(shape) * bound).astype(np.int64)


def subsets(random: np.random.RandomState, rows: int, size: int, of: int) -> NDArray[np.int64]:
    """Return a random subset in each of ``rows`` rows: ``size`` different integers from 0 to ``of`` - 1, in random order."""
    chance = random.random_sample((rows, of))
    if size < of // 8:  # sorting all numbers to take a few is several times slower
        chosen = np.sort(np.argpartition(chance, size, axis=1)[:, :size], axis=1)
        order = np.argsort(np.take_along_axis(chance, chosen, axis=1), axis=1, kind="stable")
        return np.take_along_axis(chosen, order, axis=1)
    return np.argsort(chance, axis=1, kind="stable")[:, :size]


def weighted_subsets(random: np.random.RandomState, rows: int, size: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a random subset in each of ``rows`` rows: ``size`` different indices of ``weights``. They are drawn one after another,
    from those not drawn yet, with probabilities proportional to their weights."""
    left = np.tile(weights, (rows, 1))
    chosen = np.empty((rows, size), dtype=np.int64)
    for turn in range(size):
        sums = left.cumsum(axis=1)
        mark = np.minimum((random.random_sample(rows) * sums[:, -1]).astype(np.int64), sums[:, -1] - 1)
        chosen[:, turn] = (sums <= mark[:, None]).sum(axis=1)
        np.put_along_axis(left, chosen[:, turn : turn + 1], 0, axis=1)
    return chosen


def in_turn(blocks: Sequence[Drawn]) -> Drawn:
    """Merge sets of drawn examples, which have equal sizes, into one. The first example of each set comes first, then the second of
    each set, and so on."""
    return tuple(np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:]) for parts in zip(*blocks, strict=True))


def counts_of(digits: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """Return how often each digit from 0 to ``modulus`` - 1 occurs in each row."""
    return np.stack([(digits == digit).sum(axis=1) for digit in range(modulus)], axis=1)


def balance(random: np.random.RandomState, counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return ``size`` new digits for each row, in random order. ``counts`` says how often each digit already occurs in the row.
    With the new digits, all digits are equally frequent, up to a difference of one."""
    rows, modulus = counts.shape
    each, over = divmod(size + int(counts[:1].sum()), modulus)
    lacking = each - counts
    np.add.at(lacking, (np.arange(rows)[:, None], subsets(random, rows, over, modulus)), 1)
    ends = lacking.cumsum(axis=1)
    digits = (np.arange(size) >= ends[:, :, None]).sum(axis=1)
    return np.take_along_axis(digits, subsets(random, rows, size, size), axis=1)


def _unseen(block: Drawn, seen: set[bytes], at_most: int) -> Drawn:
    """Return the first ``at_most`` examples of a block that are not yet in ``seen``, and add them to it."""
    kept = []
    for row, ids in enumerate(block[0]):
        key = hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            kept.append(row)
            if len(kept) == at_most:
                break
    return tuple(array[kept] for array in block)


def _compact(array: NDArray[np.int64]) -> torch.Tensor:
    low, high = int(array.min()), int(array.max())
    kind = np.uint8 if low >= 0 and high < 256 else np.int16 if high < 2**15 else np.int32
    return torch.from_numpy(array.astype(kind, copy=False))
