"""Adding problem: predict the sum of those values whose key equals the key of the last frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attn_zoo.contract import Frames, Split, TaskSpec
from attn_zoo.registry import register_task

from .parts.arrays import ArrayExamples
from .parts.generated import Drawn, below
from .parts.keys import shared_keys
from .parts.levels import large, small, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

STEPS = 128
"""Values of frames are multiples of 1 / ``STEPS``, so that they are equal on every machine."""


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``adding``."""

    length: int = 64
    """Number of frames. The last frame is the query."""
    marked: int = 2
    """Number of earlier frames that have the key of the last frame. The values of these frames are added."""
    key: int = 8
    """Number of channels of a key. Each channel is -1 or 1."""
    causal: bool = False
    """True if each position sees only itself and earlier positions."""

    def __post_init__(self) -> None:
        require_range("adding.key", self.key, 2, 14, "counts channels")
        require_range("adding.length", self.length, 3, 2**self.key, "counts frames of different keys, of which there are 2^key,")
        require_range("adding.marked", self.marked, 1, self.length - 1, "counts frames before the last")
        self.require_sizes("adding")


@register_task(
    "adding",
    title="Adding problem (frames)",
    version="1",
    summary="Frames of a value and a key. Predict the sum of the values whose key equals that of the last frame.",
    source="generated",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": small({}, steps=400, batch_size=64),
        "smoke": smoke({"length": 16, "train": 500, "valid": 100, "test": 100}, learning_rate=2e-3),
        "lra": large(
            {"length": 1024, "key": 12, "train": 50_000, "valid": 2_000, "test": 2_000},
            differs="Hochreiter and Schmidhuber: recurrent networks, up to 1,000 frames; nothing was published for attention",
            dropout=0.0,
        ),
    },
    metric="r2",
    variants={"causal": {"length": 20, "marked": 3, "key": 5, "causal": True, "train": 500, "valid": 100, "test": 100}},
)
class Adding(SyntheticTask):
    """Prediction of the sum of the values whose key equals the key of the last frame.

    Channel 0 of a frame is a value in [-1, 1], and the other channels are its key. Random earlier frames (``marked`` is their
    number) have the key of the last frame. Every other key occurs once. The value of the last frame is 0. Keys are drawn anew for
    every example, so that no network can learn them.

    Source: the adding problem of Hochreiter and Schmidhuber 1997 (Long Short-Term Memory, Neural Computation 9), experiment 4. A
        frame is a value and a marker, and the values of the two marked frames are added. An example has up to 1,000 frames, and the
        metric is the mean squared error.
    Differs: in the source, a separate channel marks frames. A network can then add the marked values by averaging, without
        comparing anything. Here a frame is marked if it has the key of the last frame. The metric is R², which does not depend on
        the unit of the values. The mean squared error is (1 - R²) times the variance of the labels, which is about ``marked`` / 3.
        All examples have the same length.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: inputs are frames of a value and a key. The label is a number at the last frame."""
        o = self.options
        return TaskSpec(Frames(1 + o.key), o.length, classes=1, labels="position", causal=o.causal, problem="regression")

    def examples(self, split: Split) -> ArrayExamples:
        """Return the frames of a split. The label at the last frame is the sum; labels at all other frames are NaN."""
        frames, sums = self.drawn(split)
        labels = torch.full((*frames.shape[:2], 1), torch.nan)
        labels[:, -1, 0] = torch.from_numpy(sums) / STEPS
        scale = torch.tensor([STEPS] + [1] * self.options.key)
        return ArrayExamples(torch.from_numpy(frames) / scale, labels)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the frames and the sums of at most ``rows`` new examples. Values and sums are integers in units of 1 /
        ``STEPS``."""
        o = self.options
        keys, is_marked = shared_keys(random, rows, o.length, o.marked, o.key)
        values = below(random, 2 * STEPS + 1, rows, o.length) - STEPS
        values[:, -1] = 0
        return np.concatenate([values[:, :, None], keys], axis=2), (values * is_marked).sum(axis=1)
