"""Recall of a set: predict all classes in the earlier frame that has the same key as the last frame."""

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


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``set_recall``."""

    length: int = 32
    """Number of frames. The last frame is the query."""
    classes: int = 12
    """Number of classes. A frame can hold none, one or several of them."""
    rare: int = 4
    """Inverse of the probability that a frame holds a given class."""
    key: int = 8
    """Number of channels of a key. Each channel is -1 or 1."""
    causal: bool = False
    """True if each position sees only itself and earlier positions."""

    def __post_init__(self) -> None:
        require_range("set_recall.key", self.key, 2, 14, "counts channels")
        most = 2**self.key
        require_range("set_recall.length", self.length, 3, most, "counts frames of different keys, of which there are 2^key,")
        require_range("set_recall.classes", self.classes, 2, 1_000, "counts classes")
        require_range("set_recall.rare", self.rare, 2, 1_000, "counts frames of which one, on average, holds a class")
        self.require_sizes("set_recall")


@register_task(
    "set_recall",
    title="Recall of a set (multi-label)",
    version="1",
    summary="Frames of a key and a set of classes. Predict the set in the earlier frame that has the key of the last frame.",
    source="generated",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": small({}, steps=400, batch_size=64),
        "smoke": smoke({"length": 16, "classes": 4, "train": 500, "valid": 100, "test": 100}, learning_rate=2e-3),
        "lra": large({"length": 1024, "key": 12, "train": 50_000, "valid": 2_000, "test": 2_000}),
    },
    metric="f1_micro",
    variants={"causal": {"length": 20, "classes": 3, "rare": 2, "causal": True, "train": 500, "valid": 100, "test": 100}},
)
class SetRecall(SyntheticTask):
    """Prediction of the set of classes in the earlier frame that has the same key as the last frame.

    A frame contains a key and one number for each class: 1 if the class is in the set of the frame, and -1 if not. The last frame
    has the key of one earlier frame at a random position, and 0 for each class. Every other key occurs once. Keys are drawn anew
    for every example, so that no network can learn them. Each class is in a set independently of all others.

    Source: associative recall (Arora et al. 2023, arXiv:2312.04927), with one query. Sets of classes are new.
    Differs: in associative recall a value is one class; here it is a set of classes. The metric is micro-averaged F1, over all
        classes together. A key is a vector in the same frame as its value, not a token before it.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: inputs are frames of a key and a set of classes. The label is a set of classes, at the last
        frame."""
        o = self.options
        frames = Frames(o.key + o.classes)
        return TaskSpec(frames, o.length, o.classes, labels="position", causal=o.causal, problem="multi_label")

    def examples(self, split: Split) -> ArrayExamples:
        """Return the frames of a split. The label at the last frame is the set of classes; labels at all other frames are NaN."""
        frames, sets = self.drawn(split)
        labels = torch.full((*frames.shape[:2], self.options.classes), torch.nan)
        labels[:, -1] = torch.from_numpy(sets).float()
        return ArrayExamples(torch.from_numpy(frames).float(), labels)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the frames and the sets of at most ``rows`` new examples."""
        o = self.options
        keys, is_marked = shared_keys(random, rows, o.length, 1, o.key)
        held = (below(random, o.rare, rows, o.length, o.classes) == 0).astype(np.int64)
        held[:, -1] = 0
        shown = 2 * held - 1
        shown[:, -1] = 0
        return np.concatenate([keys, shown], axis=2), (held * is_marked[:, :, None]).sum(axis=1)
