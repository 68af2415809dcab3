"""Checkpoint of an unfinished run: one safetensors file with JSON in its header. The file is always replaced as a whole."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attn_zoo.checks import check_number, check_whole
from attn_zoo.escapes import terminal
from attn_zoo.records.environment import changed_plugins
from attn_zoo.records.files import sync_folder
from attn_zoo.records.store import CHECKPOINT, UNUSED
from attn_zoo.runner.state import Training, pack, unpack

_HEADER = "attn_zoo"
_FORMAT = 4


class CheckpointError(ValueError):
    """Error for a checkpoint from which a run cannot continue."""


class Checkpoint:
    """Checkpoint of one run: a hidden file in the folder of records, from which an interrupted run continues.

    Args:
        run_id: id of the run. A checkpoint of another run is not used.
        every: steps between two checkpoints; 0 to save by ``minutes`` only.
        minutes: minutes between two checkpoints, which are saved at the end of a step; 0 to save by ``every`` only.

    Raises:
        ValueError: ``every`` or ``minutes`` is negative or infinite.
    """

    def __init__(self, root: str | Path, run_id: str, every: int = 0, minutes: float = 10.0) -> None:
        check_whole("checkpoint.every", every, 0)
        check_number("checkpoint.minutes", minutes, 0)
        self.path = Path(root) / f".{run_id}{CHECKPOINT}"
        self.run_id, self.every, self.minutes = run_id, every, minutes
        self.longer: str | None = None
        """Id of a longer run that continues from the last step of this run; None if no longer run is planned."""
        self.environment: dict[str, Any] = {}
        """Environment of this part of the run, saved for the record of a resumed run."""
        self._data: dict[str, Any] = {}
        self._found: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._saved_at = time.monotonic()
        self._complained = False

    def open(self) -> str | None:
        """Read the checkpoint and return a message for the user, or None if there is no checkpoint. A checkpoint that cannot be
        used is renamed, not deleted.
        """
        try:
            if not self.path.exists():
                return None
            self._found = _read(self.path, self.run_id)
        except CheckpointError as error:
            return f"its checkpoint {self._put_aside(str(error))}"
        _, facts = self._found
        where = f"step {facts['step']}{' of pretraining' if facts['pretraining'] else ''}"
        return f"goes on after {where}, from a checkpoint of {facts['saved']}"

    def _put_aside(self, why: str) -> str:
        """Rename the checkpoint, which cannot be used, and return the end of a sentence that says so."""
        renamed = self.path.with_name(f"{self.path.name}.{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}{UNUSED}")
        try:
            self.path.replace(renamed)
        except OSError as error:
            return f"cannot be used ({why}) or renamed ({error.strerror}), so the run starts again from step 0"
        return f"cannot be used ({why}) and was renamed to {renamed.name}, so the run starts again from step 0"

    def begin(self, environment: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Note the environment of this part of the run, and the data that it has read: examples and digest of each split. If the
        checkpoint that ``open`` read was saved with other data, rename it and print a message, so the run starts again.
        """
        self.environment, self._data = dict(environment), dict(data)
        if self._found is not None and self._found[1].get("data") not in (None, self._data):  # None: saved by earlier code
            self._found = None
            told = self._put_aside("the data of the task have changed since it was written")
            print(terminal(f"attn-zoo: the checkpoint {self.path.name} {told}"), file=sys.stderr)

    def is_past_pretraining(self) -> bool:
        """Return True if the checkpoint that ``open`` read was saved after pretraining."""
        return self._found is not None and not self._found[1]["pretraining"]

    def due(self, step: int) -> bool:
        """Return True if a checkpoint must be saved after this step."""
        by_clock = self.minutes and time.monotonic() - self._saved_at >= 60 * self.minutes
        return bool(by_clock or (self.every and step % self.every == 0))

    def resume(self, training: Training) -> None:
        """Set a training to the state that ``open`` read. Without a checkpoint, do nothing.

        Raises:
            CheckpointError: the checkpoint belongs to another network.
        """
        if self._found is None:
            return
        tensors, facts = self._found
        try:
            unpack(training, tensors, facts)
        except ValueError as error:
            raise CheckpointError(f"{error}. Delete {str(self.path)!r} to start again from step 0") from error
        where = {"step": facts["step"]} | ({"pretraining": True} if facts["pretraining"] else {})
        training.state.resumed = [*facts["resumed"], {**where, **facts["environment"]}]
        self._found = None

    def save(self, training: Training) -> None:
        """Save the state of a training.

        A write error, such as a full disk, is reported once. It does not end the run, because the result can still be recorded.
        """
        self._saved_at = time.monotonic()
        tensors, facts = pack(training)
        try:
            self._write(tensors, {**facts, "environment": self.environment, "data": self._data})
        except (OSError, SafetensorError) as error:
            if not self._complained:
                self._complained = True
                said = f"attn-zoo: the checkpoint after step {training.step} could not be written ({error})"
                print(terminal(said), file=sys.stderr)

    def hand_on(self, training: Training) -> None:
        """Save the state after the last step as the checkpoint of a longer run, which then continues from this step.

        The longer run has the id ``longer`` and the same spec except for more steps. If ``longer`` is None, do nothing.
        """
        if self.longer is not None:
            heir = Checkpoint(self.path.parent, self.longer)
            heir.begin(self.environment, self._data)
            heir.save(training)

    def remove(self) -> None:
        """Delete the checkpoint, because the run was recorded."""
        with suppress(OSError):  # in a read-only folder the file stays, but nothing reads it: the run is recorded
            self.path.unlink(missing_ok=True)

    def _write(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        header = {
            "format": _FORMAT,
            "run_id": self.run_id,
            **_versions(),
            "saved": datetime.now(UTC).isoformat(timespec="seconds"),
            "digest": _digest(tensors, facts),
            "facts": facts,
        }
        temporary = self.path.with_name(f"{self.path.name}.half")
        try:
            save_file(dict(tensors), temporary, metadata={_HEADER: json.dumps(header)})
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(self.path)
            sync_folder(self.path.parent)
        except (OSError, SafetensorError):
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def _versions() -> dict[str, str]:
    """Return the versions that must be equal to resume a run with exactly the same results."""
    return {"attn_zoo": version("attn-zoo"), "torch": torch.__version__}


def _read(path: Path, run_id: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and plain data of a checkpoint, after checking its run, versions and digest."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if header["format"] != _FORMAT:
            raise CheckpointError(
                f"the checkpoint must have format {_FORMAT} for this version of attn-zoo, but has format {header['format']}"
            )
        if header["run_id"] != run_id:
            raise CheckpointError(f"the checkpoint belongs to another run ({header['run_id']})")
        for package, here in _versions().items():
            if header[package] != here:
                raise CheckpointError(
                    f"the checkpoint was written with {package} {header[package]}, but {package} {here} is installed"
                )
        if header["digest"] != _digest(tensors, header["facts"]):
            raise CheckpointError("the checkpoint is damaged: its content does not match its digest")
        if changed := changed_plugins(header["facts"]["environment"]):
            raise CheckpointError(f"{', '.join(changed)} has changed since the checkpoint was written")
        return tensors, {**header["facts"], "saved": header["saved"]}
    except CheckpointError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint is damaged: {error}") from error


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the plain data and of all tensors, in the order of their names."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
