"""Trackers log a run: what each of them wrote is read back, and no tracker can change a record or lose one."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState
from accelerate.tracking import TensorBoardTracker
from commands import Command
from hydra.errors import ConfigCompositionException
from together import Quiet

from attn_zoo import UnknownNameError
from attn_zoo.cli.config import store_groups
from attn_zoo.cli.plan import plan
from attn_zoo.records import Budget, ModelSpec, RunSpec, Store
from attn_zoo.runner import resolve_spec, run, tracking
from attn_zoo.runner.tracking import TrackerError, Tracking, Watchers, check_trackers

SPEC = resolve_spec(
    RunSpec(
        "linformer",
        "listops",
        options={"projected_length": 4},
        task_options={"length": 24, "train": 40, "valid": 20, "test": 20},
        model=ModelSpec(dim=16, heads=2),
        budget=Budget(steps=8, batch_size=8, evaluate_every=4, pretrain_steps=4),  # trackers do not log pretraining
        seed=3,
        device="cpu",
    )
)
SMALL = ["task=digits", "budget.steps=4", "budget.evaluate_every=2", "model.dim=16", "model.heads=2"]
RUN_ID = SPEC.run_id("1")
NAME = f"linformer-listops-s3-{RUN_ID}"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return the record of a run, its path, and the folder that three trackers wrote."""
    folder = tmp_path_factory.mktemp("told")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        PartialState(cpu=True)
        with Tracking(["tensorboard", "mlflow", "wandb"], SPEC, RUN_ID, project="zoo", folder="tracked", every=3) as told:
            record = run(SPEC, Watchers(Quiet(), told))
            path = Store(folder / "runs").add(record)
            told.finish(record, path)
    assert record.status == "done", record.reason
    return record, path, folder / "tracked"


def looks(record: Any) -> dict[int, Any]:
    return {point["step"]: pytest.approx(point["valid"]) for point in record.curve}


def test_tensorboard_has_the_curves_the_scores_and_the_settings(told):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record, path, folder = told
    events = EventAccumulator(str(folder / "zoo" / NAME))
    events.Reload()
    scalars = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    assert set(scalars) == {"train_loss", "valid", "best_valid", "train", "test"}
    assert list(scalars["train_loss"]) == [3, 4, 6, 8], "every third step, and each look"
    assert scalars["valid"] == looks(record)
    assert scalars["train_loss"][8] == pytest.approx(record.curve[-1]["train_loss"])
    assert scalars["test"] == {8: pytest.approx(record.scores["test"])}
    assert str(path) in str(events.Tensors("record/text_summary")[0])
    (written,) = (folder / "zoo" / NAME).rglob("hparams.yml")
    assert f"run_id: {RUN_ID}" in written.read_text() and "options.projected_length: 4" in written.read_text()


def test_mlflow_has_them(told):
    from mlflow import MlflowClient

    record, path, folder = told
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("zoo")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == NAME and found.info.status == "FINISHED"
    assert {point.step: point.value for point in client.get_metric_history(found.info.run_id, "valid")} == looks(record)
    assert [point.step for point in client.get_metric_history(found.info.run_id, "train_loss")] == [3, 4, 6, 8]
    assert found.data.metrics["test"] == pytest.approx(record.scores["test"])
    wanted = {
        "run_id": RUN_ID,
        "seed": "3",
        "budget.steps": "8",
        "options.projected_length": "4",
        "status": "done",
        "record": str(path),
    }
    assert {name: found.data.params.get(name) for name in wanted} == wanted


def offline_records(path: Path) -> Iterator[Any]:
    """Yield records of a Weights & Biases file: after seven bytes, blocks of 32 KiB of chunks with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            record = Record()
            record.ParseFromString(held)
            held = b""
            yield record


def test_weights_and_biases_has_them_offline(told):
    record, path, folder = told
    (written,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    curve: dict[str, dict[int, float]] = {}
    settings: dict[str, Any] = {}
    ending: dict[str, Any] = {}
    names = set()
    for part in offline_records(written):
        kind = part.WhichOneof("record_type")
        if kind == "history":
            point = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in part.history.item}
            for name, value in point.items():
                curve.setdefault(name, {})[int(point["_step"])] = value
        elif kind == "config":
            settings |= {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in part.config.update}
        elif kind == "summary":
            ending |= {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in part.summary.update}
        elif kind == "run":
            names.add((part.run.project, part.run.display_name))
            settings |= {item.key: json.loads(item.value_json) for item in part.run.config.update}
    assert names == {("zoo", NAME)}
    assert curve["valid"] == looks(record)
    assert list(curve["train_loss"]) == [3, 4, 6, 8]
    assert curve["test"] == {8: pytest.approx(record.scores["test"])}
    wanted = {"run_id": RUN_ID, "seed": 3, "model.dim": 16, "options.projected_length": 4}
    assert {name: settings.get(name) for name in wanted} == wanted
    assert (ending["status"], ending["record"]) == ("done", str(path))


class Failing(TensorBoardTracker):  # type: ignore[misc]
    """Tracker that takes the settings and two points, then fails as on a full disk."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.told = 0

    def log(self, values: dict[str, Any], step: int | None = None, **rest: Any) -> None:
        self.told += 1
        if self.told > 2:
            raise OSError(28, "No space left on device")


def test_a_tracker_that_fails_on_the_way_is_complained_of_once_and_costs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tracking, "TensorBoardTracker", Failing)
    with Tracking(["tensorboard"], SPEC, RUN_ID, project="zoo", folder=tmp_path, every=1) as watcher:
        record = run(SPEC, watcher)
        watcher.finish(record, tmp_path)
    assert record.status == "done"
    assert capsys.readouterr().err.count("tracker tensorboard failed and gets no more values (OSError: [Errno 28]") == 1


def test_a_tracker_that_does_not_start_ends_before_work_and_ends_those_begun(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(TensorBoardTracker, "finish", lambda self: ended.append(self.run_name))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://there")
    both = Tracking(["tensorboard", "mlflow"], SPEC, RUN_ID, project="zoo", folder=tmp_path)
    with pytest.raises(TrackerError, match=r"tracking\.to=mlflow could not be started .*leave it out, or set it up"), both:
        raise AssertionError("not reached")
    assert ended == [NAME]


def test_trackers_are_checked_by_name_and_by_package(monkeypatch):
    with pytest.raises(UnknownNameError, match="no tracker is called 'tensorbord'; did you mean 'tensorboard'"):
        check_trackers(["tensorbord"])
    monkeypatch.setattr(tracking, "_INSTALLED", {**tracking._INSTALLED, "wandb": lambda: False})
    with pytest.raises(TrackerError, match=r"tracking\.to=wandb .* pip install 'attn-zoo\[trackers\]'"):
        check_trackers(["tensorboard", "wandb"])
    with pytest.raises(ValueError, match=r"tracking\.every counts steps"):
        Tracking([], SPEC, RUN_ID, project="zoo", folder=".", every=0)


def test_the_command_tells_trackers_of_each_run_by_name(tmp_path):
    watched = ["tracking.to=[tensorboard]", "tracking.folder=watched", "tracking.project=zoo", "report=false"]
    status, _, errors = Command("run", "-m", "attention=none", "seed=1,2", *SMALL, *watched, folder=tmp_path).end()
    assert status == 0, errors
    names = sorted(path.name for path in (tmp_path / "watched" / "zoo").iterdir())
    records, _ = Store(tmp_path / "runs").load()
    assert names == sorted(f"none-digits-s{record.spec.seed}-{record.run_id}" for record in records) and len(names) == 2


def test_who_is_told_and_what_is_kept_on_the_way_is_no_part_of_what_is_run():
    store_groups()
    plain = plan(SMALL)
    told = plan([*SMALL, "tracking.to=[wandb,mlflow]", "tracking.every=3", "checkpoint.every=5", "checkpoint.minutes=0"])
    assert plain is not None and told is not None and plain.specs == told.specs
    with pytest.raises(ConfigCompositionException):
        plan([*SMALL, "tracking.too=[wandb]"])
