"""Examples that are stored in memory as tensors, and standardisation of grey levels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import SPLITS, Batch, Examples, Labels


class ArrayExamples(Examples):
    """Examples that are stored as a tensor of inputs and a tensor of labels. If inputs are padded, there is also a mask.

    Integers may be stored in a small dtype, because each batch is converted to the dtype that models need.

    Args:
        inputs: tokens, pairs of token sequences, frames, or images.
        labels: one label for each example, or one for each position. Positions without a label have ``UNASKED`` (for classes) or
            NaN (for numbers).
        valid: True for a real token or frame and False for padding; None without padding.
        scale: only for images that are stored as bytes: the standardised value of each pixel level from 0 to 255, for each channel.

    Raises:
        ValueError: the split is empty, or the numbers of labels and inputs differ.
    """

    def __init__(
        self,
        inputs: Int[Tensor, "examples length"]
        | Int[Tensor, "examples 2 length"]
        | Float[Tensor, "examples length channels"]
        | Float[Tensor, "examples channels height width"],
        labels: Labels,
        valid: Bool[Tensor, "examples length"] | Bool[Tensor, "examples 2 length"] | None = None,
        scale: Float[Tensor, "channels 256"] | None = None,
    ) -> None:
        if len(inputs) != len(labels) or not len(labels):
            raise ValueError(
                "a split must have at least one example, and as many labels as inputs; "
                f"got {len(labels)} labels and {len(inputs)} inputs"
            )
        self._inputs, self._labels, self._valid, self._scale = inputs, labels, valid, scale

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Sequence[int] | Int[Tensor, " batch"]) -> Batch:
        """Return the examples with these indices, in this order."""
        at = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
        inputs = self._inputs[at]
        if self._scale is not None:
            channel = torch.arange(inputs.shape[1])[:, None, None]
            inputs = self._scale[channel, inputs.long()]
        inputs = inputs if inputs.is_floating_point() else inputs.long()
        return Batch(inputs, None if self._valid is None else self._valid[at], _wide(self._labels[at]))

    def labels(self) -> Labels:
        """Return the labels of all examples, in order."""
        return _wide(self._labels)

    def digest(self) -> str:
        """Return the SHA-256 of the inputs, the labels, the scale and, for frames, the padding mask. It covers the dtype, the shape
        and the little-endian bytes of each tensor."""
        digest = hashlib.sha256()
        frames = self._inputs.is_floating_point()  # padding of tokens is token 0
        for tensor in (self._inputs, self._labels, self._scale, self._valid if frames else None):
            if tensor is None:
                continue
            array = np.ascontiguousarray(tensor.numpy())
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
        return digest.hexdigest()


def _wide(labels: Tensor) -> Tensor:
    """Return labels in the dtype of a batch: float32 or int64."""
    return labels.float() if labels.is_floating_point() else labels.long()


def token_examples(arrays: Mapping[str, NDArray[Any]], *, train: int = 0, padded: bool = True) -> tuple[ArrayExamples, ...]:
    """Return the examples of train, valid and test.

    Args:
        arrays: token ids, with 0 for padding, and labels of each split. Keys are ``train ids``, ``train labels``, ``valid ids`` and
            so on.
        train: number of training examples. The first examples are used; 0 means all.
        padded: False if all sequences have the same length.

    Raises:
        ValueError: there are fewer than ``train`` training examples.
    """
    if train > (left := len(arrays["train labels"])):
        raise ValueError(
            f"train must be at most {left:,}, the number of examples left after validation examples and duplicates are taken out; "
            f"got {train:,}"
        )
    splits = []
    for split in SPLITS:
        rows = slice(train or None) if split == "train" else slice(None)
        ids, labels = (torch.from_numpy(arrays[f"{split} {what}"][rows]) for what in ("ids", "labels"))
        splits.append(ArrayExamples(ids, labels, ids != 0 if padded else None))
    return tuple(splits)


def standardise(train: NDArray[np.uint8], *others: NDArray[np.uint8]) -> tuple[Float[Tensor, "..."], ...]:
    """Return ``train`` and the other arrays of grey levels, standardised with the mean and the standard deviation of ``train``.
    Shapes do not change."""
    scale = level_scale(train)
    return tuple(torch.from_numpy(scale[levels]) for levels in (train, *others))


def level_scale(levels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the standardised value of each of the 256 grey levels. The mean and the standard deviation are those of all pixels in
    ``levels``.

    These two statistics are computed from integer counts, so that they are equal on every machine and in every version of numpy.
    """
    counts = np.bincount(levels.ravel(), minlength=256).tolist()
    pixels = sum(counts)
    total = sum(level * count for level, count in enumerate(counts))
    squares = sum(level**2 * count for level, count in enumerate(counts))
    mean, deviation = total / pixels, math.sqrt(pixels * squares - total**2) / pixels
    return np.array([(level - mean) / (deviation or 1.0) for level in range(256)], dtype=np.float64).astype(np.float32)
