"""Needles in hay: recall of key-value pairs that are hidden in repetitive or diverse filler. Test sequences can be longer than
training sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens, added_later
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, in_turn, subsets
from .parts.levels import DECODER, ENCODER, SMALL, large, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

KINDS = ("repetitive", "diverse")
PHRASE = 8
"""Number of tokens of the phrase that repetitive hay repeats. These tokens also occur in diverse hay."""


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``needle``."""

    length: int = 64
    """Length in tokens of a training or validation sequence: hay with needles, then their keys as queries."""
    needles: int = 4
    """Number of needles (pairs of a key and a value), at most a quarter of ``length``. All keys are queried, in random order."""
    vocabulary: int = 64
    """Number of different keys and values together, an even number. Half of them are keys."""
    hay: int = 64
    """Number of different tokens of diverse hay. None of them is a key or a value."""
    longer: int = 4
    """Ratio of the largest test length to ``length``; it must be a power of two. Test lengths are ``length``, twice ``length`` and
    so on, up to ``longer`` times ``length``."""
    causal: bool = added_later(True)
    """True if each position sees only itself and earlier positions. If False, ``longer`` must be 1."""

    def __post_init__(self) -> None:
        require_range("needle.length", self.length, 8, 16_384, "counts tokens")
        require_range(
            "needle.needles", self.needles, 1, self.length // 4, f"counts needles, at most a quarter of length={self.length},"
        )
        require_range("needle.vocabulary", self.vocabulary, 4, 30_000, "counts keys and values, at least two of each")
        if self.vocabulary % 2 or self.vocabulary < 2 * self.needles:
            raise ValueError(
                f"needle.vocabulary must be even and at least {2 * self.needles}, because half of it are keys and half values; "
                f"got {self.vocabulary}"
            )
        require_range("needle.hay", self.hay, PHRASE, 30_000, "counts tokens of diverse hay")
        require_range("needle.longer", self.longer, 1, 64, "is the longest test length as a multiple of length")
        if self.longer & (self.longer - 1):
            raise ValueError(f"needle.longer must be a power of two; got {self.longer}")
        if not self.causal and self.longer > 1:
            raise ValueError(
                "needle.longer must be 1 with causal=false, because longer test inputs are only for causal networks; got "
                f"{self.longer}"
            )
        self.require_sizes("needle")


@register_task(
    "needle",
    title="Needles in two kinds of hay",
    version="1",
    summary="Keys with values in repetitive or diverse filler. Predict the values at the end, also in longer sequences.",
    source="generated; after Hsieh et al. 2024 (RULER), arXiv:2404.06654, and Yang et al. 2024 (Gated DeltaNet), arXiv:2412.06464",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": Level(
            model={**SMALL, "positions": "none"},
            budget={"steps": 1000, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"length": 128, "train": 40_000},
            differs="trained from scratch on the task alone, on 128 tokens in place of language models and 1,024 to 8,192 words",
        ),
        "profile_decoder": Level(
            model=DECODER,
            budget={"steps": 500, "batch_size": 32, "learning_rate": 1e-2, "warmup_steps": 50, "evaluate_every": 100},
            options={"needles": 8, "valid": 500, "test": 1_800},
            differs="trained from scratch on the task alone, on 64 tokens in place of language models and 1,024 to 8,192 words",
        ),
        "profile_encoder": Level(
            model=ENCODER,
            budget={"steps": 800, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"needles": 8, "longer": 1, "causal": False},
            differs="bidirectional, and tested on the trained length; trained from scratch on the task alone, on 64 tokens in "
            "place of language models and 1,024 to 8,192 words",
        ),
        "smoke": smoke({"length": 24, "needles": 2, "train": 500, "valid": 100, "test": 120}, positions="none"),
        "lra": large(
            {"length": 1024, "needles": 8, "train": 100_000, "valid": 2_000, "test": 2_400},
            differs="trained from scratch on the task alone",
            positions="none",
        ),
    },
    variants={
        "short": {"length": 16, "needles": 3, "vocabulary": 10, "hay": 8, "longer": 2, "train": 500, "valid": 90, "test": 90},
        "both": {"length": 24, "needles": 3, "longer": 1, "causal": False, "train": 500, "valid": 90, "test": 90},
    },
)
class Needle(SyntheticTask):
    """Prediction of the value that followed a key somewhere in the hay. The keys are repeated at the end, as queries.

    A needle is a key followed by its value, at a random position in the hay. The hay of an example is repetitive (a repeated phrase
    of eight tokens) or diverse (random tokens). Both kinds are equally frequent. A network is trained on sequences of ``length``
    tokens. It is tested on sequences that are as long, twice as long, four times as long and so on, with separate scores for each
    length and each kind of hay. Shorter test sequences are filled up with hay to the longest length. In a causal network, the
    queries do not see this hay, because it comes after them.

    Source: RULER hides single needles, each a key and a value, in repeated phrases or in essays. Yang et al. 2024, Table 2, compare
        recurrent mechanisms on this task: which mechanism is best depends on the hay.
    Differs: networks are trained from scratch. Tokens are symbols, not words. Each sequence has several queries. Training has no
        sequences of the greater lengths. Networks of causal presets have no position embeddings, because embeddings of later
        positions would be untrained. FLOPs per example are counted at the longest length, those of training at ``length``.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are hay, keys and values. Classes are the values."""
        o = self.options
        return TaskSpec(
            Tokens(1 + o.hay + o.vocabulary),
            o.longer * o.length,
            o.vocabulary // 2,
            labels="position",
            causal=o.causal,
            train_length=o.length if o.longer > 1 else None,
        )

    @property
    def criterion(self) -> str:
        """Name of the validation examples, whose score can decide when a run ends. They are as long as training examples; test
        examples can be longer."""
        return f"validation, with {self.options.length} tokens" if self.options.longer > 1 else super().criterion

    def slices(self, split: Split) -> dict[str, Bool[Tensor, " examples"]]:
        """Return a mask of the examples for each combination of hay and length."""
        part = torch.from_numpy(self.drawn(split)[2])
        return {f"{kind}, {length} tokens": part == at for at, (kind, length) in enumerate(self._parts(split))}

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples, and the part of the test (kind of hay and length) of
        each example."""
        parts = self._parts(split)
        longest = max(length for _, length in parts)
        return in_turn([self._draw(random, rows // len(parts), *part, longest, at) for at, part in enumerate(parts)])

    def _parts(self, split: Split) -> list[tuple[str, int]]:
        """Return the kinds of hay, each with its lengths."""
        o = self.options
        lengths = [o.length << step for step in range(o.longer.bit_length() if split == "test" else 1)]
        return [(kind, length) for kind in KINDS for length in lengths]

    def _draw(self, random: np.random.RandomState, rows: int, kind: str, length: int, longest: int, part: int) -> Drawn:
        o = self.options
        ids = 1 + (below(random, o.hay, rows, longest) if kind == "diverse" else np.tile(np.arange(longest) % PHRASE, (rows, 1)))
        keys, values = (subsets(random, rows, o.needles, o.vocabulary // 2) for _ in range(2))
        # Each needle takes two positions: sorted positions are drawn, then each is shifted by the number of earlier ones.
        room = length - 2 * o.needles
        at = np.sort(subsets(random, rows, o.needles, room), axis=1) + np.arange(o.needles)
        np.put_along_axis(ids, at, 1 + o.hay + keys, axis=1)
        np.put_along_axis(ids, at + 1, 1 + o.hay + o.vocabulary // 2 + values, axis=1)
        order = subsets(random, rows, o.needles, o.needles)
        ids[:, length - o.needles : length] = 1 + o.hay + np.take_along_axis(keys, order, axis=1)
        labels = np.full((rows, longest), UNASKED, dtype=np.int64)
        labels[:, length - o.needles : length] = np.take_along_axis(values, order, axis=1)
        return ids, labels, np.full(rows, part)
