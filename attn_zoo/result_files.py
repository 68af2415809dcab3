"""Result files that ``attn-zoo measure`` and ``attn-zoo transplant`` write: JSON that names its experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRANSPLANT_SCHEMA = 1
"""Version of the fields of a file that ``attn-zoo transplant`` writes. Files of other versions cannot be read."""
_FIELDS = {"schema", "experiment", "complete", "setting", "data", "teacher", "reference", "environment", "points"}
_OF_A_POINT = {"label", "attention", "options", "dial", "control", "init", "seed", "cost", "stages", "layer_errors", "failed"}


def read_results(path: Path, experiment: str, option: str, *, finished: bool = False) -> dict[str, Any]:
    """Return the content of the result file of an experiment.

    Args:
        experiment: name of the experiment whose results are expected.
        option: option or key of the command line that names the file, for error messages.
        finished: raise an error if the experiment did not finish.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has no results of this experiment, or the experiment did not finish.
    """
    command = "attn-zoo transplant" if experiment == "transplant" else f"attn-zoo measure experiment={experiment}"
    wanted = f"{option} must name a file that {command} wrote with output="
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{wanted}, but {path} is not JSON ({error}). Name another file") from error
    kind = found.get("experiment") if isinstance(found, dict) else None
    if kind != experiment:
        raise ValueError(f"{wanted}, but {path} is a file of {kind or 'another kind'}. Name another file")
    if finished and not found.get("complete"):
        raise ValueError(f"the results in {path} are not complete. Run the same {command} command again to finish them")
    return found


def read_transplant(path: Path, option: str, *, finished: bool = False) -> dict[str, Any]:
    """Return the content of a file that ``attn-zoo transplant`` wrote. The arguments and errors are those of ``read_results``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is a file of something else, did not finish, has another schema, or lacks fields.
    """
    found = read_results(path, "transplant", option, finished=finished)
    if (schema := found.get("schema")) != TRANSPLANT_SCHEMA:
        raise ValueError(
            f"{path} must have schema {TRANSPLANT_SCHEMA} for this version of attn-zoo; got schema {schema!r}. Read the file with "
            "the version that wrote it"
        )
    points = found.get("points")
    whole = isinstance(points, list) and all(isinstance(point, dict) and point.keys() >= _OF_A_POINT for point in points)
    if not whole or not found.keys() >= _FIELDS or (finished and not isinstance(found["reference"], dict)):
        raise ValueError(f"{path} must have all fields of the results of attn-zoo transplant, but lacks some. Name another file")
    return found


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` to a JSON file in one step, so that no process reads an incomplete file."""
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, so that no process reads an incomplete file."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
