"""Requirements that a user has for an attention layer."""

from __future__ import annotations

from dataclasses import dataclass

from attn_zoo.checks import check_whole
from attn_zoo.contract import Geometry, UnknownNameError
from attn_zoo.leaderboard.advise.abilities import ACCEPT
from attn_zoo.leaderboard.advise.needs import NEEDS, Need
from attn_zoo.leaderboard.heat_costs import byte_count

_NEEDS = {need.name: need for need in NEEDS}
DIRECTIONS = {"forward": "a forward pass", "training": "a forward and backward pass"}
"""Passes whose cost is counted (``forward``, ``training``), with descriptions."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements on an attention layer that is used at one length.

    Error messages name the options of ``attn-zoo recommend``, such as ``--width``.

    Raises:
        UnknownNameError: the use case is unknown.
        ValueError: a size is out of its range, or two requirements exclude each other.
    """

    length: int
    width: int = 256
    heads: int = 4
    batch: int = 1
    device: str = "cpu"
    """Type of device, ``cpu`` or ``cuda``."""
    direction: str = "forward"
    """Passes whose cost is counted, a key of ``DIRECTIONS``."""
    causal: bool = False
    padding: bool = False
    cross: bool = False
    """True for cross-attention, whose keys come from another sequence of the same length."""
    decode: bool = False
    """True for generation token by token from a state smaller than softmax's keys and values."""
    trained: bool = False
    """True for a model that was trained with softmax and gets the mechanism afterwards."""
    memory: int | None = None
    """Limit in bytes on the tensors that training saves for the backward pass or, with ``decode``, on the recurrent state."""
    use: str | None = None
    """Name of the use case (one of ``NEEDS``) on whose tasks the recommendation is based. None for all recorded tasks of the
    required direction."""
    task: str | None = None
    """Name of the only task on which the recommendation is based; None for several."""
    accept: float = ACCEPT
    """Largest acceptable loss against softmax, in points for percentage metrics, else in per cent of softmax's score."""

    def __post_init__(self) -> None:
        for name in ("length", "width", "heads", "batch"):
            check_whole(f"--{name}", getattr(self, name))
        if self.width % self.heads:
            raise ValueError(f"--width must be divisible by --heads; got --width {self.width} --heads {self.heads}")
        if not 0 <= self.accept < 100:
            raise ValueError(f"--accept must be a loss of at least 0 and less than 100 points; got {self.accept:g}")
        if self.memory is not None and not (self.decode or self.direction == "training"):
            raise ValueError(
                "--memory must go with --direction training or --decode, because it limits the memory of training or of "
                "generation. Add one of the two"
            )
        if self.reads_past and self.cross:
            raise ValueError(
                "--cross cannot be combined with --causal or --decode, because its keys come from another sequence. Leave "
                "--cross or the others out"
            )
        if self.decode and self.direction == "training":
            raise ValueError(
                "--decode cannot be combined with --direction training, because generation has no backward pass. Leave one "
                "of them out"
            )
        choosing = {"--trained": self.trained, "--for": self.use, "--task": self.task}
        if len(chosen := [name for name, given in choosing.items() if given]) > 1:
            raise ValueError(
                f"{' and '.join(chosen)} cannot be given together, because each of them chooses the deciding tasks. Give only one"
            )
        self._check_use()

    def _check_use(self) -> None:
        if self.use is None:
            return
        if self.use not in _NEEDS:
            raise UnknownNameError("use case", self.use, _NEEDS)
        need = _NEEDS[self.use]
        if need.small_state and not self.decode:
            raise ValueError(
                f"--for {self.use} must go with --decode, because its mechanisms are compared by the size of their recurrent "
                "state. Add --decode"
            )
        if self.reads_past not in need.directions:
            given = " and ".join(f"--{name}" for name in ("causal", "decode") if getattr(self, name))
            read, remedy = ("bidirectional", f"Leave out {given}") if given else ("causal", "Add --causal")
            raise ValueError(f"the tasks of --for {self.use} are {read}. {remedy}")

    @property
    def reads_past(self) -> bool:
        """True if the layer must be causal. Generation (``decode``) is always causal."""
        return self.causal or self.decode

    @property
    def geometry(self) -> Geometry:
        """Sizes and direction for which the mechanism of the layer is built."""
        return Geometry(self.heads, self.width // self.heads, self.length, self.length, self.reads_past)

    def need(self, recorded: dict[str, str]) -> Need:
        """Return the use case (``Need``) on whose tasks the recommendation is based. If the user named no use case, the
        returned use case has the named task or, if no task was named, all recorded tasks.

        Args:
            recorded: title of each recorded task of the required direction (causal or bidirectional), by the task's name.

        Raises:
            ValueError: the task that the user named has no records in this direction.
        """
        if self.use is not None:
            return _NEEDS[self.use]
        if self.task is not None and self.task not in recorded:
            read = "causal" if self.reads_past else "bidirectional"
            only = ", ".join(sorted(recorded)) or "none"
            raise ValueError(
                f"there are no {read} records of --task {self.task}. Run this task, or name a task with {read} records: {only}"
            )
        names = [self.task] if self.task else sorted(recorded)
        why = (
            "named with --task" if self.task else f"every recorded {'causal' if self.reads_past else 'bidirectional'} task decides"
        )
        return Need(title="Tasks", tasks={(name, self.reads_past): why for name in names}, small_state=self.decode, name="tasks")

    def describe(self) -> str:
        """Return the requirements as one line of text."""
        wanted = [name for name in ("causal", "padding", "cross", "decode", "trained") if getattr(self, name)]
        limit = [] if self.memory is None else [f"at most {byte_count(self.memory)}"]
        sizes = [f"{self.length:,} tokens", f"width {self.width}", f"{self.heads} heads", f"batch {self.batch}"]
        return ", ".join([*sizes, DIRECTIONS[self.direction], f"on {self.device}", *wanted, *limit])
