"""Record of a transplant: a JSON file with the setting, data, environment, and the results of all trials, called points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attn_zoo.integrations.transformers.sites import sites
from attn_zoo.result_files import TRANSPLANT_SCHEMA, read_transplant
from attn_zoo.transplant.encoder import Teacher
from attn_zoo.transplant.setting import Setting
from attn_zoo.transplant.texts import Material

_COMMON = ("setting", "data", "teacher")
"""Fields that must be equal in all records of a table."""
_MACHINE = ("cpu", "cores", "threads", "torch", "transformers", "commit", "denormals_flushed")


def begin(setting: Setting, teacher: Teacher, material: Material, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new record of a transplant. Its fields ``points`` (results of trials) and ``reference`` (quality of the teacher)
    are filled in later."""
    attending = sites(teacher.model)
    shape = {"layers": len(attending), "heads": attending[0].heads, "head_dim": attending[0].head_dim}
    return {
        "schema": TRANSPLANT_SCHEMA,
        "experiment": "transplant",
        "complete": False,
        "setting": setting.to_dict(),
        "data": dict(material.facts),
        "teacher": {"name": teacher.name, "weights": teacher.weights, **shape},
        "reference": None,
        "environment": {**environment, "transformers": version("transformers")},
        "points": [],
    }


def earlier(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record in the file ``path``, or ``wanted`` if there is no such file. The candidates in the file are not checked,
    so a later command can add candidates.

    Args:
        wanted: new record without points.

    Raises:
        ValueError: the file is not a record of a transplant, or its setting, data, teacher, machine or commit differ.
    """
    if not path.exists():
        return dict(wanted)
    found = read_transplant(path, "output=")
    parts = [part for part in _COMMON if found[part] != wanted[part]]
    parts += [name for name in _MACHINE if found["environment"].get(name) != wanted["environment"].get(name)]
    if parts:
        raise ValueError(
            f"{path} already holds a transplant with other settings ({', '.join(parts)}), but all students of a "
            "file must have the same settings. Name another file with output="
        )
    return {**found, "environment": wanted["environment"]}


def joined(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several records as one, for a common table or plot.

    Raises:
        ValueError: the records differ in setting, data or teacher, or two of them contain the same student.
    """
    first = records[0]
    for part in _COMMON:
        if any(record[part] != first[part] for record in records):
            raise ValueError(
                f"records of one table must have the same settings, but these differ in {part}. Show them in two tables"
            )
    points = [point for record in records for point in record["points"]]
    if len({key_of(point) for point in points}) < len(points):
        raise ValueError("each student must be in one record only, but two records hold the same student. Give each file once")
    return {**first, "complete": all(record["complete"] for record in records), "points": points}


def key_of(point: Mapping[str, Any]) -> tuple[str, str | None, int]:
    """Return the label, initialisation and seed of a point, which identify it within one setting."""
    return point["label"], point["init"], point["seed"]
