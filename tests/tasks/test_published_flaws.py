"""Flaws of published benchmark suites, each looked for in every task of the zoo.

Lost brackets and cut expressions (ListOps) are tested in ``test_listops.py``, dropped test examples
in ``tests/runner/test_run.py``, and validation on test data by the kit's check ``splits_are_disjoint``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_zoo import registry
from attn_zoo.contract import SPLITS, DataSet, Task

ALIKE = {"imdb": "mrpc", "qnli": "mrpc", "qqp": "mrpc", "sst2": "mrpc", "cifar100": "cifar10", "fashion_mnist": "cifar10"}
"""Tasks not tested here, and for each the tested task that shares its code."""


def smallest(name: str, **changes: Any) -> Task:
    """Build a task with the options of its level ``smoke``, some of them changed."""
    return registry.build_task(name, **{**registry.task_card(name).levels["smoke"].options, **changes})


@pytest.fixture(autouse=True, scope="module")
def files_are_read_once():
    """Keep the data set that was read last, because the tests build each task several times from the same files."""
    load, kept = DataSet.load, dict[tuple[str, Path], Any]()

    def load_once(dataset: DataSet[Any], root: Path) -> Any:
        if (dataset.name, root) not in kept:
            kept.clear()
            kept[dataset.name, root] = load(dataset, root)
        return kept[dataset.name, root]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataSet, "load", load_once)
        yield


def cases() -> list[tuple[str, str]]:
    registry.load_plugins()
    cards = [registry.task_card(name) for name in registry.task_names() if name not in ALIKE]
    return [(card.name, f.name) for card in cards for f in fields(card.options) if f.name not in card.locations]


def other_values(value: Any) -> Iterator[Any]:
    """Yield other values that an option might take, near the given one."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, Enum):
        yield from (member.value for member in type(value) if member is not value)
    elif isinstance(value, int):
        yield from (value + 1, value + 2, value + 5, 2 * value, value // 2, value - 1, 100)
    elif isinstance(value, float):
        yield from (value / 2, (1 + value) / 2, value + 0.25, value - 0.25)


def seen(task: Task) -> Iterator[Any]:
    """Yield everything of a task that a model or a table can show, what takes least time first."""
    yield from (task.spec, task.data_title)
    yield from (task.examples(split).digest() for split in reversed(SPLITS))
    train = task.examples("train")
    batch = train.batch(range(min(16, len(train))))
    yield task.augment(batch, torch.Generator().manual_seed(1)).inputs.tolist()


@cache
def unchanged(name: str) -> list[Any]:
    """Return ``seen`` of a task at its level ``smoke``."""
    return list(seen(smallest(name)))


@pytest.mark.parametrize(("name", "option"), cases())
def test_every_option_of_a_task_is_read(name, option):
    """One published configuration set a value that no code read, so that its table disagreed with its code."""
    try:
        before = unchanged(name)
    except FileNotFoundError as error:
        pytest.skip(str(error).split(";")[0])
    value = getattr(smallest(name).options, option)
    tried = []
    for other in other_values(value):
        if other == value:
            continue
        try:
            if any(one != known for one, known in zip(seen(smallest(name, **{option: other})), before, strict=True)):
                return
        except (ValueError, FileNotFoundError):
            continue
        tried.append(other)
    if isinstance(value, str) or not tried:
        pytest.skip(f"no other value of {name}.{option} than {value!r} is to be had here")
    raise AssertionError(f"{name}.{option} reaches nothing: {value!r} and {tried} give the same task")


@pytest.mark.parametrize("name", [name for name, option in cases() if option == "length"])
def test_the_length_is_one_and_is_told(name):
    """A published score was the best of four lengths."""
    task = smallest(name)
    longest_test = getattr(task.options, "test_length", getattr(task.options, "longer", 1) * task.options.length)
    assert task.spec.length == longest_test
