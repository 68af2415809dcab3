"""Examples held in memory, handed out in batches, with a digest of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.contract import Batch, Examples


class ArrayExamples(Examples):
    """Tensors of inputs and labels, and of padding where there is any."""

    def __init__(
        self,
        inputs: Int[Tensor, "examples length"] | Float[Tensor, "examples channels height width"],
        labels: Int[Tensor, " examples"],
        valid: Bool[Tensor, "examples length"] | None = None,
    ) -> None:
        if len(inputs) != len(labels) or not len(labels):
            raise ValueError(f"a split needs as many labels as inputs and at least one; got {len(labels)} and {len(inputs)}")
        self._inputs, self._labels, self._valid = inputs, labels, valid

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Sequence[int] | Int[Tensor, " batch"]) -> Batch:
        """The examples at these indices, in this order; small tokens are widened here and not in memory."""
        at = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
        inputs = self._inputs[at]
        inputs = inputs if inputs.is_floating_point() else inputs.long()
        return Batch(inputs, None if self._valid is None else self._valid[at], self._labels[at])

    def labels(self) -> Int[Tensor, " examples"]:
        """All labels, in order."""
        return self._labels

    def digest(self) -> str:
        """SHA-256 over the type, shape and little-endian bytes of inputs and labels."""
        found = hashlib.sha256()
        for tensor in (self._inputs, self._labels):
            array = np.ascontiguousarray(tensor.numpy())
            found.update(f"{array.dtype.name}{array.shape}".encode())
            found.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return found.hexdigest()
