"""What the measurement of Linformer's kernels covers: sizes, limits, and the list of cells that are timed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attn_zoo.contract import unavailable
from attn_zoo.cost.bench import BACKENDS, PRECISIONS

CUDA_DEFAULTS: Mapping[str, Any] = {
    "lengths": (512, 4096, 16384, 65536),
    "projected_lengths": (128, 256),
    "dim": 768,
    "heads": 12,
    "tokens": 65536,
    "precision": "bf16",
    "spot_precisions": ("fp16", "fp32"),
}
"""What the targets are set for."""

INTERPRETER_DEFAULTS: Mapping[str, Any] = {
    "lengths": (48,),
    "projected_lengths": (16,),
    "dim": 32,
    "heads": 2,
    "tokens": 96,
    "precision": "fp16",
    "spot_precisions": ("fp32",),
}
"""A few programs of each kernel; bfloat16 is left out, since Triton's interpreter cannot compute in it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured and how.

    Raises:
        ValueError: a value breaks its rule.
    """

    device: str
    """``cuda``, or ``interpreter``: results only, in Triton's interpreter on the CPU."""
    lengths: tuple[int, ...]
    projected_lengths: tuple[int, ...]
    dim: int
    heads: int
    tokens: int
    """A batch holds max(1, tokens // length) sequences."""
    precision: str
    spot_precisions: tuple[str, ...]
    """Timed at one length only."""
    sharing: str
    """``headwise`` or ``key_value``: whether the layer's E and F differ."""
    rounds: int
    repeat_seconds: float
    """A round repeats its step until about so many seconds are covered."""

    def __post_init__(self) -> None:
        if unknown := [name for name in (self.precision, *self.spot_precisions) if name not in PRECISIONS]:
            raise ValueError(f"precision and spot_precisions are of {', '.join(PRECISIONS)}; got {unknown[0]!r}")
        if self.device == "interpreter" and "bf16" in (self.precision, *self.spot_precisions):
            raise ValueError("Triton's interpreter cannot compute in bf16; use fp16 or fp32 with device=interpreter")
        if self.sharing not in ("headwise", "key_value"):
            raise ValueError(f"sharing is headwise (E and F differ) or key_value (E is F); got {self.sharing!r}")
        if self.heads < 1 or self.dim < 1 or self.dim % self.heads:
            raise ValueError(f"dim must be divisible by heads, both at least 1; got dim={self.dim} and heads={self.heads}")
        for name in ("lengths", "projected_lengths"):
            values = getattr(self, name)
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise ValueError(f"{name} are different whole numbers of at least 1; got {list(values)}")
        if max(self.projected_lengths) >= min(self.lengths):
            raise ValueError(
                f"projected_lengths must be below all lengths; got {list(self.projected_lengths)} and {list(self.lengths)}"
            )
        for name in ("tokens", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.repeat_seconds < 0:
            raise ValueError(f"repeat_seconds must not be below 0; got {self.repeat_seconds}")

    @property
    def roles(self) -> int:
        """Matrices of a layer: E and F, or one for both."""
        return 2 if self.sharing == "headwise" else 1

    @property
    def spot_length(self) -> int:
        """Where other precisions are timed."""
        return min(self.lengths, key=lambda n: abs(n - 4096))

    def batch(self, length: int) -> int:
        """Sequences of a step."""
        return max(1, self.tokens // length)


@dataclass(frozen=True, slots=True)
class Limits:
    """What changes no figure, so that a measurement may be gone on with under other ones.

    Raises:
        ValueError: a value breaks its rule.
    """

    seconds: float
    """The whole call, after which it stops."""
    time_limit: float
    """Seconds that one request to a process may take."""
    workers: int
    """Processes that check results at the same time; timings are always alone."""

    def __post_init__(self) -> None:
        if self.time_limit <= 0 or self.seconds <= 0 or self.workers < 1:
            raise ValueError("seconds and time_limit must be above 0 and workers at least 1")


@dataclass(frozen=True, slots=True)
class Cell:
    """Something that is timed: a step of a part by one of those who can do it."""

    part: str
    """``core``, ``projection`` or ``layer``."""
    kind: str
    """``forward`` or ``backward``; of a layer ``forward`` or ``training``."""
    length: int
    rows: int
    """Projected keys of a core or a layer, 0 in softmax attention; rows of the matrix of a projection."""
    precision: str
    who: str
    """``triton``, ``matmul``, ``sdpa`` (Linformer over it), or one of ``BACKENDS``, which in a layer is softmax attention."""

    @property
    def key(self) -> str:
        """What an interrupted measurement is gone on by."""
        return "|".join(str(value) for value in asdict(self).values())


def resolve_setting(given: Mapping[str, Any]) -> tuple[Setting, Limits]:
    """The setting and limits that ``given`` means: what is None is the default of its device.

    Raises:
        ValueError: a value breaks its rule, or there is no CUDA device or no Triton here.
    """
    device = given["device"]
    if device not in ("cuda", "interpreter"):
        raise ValueError(f"device is cuda or interpreter; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "experiment=linformer_kernels needs a CUDA device, and PyTorch finds none; "
            "device=interpreter checks results without one, and measures no times"
        )
    if (reason := unavailable("triton", torch.device("cuda"))) is not None:
        raise ValueError(f"experiment=linformer_kernels needs Triton: {reason}; install it with: pip install triton")
    defaults = CUDA_DEFAULTS if device == "cuda" else INTERPRETER_DEFAULTS
    chosen = {name: value if given.get(name) is None else given[name] for name, value in defaults.items()}
    chosen |= {name: tuple(chosen[name]) for name in ("lengths", "projected_lengths", "spot_precisions")}
    chosen |= {name: given[name] for name in ("sharing", "rounds", "repeat_seconds")}
    workers = (8 if device == "cuda" else 1) if given["workers"] is None else given["workers"]
    return Setting(device=device, **chosen), Limits(given["seconds"], given["time_limit"], workers)


def kernels_digest() -> str:
    """Tells whether a measurement was of these kernels: the start of a digest of their sources."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[2] / "kernels" / "linformer").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def projection_rows(setting: Setting, precision: str) -> list[int]:
    """Rows of the matrices that are timed: E alone, and E and F stacked; in a spot precision the first E and F only."""
    if precision != setting.precision:
        return [2 * setting.projected_lengths[0]]
    return sorted({rows for r in setting.projected_lengths for rows in (r, 2 * r)})


def cells(setting: Setting) -> list[Cell]:
    """All that is timed, part by part, what targets are set for first."""
    found = _core(setting, setting.lengths, setting.precision) + _projection(setting, setting.lengths, setting.precision)
    for n in setting.lengths:
        for kind in ("forward", "training"):
            ours = [(who, r) for r in setting.projected_lengths for who in ("triton", "sdpa")]
            found += [Cell("layer", kind, n, r, setting.precision, who) for who, r in [*ours, *((name, 0) for name in BACKENDS)]]
    for precision in setting.spot_precisions:
        found += _core(setting, [setting.spot_length], precision)
        found += _projection(setting, [setting.spot_length], precision)
    return found


def _core(setting: Setting, lengths: Any, precision: str) -> list[Cell]:
    backends = ["efficient"] if precision == "fp32" else list(BACKENDS)  # the others take 16 bits only
    return [
        Cell("core", kind, n, r, precision, who)
        for r in setting.projected_lengths
        for n in lengths
        for kind in ("forward", "backward")
        for who in ("triton", *backends)
    ]


def _projection(setting: Setting, lengths: Any, precision: str) -> list[Cell]:
    return [
        Cell("projection", kind, n, rows, precision, who)
        for rows in projection_rows(setting, precision)
        for n in lengths
        for kind in ("forward", "backward")
        for who in ("triton", "matmul")
    ]
