"""Ids of committed records, recomputed from the commands that repeat the runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from attn_zoo import attentions
from attn_zoo.cli.config import store_groups
from attn_zoo.cli.plan import plan
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.records import read_record
from attn_zoo.registry import task_card

RESULTS = Path(__file__).parents[2] / "results"


def first_of_each(folder: str) -> dict[str, Path]:
    """Return the first record of each attention in a folder, by the name of its file, which begins with the attention."""
    return {path.name.split("-")[0]: path for path in sorted((RESULTS / folder).glob("*-*-s*.json"), reverse=True)}


OLD, NEW = first_of_each("family"), first_of_each("profile")
FOLDERS = sorted(path.name for path in RESULTS.iterdir() if path.is_dir())
FILES = {(folder, path.name.split("-")[1]): path for folder in FOLDERS for path in sorted((RESULTS / folder).glob("*-*-s*.json"))}
"""File of one record of each task in each folder of results; names of files begin with mechanism and task."""
PATHS = sorted({*OLD.values(), *NEW.values(), *FILES.values()})


def test_every_recorded_attention_is_registered():
    assert set(OLD) | set(NEW) <= set(attentions())
    assert len(OLD) == 39, "the family of protocol 2; later entries are not in it"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.rpartition("-")[0])
def test_its_command_is_composed_to_the_same_id_unless_the_attention_has_a_new_version(path):
    record = read_record(path)
    store_groups()
    planned = plan(shlex.split(command(record.spec))[2:])
    (spec,) = planned.specs
    same = spec.run_id(task_card(spec.task).version, record.protocol) == record.run_id
    assert same == (spec.attention_version == record.spec.attention_version), "an earlier version of the attention is another run"
