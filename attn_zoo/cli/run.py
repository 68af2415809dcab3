"""``attn-zoo run``: Hydra composes each run, the runner does it, the store keeps it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from attn_zoo.cli.config import locations_from, spec_from, store_groups
from attn_zoo.cli.plan import plan
from attn_zoo.cli.progress import RichProgress
from attn_zoo.contract import UnknownNameError
from attn_zoo.records import RunRecord, Store
from attn_zoo.registry import task_card
from attn_zoo.runner import run


def run_command(overrides: Sequence[str]) -> int:
    """Check every run that ``overrides`` ask for, then let Hydra do them; its callback prints the leaderboard.

    Raises:
        ValueError: a key, value or name in the overrides is wrong; the message lists the right ones.
    """
    for name, reason in store_groups().items():
        print(f"attn-zoo: plugin {name} failed and is left out: {reason}", file=sys.stderr)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here, where they are said in one line
    sys.argv = [f"{sys.argv[0]} run", *overrides]  # Hydra reads it, and records keep it as the command
    try:
        if planned := plan(overrides):
            Store(planned.records).check_writable()
            planned.read_data()
            total, left = len(planned.specs), len(planned.left())
            print(
                f"{total} runs, {total - left} of them recorded already, {left} to do; records go to {planned.records!r}",
                flush=True,
            )
        with tempfile.TemporaryDirectory(prefix="attn-zoo-") as scratch:
            os.environ["ATTN_ZOO_SCRATCH"] = scratch  # Hydra leaves a file of its own there, which has no place among records
            _hydra_main()
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error)) from error
    return 0


@hydra.main(version_base="1.3", config_path="pkg://attn_zoo.configs", config_name="run")
def _hydra_main(config: DictConfig) -> None:
    one_run(config)


def one_run(config: DictConfig) -> RunRecord | None:
    """Do one composed run and record it, unless an equal one is recorded with a final status or another process is at it.

    Raises:
        OSError: the folder cannot take the record; where it was written instead, the message says so.
    """
    spec = spec_from(config)
    store = Store(config.records)
    label = f"{spec.attention} on {spec.task}, seed {spec.seed}"
    run_id = spec.run_id(task_card(spec.task).version)
    store.check_writable()  # before each run, since disks fill up in the course of a sweep
    with store.claim(run_id) as ours:
        if store.finished(run_id):
            print(f"{label}: recorded already", flush=True)
            return None
        if not ours:
            print(f"{label}: left to another process, which is at it; the same command will show whether it ended", flush=True)
            return None
        record = run(spec, RichProgress(), locations_from(config))
        _keep(record, store)
    print(f"{label}: {_outcome(record)}", flush=True)
    return record


def _keep(record: RunRecord, store: Store) -> None:
    """Add the record; where its folder takes no more, write it to the system's temporary one, as it may have taken hours."""
    try:
        store.add(record)
    except OSError as error:
        try:
            kept = Store(tempfile.mkdtemp(prefix="attn-zoo-kept-")).add(record)
        except OSError:
            raise error from None
        raise OSError(f"{error}; it is not lost: copy {str(kept)!r} to there first") from error


def explain(error: BaseException) -> str:
    """An error of Hydra or OmegaConf in the zoo's words: what came, and which keys there are."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        kind: Any = getattr(link, "object_type", None)
        key = getattr(link, "key", None)
        if key is not None and is_dataclass(kind) and key not in (known := [f.name for f in fields(kind)]):
            where = str(getattr(link, "full_key", key)).rpartition(".")[0]
            return str(UnknownNameError(f"option under {where!r}" if where else "setting of a run", str(key), known))
    return "\n".join(dict.fromkeys(str(link).strip() for link in chain))


def _outcome(record: RunRecord) -> str:
    if record.status != "done":
        return f"{record.status}: {record.reason}"
    seconds = record.measured.get("train_seconds")
    took = "" if seconds is None else f" after {seconds:.1f} s of training"
    return f"test {record.task_card['metric']} {100 * record.scores['test']:.1f} %{took}"
