"""Collective operations of the processes that do one run together.

Every collective operation begins with ``agree``, the same call in all processes. A process that fails anywhere joins the next
``agree`` of the others and reports its failure there, so that all end with the same record and none waits for ever.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported before a process group exists: see _disconnect
from accelerate import PartialState
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from attn_zoo.contract import Batch
from attn_zoo.records import Status

_SHARDING = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM")


class LostProcessError(ConnectionError):
    """Another process of the run ended or cannot be reached; the run has no record and can be repeated."""


class ElsewhereError(RuntimeError):
    """Failure of the run in another process, with its status and reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Agreed(NamedTuple):
    """Values that all processes agreed on."""

    stop: int
    """Number of the signal that stops any of them; 0 for none."""
    spent: float
    """Elapsed share of the time budget, by the main process's clock."""
    save: bool
    """True if a checkpoint is due in the main process."""


def started_together() -> int:
    """Number of processes that a launcher such as torchrun started, from its environment variable, before they connect."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def speaks() -> bool:
    """Return whether this process is the one that prints, before the processes connect."""
    return started_together() == 1 or int(os.environ.get("RANK", "0")) == 0


class Processes:
    """Process group of this run, from accelerate: ``count`` processes, this one at ``index``, the main one at 0.

    Every method that communicates raises ``LostProcessError`` if another process ended or cannot be reached.
    """

    def __init__(self) -> None:
        state = PartialState()
        self.count, self.index, self.device = state.num_processes, state.process_index, state.device
        self.is_main = self.index == 0

    @classmethod
    def join(cls, device: str) -> Processes:
        """Connect to the other processes of the launcher, for runs on ``device``; a single process stays alone.

        Raises:
            ValueError: the launcher shards models, or an earlier run of these processes was on another type of device.
        """
        for name in _SHARDING:
            if os.environ.get(name, "").lower() in ("1", "true"):
                raise ValueError(f"each process keeps the whole model, but {name} asks accelerate to shard it; launch without it")
        state = PartialState(cpu=device == "cpu")
        if state.device.type != device:
            if state.num_processes > 1:
                raise ValueError(
                    f"these {state.num_processes} processes were launched for {state.device.type}; launch the runs on {device} "
                    "separately"
                )
            AcceleratorState._reset_state(reset_partial_state=True)  # a single process may change its device
            state = PartialState(cpu=device == "cpu")
        if state.num_processes > 1:
            atexit.unregister(_disconnect)  # registered by an earlier run
            atexit.register(_disconnect)
        return cls()

    def check_batch(self, batch_size: int) -> None:
        """Refuse a batch that leaves a process without an example.

        Raises:
            ValueError: the batch is smaller than the number of processes.
        """
        if batch_size < self.count:
            raise ValueError(
                f"a batch of {batch_size} examples (budget.batch_size counts those of all processes together) leaves some of "
                f"{self.count} processes without any; start fewer processes or raise budget.batch_size"
            )

    def agree(self, *, stop: int = 0, spent: float = 0.0, save: bool = False) -> Agreed:
        """Synchronise all processes, and return the values that hold for all.

        Raises:
            ElsewhereError: the run failed in another process.
            LostProcessError: another process ended or cannot be reached.
        """
        if self.count == 1:
            return Agreed(stop, spent, save)
        failed, *agreed = self._maximum([0, stop, self.is_main and spent, self.is_main and save])
        if failed:
            raise ElsewhereError(*self._first_failure(None))
        return Agreed(int(agreed[0]), agreed[1], bool(agreed[2]))

    def tell(self, status: Status, reason: str) -> tuple[Status, str]:
        """Report a failure of this process to all others at their next ``agree``; return the status and reason to record.

        Raises:
            LostProcessError: another process ended or cannot be reached.
        """
        if self.count == 1:
            return status, reason
        self._maximum([1, 0, 0, 0])
        return self._first_failure((status, reason))

    def share(self, value: Any) -> Any:
        """Broadcast the main process's value, and return it in every process; the other values are ignored."""
        if self.count == 1:
            return value
        held = [value]
        with _connected():
            dist.broadcast_object_list(held, src=0)
        return held[0]

    def gather(self, value: Any) -> list[Any]:
        """Gather the values of all processes, in the order of their indices; every process gets all."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with _connected():
            dist.all_gather_object(values, value)
        return values

    def part(self, batch: Batch) -> Batch:
        """Part of a batch that this process computes; the parts differ by at most one example."""
        if self.count == 1:
            return batch
        examples = len(batch.labels)
        mine = slice(examples * self.index // self.count, examples * (self.index + 1) // self.count)
        return Batch(batch.inputs[mine], None if batch.valid is None else batch.valid[mine], batch.labels[mine])

    def sum_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Replace each gradient by its sum over the processes that have one; return the sum of the losses.

        All gradients travel in one message, built before ``agree``, so that a failure to build it is reported there.
        """
        if self.count == 1:
            return loss
        given = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        present = torch.tensor([float(p.grad is not None) for p in parameters], device=self.device)
        message = torch.cat([loss.detach().reshape(1), present, *(g.reshape(-1) for g in given)])
        self.agree()
        with _connected():
            dist.all_reduce(message)
        total, present, gradients = message.split([1, len(parameters), message.numel() - 1 - len(parameters)])
        parts = gradients.split([p.numel() for p in parameters])
        for parameter, own, part, some in zip(parameters, given, parts, present.tolist(), strict=True):
            if some:
                parameter.grad = own.copy_(part.view_as(own))
        return total[0]

    def alike(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether the tensors are equal in all processes, up to rounding."""
        if self.count == 1:
            return True
        flat = torch.cat([torch.zeros(1, device=self.device), *(t.detach().reshape(-1).to(torch.float64) for t in tensors)])
        both = torch.stack([flat, -flat])
        self.agree()
        with _connected():
            dist.all_reduce(both, dist.ReduceOp.MAX)
        return bool(torch.isclose(both[0], -both[1], rtol=1e-5, atol=1e-7).all())

    def send(self, tensors: dict[str, Tensor], names: Iterable[tuple[str, list[int], str]]) -> dict[str, Tensor]:
        """Broadcast the main process's tensors; return them by name, on the CPU.

        Args:
            names: name, shape and dtype of each tensor, equal in all processes.
        """
        if self.count == 1:
            return tensors
        sent = {}
        for name, shape, dtype in names:
            tensor = tensors[name] if self.is_main else torch.empty(shape, dtype=getattr(torch, dtype))
            carried = tensor.to(self.device)
            with _connected():
                dist.broadcast(carried, src=0)
            sent[name] = carried.cpu()
        return sent

    def _maximum(self, values: Sequence[float]) -> list[float]:
        """Elementwise maximum over the processes."""
        numbers = torch.tensor([float(value) for value in values], device=self.device)
        with _connected():
            dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return numbers.tolist()

    def _first_failure(self, own: tuple[Status, str] | None) -> tuple[Status, str]:
        """Failure of the first process that has one, with the index of that process unless all have the same."""
        failures = self.gather(own)
        at, (status, reason) = next((at, failure) for at, failure in enumerate(failures) if failure is not None)
        alike = all(failure == failures[at] for failure in failures)
        return status, reason if alike else f"{reason} (process {at} of {self.count})"


@contextmanager
def _connected() -> Iterator[None]:
    """Context that converts connection errors to ``LostProcessError``."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            f"another process of this run has ended ({str(error).splitlines()[0]}), so the run was not recorded; the same command "
            "repeats it, from its last checkpoint if there is one"
        ) from error


def _disconnect() -> None:
    """Destroy the process group before the process ends, as PyTorch requires.

    If ``torch.distributed.nn.functional`` is imported after the group exists, as by torch._dynamo, it keeps the group as a default
    argument. The group and the threads of gloo then stay alive, and sometimes abort the process when the interpreter exits.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
