"""Recall of tones in frames of a filter bank: which high tone sounded together with the low tone that is repeated at the end?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from attn_zoo.contract import UNASKED, Frames, Split, TaskSpec
from attn_zoo.registry import register_task

from .parts.arrays import ArrayExamples
from .parts.generated import Drawn, below, subsets
from .parts.levels import large, small, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

STEPS = 128
"""Levels of bands are multiples of 1 / ``STEPS``, so that they are equal on every machine."""
SHORTEST, LONGEST = 2, 4
"""Smallest and largest number of frames of a tone."""
PAUSE = 2
"""Largest number of frames of a pause between tones; the smallest is zero."""


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``tones``."""

    tones: int = 8
    """Largest number of double tones (a low and a high tone together) in an example."""
    fewest: int = 4
    """Smallest number of double tones (a low and a high tone together) in an example."""
    low: int = 16
    """Number of bands of low tones. The low tones are the keys; each occurs at most once before the question."""
    high: int = 8
    """Number of bands of high tones. The high tones are the classes."""
    noise: float = 0.25
    """Largest level of the noise in each band; tones have levels from 0.5 to 1."""
    causal: bool = False
    """True if each position sees only itself and earlier positions."""

    def __post_init__(self) -> None:
        require_range("tones.high", self.high, 2, 1_000, "counts bands")
        require_range("tones.low", self.low, 2, 1_000, "counts bands")
        require_range("tones.tones", self.tones, 1, self.low, f"counts double tones, at most low={self.low},")
        require_range("tones.fewest", self.fewest, 1, self.tones, f"counts double tones, at most tones={self.tones},")
        require_range("tones.noise", self.noise, 0.0, 10.0, "is a level")
        self.require_sizes("tones")

    @property
    def length(self) -> int:
        """Largest number of frames of an example."""
        return self.tones * (LONGEST + PAUSE) + LONGEST


@register_task(
    "tones",
    title="Recall of tones (frames)",
    version="1",
    summary="Double tones in noise, of random length, then a low tone. Predict the high tone that sounded with the low one.",
    source="generated",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": small({}, steps=400, batch_size=64),
        "smoke": smoke({"tones": 3, "fewest": 2, "high": 4, "train": 500, "valid": 100, "test": 100}, learning_rate=2e-3),
        "lra": large(
            {"tones": 160, "fewest": 80, "low": 200, "high": 40, "train": 20_000, "valid": 1_000, "test": 1_000},
            differs="nothing was published for this question; three times as many bands as a filter bank for speech has",
        ),
    },
    variants={"causal": {"tones": 5, "fewest": 1, "causal": True, "train": 500, "valid": 100, "test": 100}},
)
class Tones(SyntheticTask):
    """Prediction, at the last frame, of the high tone that sounded together with the low tone at the end of the example.

    A frame contains the level of each band of a filter bank, low bands first. A double tone sounds in one low and one high band. It
    keeps one level for 2 to 4 frames. At most 2 frames of pause follow. Every band has noise. The low tones of an example are all
    different, and the high tones are drawn uniformly. Examples have different lengths and are padded with zeros to the largest
    possible length.

    Source: associative recall (Arora et al. 2023, arXiv:2312.04927), with one query, and the double tones of touch-tone telephones
        (ITU-T Q.23, with four low and four high tones). The combination is new.
    Differs: keys and values sound at the same time, and they are levels in noise, not tokens. The filter bank is ideal: no wave is
        sampled, and no tone leaks into other bands.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: inputs are frames of low and high bands. A class is a high band."""
        o = self.options
        return TaskSpec(Frames(o.low + o.high), o.length, classes=o.high, labels="position", causal=o.causal)

    def examples(self, split: Split) -> ArrayExamples:
        """Return the padded frames of a split. The label is the class at the last real frame."""
        frames, answers, ends = (torch.from_numpy(part) for part in self.drawn(split))
        real: Bool[Tensor, "examples length"] = torch.arange(self.options.length) < ends[:, None]
        labels = torch.full(real.shape, UNASKED).scatter_(1, ends[:, None] - 1, answers[:, None])
        return ArrayExamples(frames / STEPS, labels, real)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the frames, the classes and the numbers of real frames of at most ``rows`` new examples. Levels are integers in
        units of 1 / ``STEPS``."""
        o = self.options
        count = o.fewest + below(random, o.tones - o.fewest + 1, rows, 1)
        low, high = subsets(random, rows, o.tones, o.low), below(random, o.high, rows, o.tones)
        asked = (random.random_sample((rows, 1)) * count).astype(np.int64)
        low = np.concatenate([low, np.take_along_axis(low, asked, axis=1)], axis=1)
        sounds = np.arange(o.tones + 1) < count
        sounds[:, -1] = True
        lasting = (SHORTEST + below(random, LONGEST - SHORTEST + 1, rows, o.tones + 1)) * sounds
        pauses = below(random, PAUSE + 1, rows, o.tones + 1) * sounds
        ends = (lasting + pauses).cumsum(axis=1) - pauses
        level = STEPS // 2 + below(random, STEPS // 2 + 1, rows, o.tones + 1)
        noise = int(o.noise * STEPS)
        frames = below(random, 2 * noise + 1, rows, o.length, o.low + o.high) - noise
        at = np.arange(o.length)
        row = np.arange(rows)[:, None]
        for tone in range(o.tones + 1):
            on = (at >= (ends - lasting)[:, [tone]]) & (at < ends[:, [tone]])
            frames[row, at, low[:, [tone]]] += level[:, [tone]] * on
            if tone < o.tones:
                frames[row, at, o.low + high[:, [tone]]] += level[:, [tone]] * on
        frames *= (at < ends[:, [-1]])[:, :, None]
        return frames, np.take_along_axis(high, asked, axis=1)[:, 0], ends[:, -1]
