"""Examples held in memory, handed out in batches, with a digest of their content; grey levels on a common scale."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import Batch, Examples


class ArrayExamples(Examples):
    """Tensors of inputs and labels, and of padding where there is any.

    Inputs and labels by position may be of a small type; batches are widened, not what is held.

    Args:
        inputs: tokens, pairs of token sequences, or images.
        labels: one an example, or one a position (``UNASKED`` where nothing is asked).
        valid: True for a real token.
        scale: value of each of the 256 levels, by channel, for images held as bytes.

    Raises:
        ValueError: the split is empty, or there are not as many labels as inputs.
    """

    def __init__(
        self,
        inputs: Int[Tensor, "examples length"] | Int[Tensor, "examples 2 length"] | Float[Tensor, "examples channels height width"],
        labels: Int[Tensor, " examples"] | Int[Tensor, "examples length"],
        valid: Bool[Tensor, "examples length"] | Bool[Tensor, "examples 2 length"] | None = None,
        scale: Float[Tensor, "channels 256"] | None = None,
    ) -> None:
        if len(inputs) != len(labels) or not len(labels):
            raise ValueError(f"a split needs as many labels as inputs and at least one; got {len(labels)} and {len(inputs)}")
        self._inputs, self._labels, self._valid, self._scale = inputs, labels, valid, scale

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Sequence[int] | Int[Tensor, " batch"]) -> Batch:
        """The examples at these indices, in this order; small tokens are widened here and not in memory."""
        at = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
        inputs = self._inputs[at]
        if self._scale is not None:
            channel = torch.arange(inputs.shape[1])[:, None, None]
            inputs = self._scale[channel, inputs.long()]
        inputs = inputs if inputs.is_floating_point() else inputs.long()
        return Batch(inputs, None if self._valid is None else self._valid[at], self._labels[at].long())

    def labels(self) -> Int[Tensor, " examples"] | Int[Tensor, "examples length"]:
        """All labels, in order."""
        return self._labels.long()

    def digest(self) -> str:
        """SHA-256 over the type, shape and little-endian bytes of inputs and labels, and of the scale of bytes."""
        found = hashlib.sha256()
        for tensor in (self._inputs, self._labels, *([] if self._scale is None else [self._scale])):
            array = np.ascontiguousarray(tensor.numpy())
            found.update(f"{array.dtype.name}{array.shape}".encode())
            found.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
        return found.hexdigest()


def standardise(train: NDArray[np.uint8], *others: NDArray[np.uint8]) -> tuple[Float[Tensor, "..."], ...]:
    """Grey levels less their mean and over their deviation, both those of ``train``; shapes are kept.

    Mean and deviation come from counts of the 256 levels, which are whole numbers: sums of pixels
    would round differently on other machines and in other versions of numpy, and digests differ.
    """
    counts = np.bincount(train.ravel(), minlength=256).tolist()
    pixels = sum(counts)
    total = sum(level * count for level, count in enumerate(counts))
    squares = sum(level**2 * count for level, count in enumerate(counts))
    mean, deviation = total / pixels, math.sqrt(pixels * squares - total**2) / pixels
    scale = np.array([(level - mean) / deviation for level in range(256)], dtype=np.float64).astype(np.float32)
    return tuple(torch.from_numpy(scale[levels]) for levels in (train, *others))
