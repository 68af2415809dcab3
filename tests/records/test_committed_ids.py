"""Ids of committed records, recomputed from the commands that repeat the runs."""

from __future__ import annotations

import shlex

import pytest
from committed import ROOT, records_in

from attn_zoo import attentions
from attn_zoo.cli.run import plan
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.records import RunRecord
from attn_zoo.registry import task_card

FOLDERS = sorted(path.name for path in (ROOT / "results").iterdir() if path.is_dir())


def first_of_each(folder: str) -> dict[str, RunRecord]:
    """Return the first record of each attention in a folder."""
    return {record.spec.attention: record for record in reversed(records_in(folder))}


OLD, NEW = first_of_each("family"), first_of_each("profile")
OF_TASKS = [record for name in FOLDERS for record in {record.spec.task: record for record in records_in(name)}.values()]
"""One record of each task in each folder of results."""
RECORDS = {str(record.source).rpartition("-")[0]: record for record in [*OLD.values(), *NEW.values(), *OF_TASKS]}
TWICE = [record for name, record in OLD.items() if name in NEW and record not in OF_TASKS]
"""Records of protocol 2 of attentions that have one of protocol 3; other attentions and tasks have such records as well."""


def test_every_recorded_attention_is_registered():
    assert {name for name in {*OLD, *NEW} if "+" not in name} <= set(attentions())
    assert len(OLD) == 39, "the family of protocol 2; later entries are not in it"


@pytest.mark.parametrize(
    "record",
    [pytest.param(record, marks=[pytest.mark.exhaustive] * (record in TWICE), id=name) for name, record in RECORDS.items()],
)
def test_its_command_is_composed_to_the_same_id_unless_the_attention_has_a_new_version(record):
    planned = plan(shlex.split(command(record.spec))[2:])
    (spec,) = planned.specs
    same = spec.run_id(task_card(spec.task).version, record.protocol) == record.run_id
    assert same == (spec.attention_version == record.spec.attention_version), "an earlier version of the attention is another run"
