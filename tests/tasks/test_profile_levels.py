"""Profile of abilities for bidirectional mechanisms: its tasks, and what their levels have in common."""

from __future__ import annotations

from importlib.resources import files

import pytest
import yaml

from attn_zoo import build_task, task_card
from attn_zoo.registry import task_names

LEVEL = "profile_encoder"


def test_the_experiment_takes_every_task_with_the_level():
    experiment = yaml.safe_load(files("attn_zoo.configs").joinpath("experiment", f"{LEVEL}.yaml").read_text())
    assert experiment["level"] == LEVEL
    vision = yaml.safe_load(files("attn_zoo.configs").joinpath("experiment", "profile_vision.yaml").read_text())
    assert vision["level"] == LEVEL and vision["tuning"]["space"] == experiment["tuning"]["space"]
    tasks = [*experiment["tuning"]["task"], *vision["tuning"]["task"]]
    assert sorted(tasks) == [name for name in sorted(task_names()) if LEVEL in task_card(name).levels]


def test_the_level_reads_both_ways_through_a_short_convolution():
    levels = {name: task_card(name).levels[LEVEL] for name in task_names() if LEVEL in task_card(name).levels}
    for name, level in levels.items():
        assert not build_task(name, **level.options).spec.causal, name
        assert level.model["short_convolution"] == 4, name
        assert level.budget["learning_rate"] == 3e-3, f"{name}: the middle of the rates that are tried"


def test_images_are_seen_eight_times_as_they_are():
    level = task_card("cifar10").levels[LEVEL]
    task = build_task("cifar10", **level.options)
    assert level.budget["steps"] * level.budget["batch_size"] / (50_000 - task.options.valid) == pytest.approx(8, abs=0.05)
    assert task.options.augment.value == "none" and task.spec.length == 64, "sixteen of 64 patches, as in the other tasks"
