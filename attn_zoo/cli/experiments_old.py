"""What ``attn-zoo measure`` can be told: one dataclass an experiment, its fields the keys, their metadata the help."""

from __future__ import annotations

from dataclasses import dataclass, field


def _help(words: str) -> dict[str, str]:
    return {"help": words}


@dataclass
class LinformerKernels:
    """Our Triton kernels of Linformer on a GPU: results against float64, then times against the machine's floor and PyTorch.

    Stops after so many seconds; the same command with the same output goes on from there, under other limits if wanted. Ends
    with status 1 if it was stopped or a result is wrong. With device=interpreter results only, of small sizes, on a CPU.
    """

    device: str = field(default="cuda", metadata=_help("cuda, or interpreter, which needs no GPU and measures no times"))
    lengths: list[int] | None = field(default=None, metadata=_help("n (cuda: 512, 4096, 16384, 65536)"))
    projected_lengths: list[int] | None = field(default=None, metadata=_help("r, projected keys (cuda: 128, 256)"))
    dim: int | None = field(default=None, metadata=_help("width (cuda: 768)"))
    heads: int | None = field(default=None, metadata=_help("heads (cuda: 12)"))
    tokens: int | None = field(default=None, metadata=_help("tokens of a step, a batch of tokens // n (cuda: 65536)"))
    precision: str | None = field(default=None, metadata=_help("fp32, bf16 or fp16 (cuda: bf16)"))
    spot_precisions: list[str] | None = field(
        default=None, metadata=_help("timed at the length nearest to 4096 only (cuda: fp16, fp32)")
    )
    sharing: str = field(default="headwise", metadata=_help("of the layer: headwise (E and F differ) or key_value (E is F)"))
    rounds: int = field(default=2, metadata=_help("rounds of each timing"))
    repeat_seconds: float = field(default=0.1, metadata=_help("a round repeats its step until so many seconds are covered"))
    seconds: float = field(default=540.0, metadata=_help("the whole measurement, which then stops and can be gone on with"))
    time_limit: float = field(default=60.0, metadata=_help("seconds that one request to a process may take"))
    workers: int | None = field(default=None, metadata=_help("processes that check results at the same time (cuda: 8)"))
    output: str | None = field(default=None, metadata=_help("also write the figures to this JSON file, after each of them"))


EXPERIMENTS: dict[str, type] = {
    "linformer_kernels": LinformerKernels,
}
"""Experiments by name; the first is the default."""
