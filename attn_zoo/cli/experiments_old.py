"""What ``attn-zoo measure`` can be told: one dataclass an experiment, its fields the keys, their metadata the help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attn_zoo.cost.peers.rivals import RIVALS


def _help(words: str) -> dict[str, str]:
    return {"help": words}


@dataclass
class StepCost:
    """Time, throughput, memory and energy of a step of each mechanism at a level: alone, in a layer, a block, a whole model.

    The same command with the same output goes on where it was stopped. What is null has the default of its level.
    """

    level: str = field(default="layer", metadata=_help("mechanism, layer, block (with optimiser) or model (with optimiser)"))
    attentions: list[str] = field(
        default_factory=lambda: ["softmax", "linformer", "performer", "longformer", "reformer"],
        metadata=_help("NAME (auto) or NAME:IMPLEMENTATION"),
    )
    set: dict[str, Any] = field(
        default_factory=dict, metadata=_help("options: set.ATTENTION.OPTION=VALUE, such as set.linformer.projected_length=256")
    )
    lengths: list[int] = field(
        default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], metadata=_help("lengths")
    )
    device: str = field(default="auto", metadata=_help("auto, cpu or cuda; auto is cuda where there is one"))
    precision: str = field(default="fp32", metadata=_help("fp32, bf16 or fp16, of weights and inputs"))
    dim: int | None = field(default=None, metadata=_help("width (256; model: of the task's level)"))
    heads: int | None = field(default=None, metadata=_help("heads (4; model: of the task's level)"))
    mlp_ratio: float | None = field(default=None, metadata=_help("of block and model (2; model: of the task's level)"))
    depth: int | None = field(default=None, metadata=_help("blocks of a model (of the task's level)"))
    task: str | None = field(default=None, metadata=_help("whose model, of sequences (listops)"))
    task_level: str | None = field(default=None, metadata=_help("of the sizes that the task proposes (the first)"))
    memory_gib: float = field(default=16.0, metadata=_help("budget within which the largest batch is sought"))
    batch_seconds: float = field(default=5.0, metadata=_help("no larger batch is tried where a step would take longer"))
    rounds: int = field(default=5, metadata=_help("interleaved rounds of timing"))
    order: str = field(default="shuffled", metadata=_help("of the rounds: shuffled, 'in turn' or 'there and back'"))
    seed: int = field(default=1, metadata=_help("of the shuffled order"))
    repeat_seconds: float = field(default=0.2, metadata=_help("a timing repeats its step until so many seconds are covered"))
    energy_seconds: float = field(default=2.0, metadata=_help("so does an energy window, where there is a meter"))
    allocator: str = field(default="default", metadata=_help("glibc's on the CPU: default, keep (no page faults on large tensors)"))
    time_limit: float = field(default=120.0, metadata=_help("seconds that one request to a point's process may take"))
    output: str | None = field(default=None, metadata=_help("also write the figures to this JSON file, point by point"))


@dataclass
class CountedCost:
    """FLOPs, parameters and state bytes by formula, held against PyTorch's counters, and the activation bytes that it counts."""

    level: str = field(default="mechanism", metadata=_help("mechanism, layer (with its projections) or block (with its MLP)"))
    attentions: list[str] = field(
        default_factory=lambda: ["softmax", "linformer", "performer", "longformer", "reformer"],
        metadata=_help("NAME (auto) or NAME:IMPLEMENTATION"),
    )
    set: dict[str, Any] = field(
        default_factory=dict, metadata=_help("options: set.ATTENTION.OPTION=VALUE, such as set.linformer.projected_length=256")
    )
    lengths: list[int] = field(
        default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], metadata=_help("lengths")
    )
    dim: int = field(default=256, metadata=_help("width"))
    heads: int = field(default=4, metadata=_help("heads"))
    causal: bool = field(default=False, metadata=_help("position i sees positions up to i only; then there is a state"))
    mlp_ratio: float = field(default=2.0, metadata=_help("width of a block's MLP over dim"))
    output: str | None = field(default=None, metadata=_help("also write the figures to this JSON file"))


@dataclass
class Launches:
    """Kernels that plain PyTorch forms (eager) launch on a GPU at three lengths, counted on shapes."""

    attentions: list[str] = field(default_factory=list, metadata=_help("NAME of each; all where there is none"))
    output: str | None = field(default=None, metadata=_help("also write the figures to this JSON file"))


@dataclass
class LinformerTable3:
    """Table 3 of the Linformer paper on this machine: time and memory saved against softmax, materialised and fused.

    On CUDA the paper's grid; on a CPU one that ends in minutes. What is null is that of the device.
    """

    device: str = field(default="auto", metadata=_help("auto, cpu or cuda; auto is cuda where there is one"))
    lengths: list[int] | None = field(default=None, metadata=_help("n (cuda: 512 to 65536, cpu: 512 to 8192)"))
    projected_lengths: list[int] | None = field(
        default=None, metadata=_help("k, compared where below n (cuda: 128 to 2048, cpu: 128 to 512)")
    )
    dim: int | None = field(default=None, metadata=_help("width of the layer (cuda: 768, cpu: 256)"))
    heads: int | None = field(default=None, metadata=_help("heads (cuda: 12, cpu: 4)"))
    precision: str | None = field(default=None, metadata=_help("fp32, bf16 or fp16 (cuda: bf16, cpu: fp32)"))
    tokens: int | None = field(
        default=None, metadata=_help("tokens of a timed step, a batch of tokens // n (cuda: 65536, cpu: 8192)")
    )
    sharing: str = field(default="layerwise", metadata=_help("sharing of Linformer's projections"))
    implementation: str = field(
        default="auto", metadata=_help("of Linformer; auto is triton, sdpa or eager, the first that the device and k allow")
    )
    memory_gib: float = field(default=16.0, metadata=_help("budget within which the largest batch is sought"))
    rounds: int = field(default=5, metadata=_help("interleaved rounds of timing"))
    repeat_seconds: float = field(default=0.2, metadata=_help("a timing repeats its step until so many seconds are covered"))
    time_limit: float = field(default=300.0, metadata=_help("seconds that one request to a cell's process may take"))
    output: str | None = field(default=None, metadata=_help("also write the figures to this JSON file, after each length"))


@dataclass
class Peers:
    """Our layers against those of public packages (extra: peers) on the CPU, with the arithmetic floor and full attention.

    Packages that are not installed are named and left out. The same command with the same output goes on where it was stopped.
    """

    mechanisms: list[str] = field(default_factory=lambda: list(RIVALS), metadata=_help("which rivals"))
    lengths: list[int] = field(default_factory=lambda: [4096, 16384], metadata=_help("lengths"))
    tokens: int = field(default=8192, metadata=_help("a batch holds max(1, tokens // length) sequences"))
    dim: int = field(default=256, metadata=_help("width of the layer"))
    heads: int = field(default=4, metadata=_help("heads"))
    sizes: dict[str, int] = field(
        default_factory=dict,
        metadata=_help(
            "dials of both sides, sizes.MECHANISM=VALUE ("
            + "; ".join(f"{name}={rival.size}: {rival.dial}" for name, rival in RIVALS.items() if rival.size)
            + ")"
        ),
    )
    allocators: list[str] = field(
        default_factory=lambda: ["default"],
        metadata=_help("settings of glibc's allocator: default, keep (no page faults on large tensors)"),
    )
    rounds: int = field(default=5, metadata=_help("shuffled rounds of timing"))
    repeat_seconds: float = field(default=0.2, metadata=_help("a timing repeats its step until so many seconds are covered"))
    seed: int = field(default=1, metadata=_help("of the order within the rounds"))
    time_limit: float = field(default=120.0, metadata=_help("seconds that one request to a process may take"))
    output: str | None = field(default=None, metadata=_help("also write the figures to this JSON file, after each round"))


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


@dataclass
class Honesty:
    """Whether timings can be believed here: the same layer twice must tie, and a tenth more be found, in 95 of 100 repeats.

    Ends with status 1 where they do not.
    """

    layer: str = field(default="softmax", metadata=_help("NAME (auto) or NAME:IMPLEMENTATION"))
    length: int = field(default=64, metadata=_help("length"))
    dim: int = field(default=64, metadata=_help("width of the layer"))
    heads: int = field(default=4, metadata=_help("heads"))
    repeats: int = field(default=100, metadata=_help("comparisons of each kind"))
    rounds: int = field(default=150, metadata=_help("interleaved rounds of a comparison"))
    steps: int = field(default=3, metadata=_help("timed steps of a visit, of which the fastest counts"))
    fresh_every: int = field(default=10, metadata=_help("repeats after which the processes are started anew"))
    smallest_difference: float = field(default=0.02, metadata=_help("a difference that is not surely larger is a tie"))
    time_limit: float = field(default=60.0, metadata=_help("seconds that one visit may take"))
    seed: int = field(default=1, metadata=_help("of the order within the rounds"))
    output: str | None = field(default=None, metadata=_help("also write the figures to this JSON file, after each repeat"))


EXPERIMENTS: dict[str, type] = {
    "counted": CountedCost,
    "launches": Launches,
    "cost": StepCost,
    "linformer_table3": LinformerTable3,
    "linformer_kernels": LinformerKernels,
    "peers": Peers,
    "honesty": Honesty,
}
"""Experiments by name; the first is the default."""
