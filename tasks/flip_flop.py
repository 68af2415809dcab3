"""Flip-flop language: instructions to write, ignore or read a symbol. A read returns the symbol that was written last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, in_turn
from .parts.levels import DECODER, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

WRITE, IGNORE, READ, FIRST_SYMBOL = 1, 2, 3, 4
"""Token ids of the three instructions and of the first symbol. The other symbols have the next ids."""
PARTS = ("in distribution", "sparse", "dense")


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``flip_flop``."""

    length: int = 128
    """Length in tokens, an even number. Half of the tokens are instructions, and half are the symbols that follow them."""
    symbols: int = 2
    """Number of different symbols, which are the classes."""
    ignored: float = 0.8
    """Share of ignore instructions in training, validation and the first third of the test. Write and read are equally frequent."""
    sparse: float = 0.98
    """Share of ignore instructions in the second third of the test. The last write is then far back."""
    dense: float = 0.1
    """Share of ignore instructions in the last third of the test. Writes are then frequent."""

    def __post_init__(self) -> None:
        require_range("flip_flop.length", self.length, 6, 16_384, "counts tokens")
        if self.length % 2:
            raise ValueError(f"flip_flop.length must be even, because a symbol follows each instruction; got {self.length}")
        require_range("flip_flop.symbols", self.symbols, 2, 10_000, "counts symbols")
        for name in ("ignored", "sparse", "dense"):
            require_range(f"flip_flop.{name}", getattr(self, name), 0, 1, "is a share of the instructions")
        self.require_sizes("flip_flop")


@register_task(
    "flip_flop",
    title="Flip-flop",
    version="1",
    summary="Instructions to write, ignore or read a symbol. Predict, at each read, the symbol that was written last.",
    source="generated; after Liu et al. 2023, arXiv:2306.00946",
    licence="Apache-2.0 (generated here)",
    options=Options,
    distant="sparse",  # in the other parts the last write is often within reach of a short convolution
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 1, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0, "positions": "none"},
            budget={"steps": 1000, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"length": 256, "train": 40_000},
            differs="256 tokens in place of 512, one layer of width 64 in place of six of width 512, a tenth of the steps",
        ),
        "profile_decoder": Level(
            model=DECODER,
            budget={"steps": 400, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"symbols": 8, "test": 1_500, "dense": 0.8},
            differs="128 tokens, 8 symbols, 2 layers of width 64, a twelfth of the examples; a third of the test is sparse and "
            "none is dense, because a short convolution answers nearly all of a dense one",
        ),
        "smoke": smoke({"length": 32, "train": 500, "valid": 100, "test": 150}),
        "lra": Level(
            model={"dim": 512, "depth": 6, "heads": 8, "mlp_ratio": 4.0, "dropout": 0.0},
            budget={"steps": 10_000, "batch_size": 16, "learning_rate": 3e-4, "weight_decay": 0.1, "evaluate_every": 500},
            options={"length": 512, "train": 160_000, "test": 3_000},
            differs="learned absolute positions, another warm-up, and a smaller test",
        ),
    },
    variants={
        "symbols": {"symbols": 9, "length": 40, "sparse": 0.9, "train": 500, "valid": 90, "test": 90},
    },
)
class FlipFlop(SyntheticTask):
    """Prediction, at every read instruction, of the symbol that followed the latest write instruction.

    An example begins like ``w 1 i 0 r 1 i 1 r 1``. Here ``w``, ``i`` and ``r`` are the instructions to write, ignore and read, and
    a symbol follows each instruction. After a write or an ignore, the symbol is random; after a read, it is the symbol that was
    written last. The first instruction is a write, and the last is a read. The label of a read is at the read instruction, one
    position before the symbol. Later positions also see this symbol, so the answers to earlier reads are visible.

    The test has three equal parts with separate scores. The first part is drawn like training examples. By default, the second part
    has more ignore instructions (sparse), and the third has fewer (dense).

    Source: the flip-flop language of Liu et al. 2023, Section 3, with 512 tokens and two symbols. The share of ignore instructions
        is 0.8 in training, 0.98 in the sparse test and 0.1 in the dense test. The authors train a Transformer with 6 layers of
        width 512 on 10,000 batches of 16 examples. Yang et al. 2025 (PaTH), arXiv:2505.16381, use one layer of width 64.
    Differs: sequences are shorter. Only the symbols after reads are predicted; the source also scores only these symbols. If there
        are more than two ``symbols``, the chance level is lower, and so is the accuracy of a model that only counts symbols.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are instructions and symbols. Classes are the symbols."""
        o = self.options
        return TaskSpec(Tokens(FIRST_SYMBOL + o.symbols), o.length, o.symbols, labels="position", causal=True)

    @property
    def criterion(self) -> str:
        """Name of the validation examples, whose score can decide when a run ends. They are drawn like training examples."""
        return f"validation, {PARTS[0]}"

    def slices(self, split: Split) -> dict[str, Bool[Tensor, " examples"]]:
        """Return a mask of the examples in each part of the test: ``in distribution``, ``sparse`` and ``dense``."""
        part = torch.from_numpy(self.drawn(split)[2])
        return {name: part == at for at, name in enumerate(PARTS)}

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples, and the part of the test to which each example
        belongs."""
        o = self.options
        shares = (o.ignored, o.sparse, o.dense) if split == "test" else (o.ignored,)
        return in_turn([self._draw(random, rows // len(shares), share, part) for part, share in enumerate(shares)])

    def _draw(self, random: np.random.RandomState, rows: int, share: float, part: int) -> Drawn:
        o = self.options
        chance = random.random_sample((rows, o.length // 2))
        instructions = np.where(chance < share, IGNORE, np.where(chance < (1 + share) / 2, WRITE, READ))
        instructions[:, 0], instructions[:, -1] = WRITE, READ
        symbols = below(random, o.symbols, *instructions.shape)
        written = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(o.length // 2), 0), axis=1)
        symbols = np.where(instructions == READ, np.take_along_axis(symbols, written, axis=1), symbols)
        ids, labels = (np.full((rows, o.length), UNASKED, dtype=np.int64) for _ in range(2))
        ids[:, ::2], ids[:, 1::2] = instructions, FIRST_SYMBOL + symbols
        labels[:, ::2] = np.where(instructions == READ, symbols, UNASKED)
        return ids, labels, np.full(rows, part)
