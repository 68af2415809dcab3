"""The processes that do one run together: what they agree on, tell each other and add up.

Between two meetings each works alone, and every meeting begins with ``agree``, which looks the same everywhere. One that fails
anywhere comes to the others' next ``agree`` and tells them, so that all end with the same record and none waits for ever.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from attn_zoo.contract import Batch
from attn_zoo.records import Status

_SHARDING = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM")


class LostProcessError(ConnectionError):
    """Another process of the run ended or cannot be reached; the run is no record and can be done again."""


class ElsewhereError(RuntimeError):
    """The run went wrong in another process, with this status and reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Agreed(NamedTuple):
    """What holds for all processes."""

    stop: int
    """Number of a signal that asked any of them to stop; 0 for none."""
    spent: float
    """Share of the budget's time that is over by the main process's clock."""
    save: bool
    """The main process finds a checkpoint due."""


def started_together() -> int:
    """How many processes a launcher such as torchrun says it started, before any of them has met another."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def speaks() -> bool:
    """Whether this process is the one that prints, before any has met another."""
    return started_together() == 1 or int(os.environ.get("RANK", "0")) == 0


class Processes:
    """Those of this run, as accelerate found them: ``count`` of them, this one at ``index``, the main one at 0."""

    def __init__(self) -> None:
        state = PartialState()
        self.count, self.index, self.device = state.num_processes, state.process_index, state.device
        self.is_main = self.index == 0

    @classmethod
    def join(cls, device: str) -> Processes:
        """Meet the others that a launcher started, for runs on ``device``; alone where it started none.

        Raises:
            ValueError: the launcher shards models, or an earlier run of these processes was on another kind of device.
        """
        for name in _SHARDING:
            if os.environ.get(name, "").lower() in ("1", "true"):
                raise ValueError(f"each process keeps the whole model, but {name} asks accelerate to shard it; launch without it")
        state = PartialState(cpu=device == "cpu")
        if state.device.type != device:
            if state.num_processes > 1:
                raise ValueError(
                    f"these {state.num_processes} processes met for {state.device.type}; launch the runs on {device} apart"
                )
            AcceleratorState._reset_state(reset_partial_state=True)  # one process alone may change over
            state = PartialState(cpu=device == "cpu")
        if state.num_processes > 1:
            atexit.unregister(_part)  # registered by the run before
            atexit.register(_part)
        return cls()

    def check_batch(self, batch_size: int) -> None:
        """Refuse a batch that leaves a process without an example.

        Raises:
            ValueError: it is smaller than the number of processes.
        """
        if batch_size < self.count:
            raise ValueError(
                f"a batch of {batch_size} examples (budget.batch_size is that of all processes together) leaves some of "
                f"{self.count} processes without any; start fewer processes or raise it"
            )

    def agree(self, *, stop: int = 0, spent: float = 0.0, save: bool = False) -> Agreed:
        """Come together and learn what holds for all.

        Raises:
            ElsewhereError: the run went wrong in another process.
            LostProcessError: another process is gone.
        """
        if self.count == 1:
            return Agreed(stop, spent, save)
        failed, *heard = self._meet([0, stop, self.is_main and spent, self.is_main and save])
        if failed:
            raise ElsewhereError(*self._trouble(None))
        return Agreed(int(heard[0]), heard[1], bool(heard[2]))

    def tell(self, status: Status, reason: str) -> tuple[Status, str]:
        """Say that the run went wrong here, to all at their next ``agree``; what is recorded of it.

        Raises:
            LostProcessError: another process is gone.
        """
        if self.count == 1:
            return status, reason
        self._meet([1, 0, 0, 0])
        return self._trouble((status, reason))

    def share(self, value: Any) -> Any:
        """What the main process gives; the others' own is ignored."""
        if self.count == 1:
            return value
        held = [value]
        with _at_hand():
            dist.broadcast_object_list(held, src=0)
        return held[0]

    def gather(self, value: Any) -> list[Any]:
        """What each gives, in their order."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        with _at_hand():
            dist.all_gather_object(found, value)
        return found

    def part(self, batch: Batch) -> Batch:
        """This process's part of a batch, as long as the others' up to one example."""
        if self.count == 1:
            return batch
        examples = len(batch.labels)
        mine = slice(examples * self.index // self.count, examples * (self.index + 1) // self.count)
        return Batch(batch.inputs[mine], None if batch.valid is None else batch.valid[mine], batch.labels[mine])

    def sum_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Replace each gradient by its sum over the processes, where any has one; the sum of the losses.

        All gradients go in one message, made before the processes agree that each has got so far.
        """
        if self.count == 1:
            return loss
        given = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        present = torch.tensor([float(p.grad is not None) for p in parameters], device=self.device)
        message = torch.cat([loss.detach().reshape(1), present, *(g.reshape(-1) for g in given)])
        self.agree()
        with _at_hand():
            dist.all_reduce(message)
        total, present, gradients = message.split([1, len(parameters), message.numel() - 1 - len(parameters)])
        parts = gradients.split([p.numel() for p in parameters])
        for parameter, own, part, some in zip(parameters, given, parts, present.tolist(), strict=True):
            if some:
                parameter.grad = own.copy_(part.view_as(own))
        return total[0]

    def alike(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all processes hold the same, up to rounding."""
        if self.count == 1:
            return True
        flat = torch.cat([torch.zeros(1, device=self.device), *(t.detach().reshape(-1).to(torch.float64) for t in tensors)])
        both = torch.stack([flat, -flat])
        self.agree()
        with _at_hand():
            dist.all_reduce(both, dist.ReduceOp.MAX)
        return bool(torch.isclose(both[0], -both[1], rtol=1e-5, atol=1e-7).all())

    def send(self, tensors: dict[str, Tensor], names: Iterable[tuple[str, list[int], str]]) -> dict[str, Tensor]:
        """The main process's tensors by name, on the CPU; ``names`` with shapes and dtypes are known to all."""
        if self.count == 1:
            return tensors
        sent = {}
        for name, shape, dtype in names:
            tensor = tensors[name] if self.is_main else torch.empty(shape, dtype=getattr(torch, dtype))
            carried = tensor.to(self.device)
            with _at_hand():
                dist.broadcast(carried, src=0)
            sent[name] = carried.cpu()
        return sent

    def _meet(self, said: Sequence[float]) -> list[float]:
        """The highest of what each says, number by number."""
        numbers = torch.tensor([float(number) for number in said], device=self.device)
        with _at_hand():
            dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return numbers.tolist()

    def _trouble(self, own: tuple[Status, str] | None) -> tuple[Status, str]:
        """That of the first process that has any; where not all have the same, with its number."""
        told = self.gather(own)
        at, (status, reason) = next((at, trouble) for at, trouble in enumerate(told) if trouble is not None)
        return status, reason if all(trouble == told[at] for trouble in told) else f"{reason} (process {at} of {self.count})"


@contextmanager
def _at_hand() -> Iterator[None]:
    """Says in a sentence what a broken connection means."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            f"another process of this run is gone ({str(error).splitlines()[0]}); nothing was recorded of the run, and the same "
            "command does it again, from its last checkpoint where it has one"
        ) from error


def _part() -> None:
    """Leave the others at the end of the process, as PyTorch wants it."""
    if dist.is_initialized():
        dist.destroy_process_group()
