"""Calls of a function in several processes that join each other as under torchrun. A server forks the processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from forked import CONTEXT
from patience import HANG
from torch import Tensor


class Quiet:
    """Progress display that shows nothing."""

    def start(self, label: str, steps: int) -> None: ...
    def advance(self, step: int, loss: float, valid: float | None) -> None: ...
    def stop(self) -> None: ...


class CutShort(Quiet):
    """Progress display that ends the run after a step, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        if step == self.after:
            raise KeyboardInterrupt


class StepClock:
    """Substitute for the module ``time`` in the training loop: a step reads the clock before and after and so takes ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._reading = seconds, 0

    def perf_counter(self) -> float:
        self._reading += 1
        return self._seconds * self._reading


def meeting(count: int) -> list[dict[str, str]]:
    """Environment variables of each of ``count`` processes, by which it finds the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{name: str(value) for name, value in {**shared, "RANK": at, "LOCAL_RANK": at}.items()} for at in range(count)]


def together(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of ``function``, which must be importable from a module, in each of ``count`` processes."""
    ends, processes = [], []
    for environment in meeting(count):
        mine, told = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_work, args=(environment, function, arguments, told))
        process.start()
        told.close()
        ends.append(mine)
        processes.append(process)
    found = []
    for end in ends:
        assert end.poll(HANG), "processes wait for each other"
        found.append(end.recv())
    for process in processes:
        process.join(60)
    for result in found:
        if isinstance(result, _Failed):
            raise AssertionError(result.words)
    return found


def launched(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a launcher with its arguments as a module of this Python; one that hangs is terminated together with its processes."""
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            out, errors = launcher.communicate(timeout=HANG)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # the launcher passes SIGTERM on; a kill would leave its processes running
            raise
    return subprocess.CompletedProcess(command, launcher.returncode, out, errors)


class _Failed:
    def __init__(self, words: str) -> None:
        self.words = words


def _work(environment: Mapping[str, str], function: Callable[..., Any], arguments: Sequence[Any], told: Connection) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        told.send(function(*arguments))
    except BaseException:
        told.send(_Failed(traceback.format_exc()))


def do_runs(specs: Sequence[Any], folder: Path, by_process: bool = False) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Do these runs one after the other; return the record of each and, in the main process, its final weights.

    ``by_process`` makes the mistake of averaging the processes' mean losses regardless of how many answers each has.
    """
    from safetensors.torch import load_file

    from attn_zoo.runner import run, train
    from attn_zoo.runner.checkpoint import Checkpoint

    if by_process:

        def by_its_own_count(
            scores: Tensor, labels: Tensor, questions: int, criterion: Callable[[Tensor, Tensor], Tensor]
        ) -> Tensor:
            return criterion(scores, labels) / int(os.environ["WORLD_SIZE"])

        vars(train)["_loss"] = by_its_own_count
    found = []
    for at, spec in enumerate(specs):
        checkpoint = Checkpoint(folder, f"{at}-{os.environ['WORLD_SIZE']}", every=spec.budget.steps, minutes=0)
        record = run(spec, Quiet(), checkpoint=checkpoint)
        kept = load_file(checkpoint.path) if checkpoint.path.exists() and os.environ["RANK"] == "0" else {}
        weights = {name: tensor.numpy() for name, tensor in kept.items() if name.startswith("model.")}
        found.append((record.to_dict(), weights))
    return found


def go_wrong(kind: str, spec: Any) -> dict[str, Any]:
    """Record of a run in whose third training call the last process alone goes wrong, by ``kind``."""
    import math

    from attn_zoo import registry
    from attn_zoo.runner import run

    attention: Any = registry.card(spec.attention).build
    attend, calls = attention.attend, 0

    def troubled(self: Any, *request: Any) -> Tensor:
        nonlocal calls
        calls += self.training
        out = attend(self, *request)
        if int(os.environ["RANK"]) + 1 < int(os.environ["WORLD_SIZE"]) or calls < 3 * spec.model.depth:
            return out
        if kind == "raises":
            raise ZeroDivisionError("on purpose")
        return out + torch.empty(2**52).sum() if kind == "runs out of memory" else out * math.nan

    attention.attend = troubled
    return run(spec, Quiet()).to_dict()


def run_by_own_clock(spec: Any, step_seconds: Sequence[float]) -> dict[str, Any]:
    """Record of a run in which a step takes ``step_seconds`` by rank, on the clock of each process."""
    from attn_zoo.runner import run, train

    vars(train)["time"] = StepClock(step_seconds[int(os.environ["RANK"])])
    return run(spec, Quiet()).to_dict()


def train_with_dropout(spec: Any) -> list[Tensor]:
    """Output of a forward pass in training, with dropout, and the directions that Performer drew."""
    from accelerate import Accelerator

    from attn_zoo.encoder import build_paired_model
    from attn_zoo.registry import build_task
    from attn_zoo.runner.chance import SharedDraws
    from attn_zoo.runner.count import model_arguments

    task = build_task(spec.task, **spec.task_options)
    model = build_paired_model(task.spec, seed=spec.seed, implementation="eager", **model_arguments(spec))
    batch = task.examples("train").batch(range(4))
    accelerator = Accelerator(cpu=True)
    with SharedDraws(spec.seed, accelerator.process_index, accelerator.device):
        out = model.train()(batch.inputs, batch.valid)
    directions = [tensor for name, tensor in model.named_buffers() if name.endswith("directions")]
    return [tensor.detach().numpy() for tensor in (out, *directions)]


def record_watching_pickle(spec: Any, folder: Path, also: str = "") -> tuple[str, list[int], list[str]]:
    """Status and resumed steps of a run that was interrupted, resumed, recorded and read, and all classes unpickled since."""
    from attn_zoo.records import Store
    from attn_zoo.runner import run
    from attn_zoo.runner.checkpoint import Checkpoint

    folder.mkdir(exist_ok=True)
    begun = Checkpoint(folder, "known", every=2, minutes=0)
    with suppress(KeyboardInterrupt):
        run(spec, CutShort(3), None, begun)
    seen: list[str] = []
    sys.addaudithook(lambda event, found: seen.append(str(found)) if event == "pickle.find_class" else None)
    again = Checkpoint(folder, "known")
    again.open()
    Store(folder).add(run(spec, Quiet(), None, again))
    ((record,), _) = Store(folder).load()
    if also:
        torch.load(also, weights_only=False)
    return record.status, [part["step"] for part in record.environment["resumed"]], seen
