"""What a measurement of steps covers: level, mechanisms, lengths, sizes and limits; refused here where it makes no sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_zoo.contract import Patches, TaskSpec, UnknownNameError, UnsupportedError, unavailable
from attn_zoo.cost.bench import PRECISIONS, Subject
from attn_zoo.cost.levels import LEVELS, Rig, Sizes, rig_for
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.registry import build_task, card, task_card

KINDS = ("forward", "training")

SIZES = Sizes(dim=256, heads=4, depth=2, mlp_ratio=2.0)
"""Unless said, or given by the task's level at ``level=model``."""

DEFAULT_TASK = "listops"
"""Whose network ``level=model`` measures unless said."""

READ_AT: Mapping[str, tuple[str, ...]] = {
    "task": ("model",),
    "task_level": ("model",),
    "depth": ("model",),
    "mlp_ratio": ("block", "model"),
}
"""Levels that have a use for a key; at the others it is refused."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured and how.

    Raises:
        UnknownNameError: no such level.
        ValueError: a value breaks its rule, an implementation cannot run on the device, or no mechanism can be built at all.
    """

    level: str
    subjects: Mapping[str, Subject]
    """By the label that they have in tables."""
    lengths: tuple[int, ...]
    sizes: Sizes
    precision: str
    memory_bytes: int
    """Budget within which the largest batch is sought."""
    batch_seconds: float
    """No larger batch is tried for the best throughput where its step would take longer than this."""
    time_limit: float
    """Seconds that one request to a point's process may take."""
    protocol: TimingProtocol
    task: str | None = None
    task_spec: TaskSpec | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UnknownNameError("level of experiment=cost", self.level, LEVELS)
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        sizes = self.sizes
        if sizes.heads < 1 or sizes.dim < 1 or sizes.dim % sizes.heads:
            raise ValueError(f"dim must be divisible by heads, both at least 1; got dim={sizes.dim} and heads={sizes.heads}")
        if sizes.depth < 1 or sizes.mlp_ratio <= 0:
            raise ValueError(f"depth must be at least 1 and mlp_ratio above 0; got {sizes.depth} and {sizes.mlp_ratio}")
        if not self.lengths or min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise ValueError(f"lengths are different whole numbers of at least 1; got {list(self.lengths)}")
        for name, unit in (("memory_bytes", "memory_gib"), ("batch_seconds", "batch_seconds"), ("time_limit", "time_limit")):
            if getattr(self, name) <= 0:
                raise ValueError(f"{unit} must be above 0; got {getattr(self, name)}")
        for subject in self.subjects.values():
            if reason := unavailable(subject.implementation, self.device, PRECISIONS[self.precision]):
                known = ", ".join(card(subject.attention).implementations)
                raise ValueError(f"{subject.attention}:{subject.implementation} cannot run: {reason}; choose another of {known}")

    @property
    def device(self) -> torch.device:
        """Where the steps run."""
        return torch.device("cuda", 0) if self.protocol.device == "cuda" else torch.device("cpu")

    def rig(self, subject: Subject) -> Rig:
        """A subject at this level."""
        return rig_for(self.level, subject, self.sizes, self.task_spec)

    def refusals(self) -> dict[tuple[str, int], str]:
        """Why a subject, by its label, cannot be built at a length; found on the meta device, where nothing is computed.

        Raises:
            ValueError: none can be built at any length.
        """
        cells = [(label, n) for label in self.subjects for n in self.lengths]
        found = {cell: why for cell in cells if (why := self._refusal(self.subjects[cell[0]], cell[1]))}
        if len(found) == len(cells):
            raise ValueError(f"none of {', '.join(self.subjects)} can be built: {next(iter(found.values()))}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the protocol, which stands for itself."""
        plain = asdict(self)
        return {name: value for name, value in plain.items() if name not in ("protocol", "subjects")} | {
            "subjects": {label: asdict(subject) for label, subject in self.subjects.items()},
        }

    def _refusal(self, subject: Subject, length: int) -> str | None:
        try:
            with torch.device("meta"):
                self.rig(subject).build(length)
        except (ValueError, UnsupportedError) as error:
            return str(error)
        return None


def resolve_setting(given: Mapping[str, Any], subjects: Mapping[str, Subject]) -> Setting:
    """The setting that ``given`` means; ``device=auto`` is CUDA where there is one.

    Raises:
        UnknownNameError, ValueError: as ``Setting``; or there is no such device, task or level of a task.
    """
    level = given["level"]
    for name, levels in READ_AT.items():
        if given[name] is not None and level in LEVELS and level not in levels:
            raise ValueError(f"{name} has a meaning at level={' or '.join(levels)} only; leave it out at level={level}")
    device = resolve_device(given["device"])
    spec, sizes = _task(given) if level == "model" else (None, asdict(SIZES))
    sizes |= {name: given[name] for name in ("dim", "heads", "depth", "mlp_ratio") if given[name] is not None}
    names = ("rounds", "order", "seed", "allocator", "energy_seconds")
    setting = Setting(
        level=level,
        subjects=subjects,
        lengths=tuple(given["lengths"]),
        sizes=Sizes(**sizes),
        precision=given["precision"],
        memory_bytes=int(given["memory_gib"] * 2**30),
        batch_seconds=given["batch_seconds"],
        time_limit=given["time_limit"],
        protocol=TimingProtocol.on(device, seconds=given["repeat_seconds"], **{name: given[name] for name in names}),
        task=None if spec is None else given["task"] or DEFAULT_TASK,
        task_spec=spec,
    )
    setting.refusals()
    return setting


def resolve_device(name: str) -> str:
    """``cpu`` or ``cuda``; ``auto`` is CUDA where there is one.

    Raises:
        ValueError: another name, or CUDA where PyTorch finds none.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device is auto, cpu or cuda; got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda needs a GPU that PyTorch finds, and here it finds none; take device=cpu or auto")
    return name


def _task(given: Mapping[str, Any]) -> tuple[TaskSpec, dict[str, Any]]:
    """What the task's model is built for, and the sizes that its level proposes."""
    entry = task_card(given["task"] or DEFAULT_TASK)
    name = given["task_level"] or next(iter(entry.levels), None)
    if name is not None and name not in entry.levels:
        raise UnknownNameError(f"level of task {entry.name}", name, entry.levels)
    level = entry.levels[name] if name is not None else None
    spec = build_task(entry.name, **({} if level is None else level.options)).spec
    if isinstance(spec.inputs, Patches):
        raise ValueError(f"level=model is measured over lengths, and images, which {entry.name} reads, have one; take another task")
    proposed = {} if level is None else {key: value for key, value in level.model.items() if key in asdict(SIZES)}
    return spec, asdict(SIZES) | proposed
