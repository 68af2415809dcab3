"""``attn-zoo measure``: an experiment on time and memory, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attn_zoo.cli.experiments import EXPERIMENTS, describe
from attn_zoo.cli.preparations import PREPARE, Points, tell
from attn_zoo.cli.run import explain
from attn_zoo.contract import UnknownNameError
from attn_zoo.cost.crossover.plot import check_plot, plot_crossover
from attn_zoo.cost.crossover.table import crossover_table
from attn_zoo.cost.honesty.table import is_honest
from attn_zoo.cost.linformer_kernels.experiment import TimeIsUpError
from attn_zoo.cost.workers import WorkerError


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.description = "An experiment on time and memory of layers, as a Markdown table and, with output=FILE, as JSON."
    parser.epilog = describe()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    default = f"experiment={next(iter(EXPERIMENTS))} unless said"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"experiment=NAME and its keys ({default})")
    parser.set_defaults(handler=lambda parsed: measure(parsed.overrides))


def measure(words: Sequence[str]) -> int:
    """Measure what ``words`` ask for, print its table, and write its figures where asked.

    Where ``output`` holds a measurement of the same setting that was cut short, it is finished.

    Returns:
        0; 1 when its time was over before the end or a result was wrong; 130 when it was interrupted. What was written until
        then stays.

    Raises:
        UnknownNameError: no such experiment, key, attention or option.
        ValueError: a value is wrong, or what the experiment needs is not here.
    """
    name, given = compose(words)
    plot = None if given.get("plot") is None else Path(given["plot"])
    if plot is not None:
        check_plot(plot)
    if given.get("read") is not None:
        return _show(name, Path(given["read"]), plot)
    facts, work, table = PREPARE[name](given)
    found: dict[str, Any] = {"experiment": name, "complete": False, **facts, "points": []}
    output = None if given["output"] is None else Path(given["output"])
    done = [] if output is None else _done(output, found)
    if output is not None:
        _check_writable(output)

    def save(points: Points) -> None:
        found["points"] = points
        if output is not None:
            beside = output.with_name(f"{output.name}.part")
            beside.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            beside.replace(output)

    try:
        points = work(save, done)
        found["complete"] = True
        save(points)
    except KeyboardInterrupt:
        kept = f"; what was found is in {output}, and the same command goes on from there" if output and found["points"] else ""
        print(f"attn-zoo: interrupted{kept}", file=sys.stderr)
        return 130
    except TimeIsUpError:
        goes_on = "; the same command goes on from there" if output else ""
        print(f"attn-zoo: the time was over before the end{goes_on}", file=sys.stderr)
    except WorkerError as error:
        print(f"attn-zoo: {error}; there is nothing to compare without it", file=sys.stderr)
    print(table(found))
    if plot is not None:
        plot_crossover(found, plot)
    believed = name != "honesty" or is_honest(found["points"])
    return 0 if found["complete"] and believed and not any(map(_bad, found["points"])) else 1


def _show(name: str, file: Path, plot: Path | None) -> int:
    """Table and plot of an earlier crossover."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"read must be a file that output= wrote; {file} holds no JSON ({error})") from error
    if not isinstance(found, dict) or found.get("experiment") != name:
        raise ValueError(f"read must be a file that output= of experiment={name} wrote; {file} is of another kind")
    print(crossover_table(found))
    if plot is not None:
        plot_crossover(found, plot)
    return 0


def compose(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The experiment that ``words`` name and the value of each of its keys.

    Raises:
        UnknownNameError: no such experiment or key.
        ValueError: a word is no KEY=VALUE, or a value has the wrong type.
    """
    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
        for override in overrides:
            if override.is_sweep_override():
                raise ValueError(f"measure does not sweep; write a list in brackets, {override.key_or_group}=[a,b]")
            if override.is_add() or override.is_force_add() or override.is_delete():
                raise ValueError(f"measure takes KEY=VALUE, got {override.input_line!r}")
        named = [override.value() for override in overrides if override.key_or_group == "experiment"]
        name = str(named[-1]) if named else next(iter(EXPERIMENTS))
        if name not in EXPERIMENTS:
            raise UnknownNameError("experiment", name, EXPERIMENTS)
        keys, lines = [f.name for f in fields(EXPERIMENTS[name])], []
        for override in overrides:
            key = override.key_or_group
            if key == "experiment":
                continue
            if key.partition(".")[0] not in keys:
                raise UnknownNameError(f"key of experiment={name}", key, ["experiment", *keys])
            lines.append(f"{'+' if '.' in key else ''}{override.input_line}")  # Hydra wants + for what the defaults lack
        ConfigStore.instance().store(name=f"measure_{name}", node=EXPERIMENTS[name])
        with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
            config = OmegaConf.to_container(hydra.compose(f"measure_{name}", overrides=lines), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error)) from error
    assert isinstance(config, dict)
    return name, {str(key): value for key, value in config.items()}


def _bad(point: Mapping[str, Any]) -> bool:
    """Whether a result was held against a reference and is not right, or could not be."""
    return point.get("part") == "check" and point.get("verdict") != "right"


def _done(output: Path, wanted: Mapping[str, Any]) -> Points:
    """Points of a measurement in ``output`` that is not complete and of the same setting, code and kind of machine."""
    try:
        earlier = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(earlier, dict) or earlier.get("complete") is not False or _identity(earlier) != _identity(wanted):
        return []
    tell(f"{output} holds {len(earlier['points'])} points of this measurement; going on from there")
    return list(earlier["points"])


def _identity(found: Mapping[str, Any]) -> str:
    machine = {name: found["environment"].get(name) for name in ("cpu", "cores", "threads", "gpu", "torch", "commit")}
    how = [found.get(name) for name in ("peer", "kernels", "protocol")]
    return json.dumps([found["experiment"], found["setting"], *how, machine], sort_keys=True)


def _check_writable(output: Path) -> None:
    """Find out before the work whether its result can be written."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ValueError(f"output must be a file in a folder that exists; got {str(output)!r}")
    existed = output.exists()
    with output.open("a", encoding="utf-8"):
        pass
    if not existed:
        output.unlink()
