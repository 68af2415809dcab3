"""``attn-zoo measure``: an experiment on time and memory, as a table and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attn_zoo.cli.experiments import EXPERIMENTS
from attn_zoo.cli.run import explain
from attn_zoo.contract import UnknownNameError
from attn_zoo.cost.bench import Subject
from attn_zoo.cost.growth.experiment import measure_growth
from attn_zoo.cost.growth.table import growth_table
from attn_zoo.cost.linformer_kernels import experiment as linformer_kernels
from attn_zoo.cost.linformer_kernels.setting import kernels_digest
from attn_zoo.cost.linformer_kernels.setting import resolve_setting as resolve_kernels_setting
from attn_zoo.cost.linformer_kernels.table import linformer_kernels_table
from attn_zoo.cost.linformer_table3 import experiment as linformer_table3
from attn_zoo.cost.linformer_table3.setting import resolve_setting
from attn_zoo.cost.linformer_table3.table import linformer_table3_table
from attn_zoo.cost.peers import experiment as peers
from attn_zoo.cost.peers.table import peers_table
from attn_zoo.records import describe_environment
from attn_zoo.registry import card, make_options
from attn_zoo.runner import plain_options

Points = list[dict[str, Any]]


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
    facts, work, table = _PREPARE[name](given)
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
    except linformer_kernels.TimeIsUpError:
        goes_on = "; the same command goes on from there" if output else ""
        print(f"attn-zoo: the time was over before the end{goes_on}", file=sys.stderr)
    print(table(found))
    return 0 if found["complete"] and not any(map(_bad, found["points"])) else 1


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


Save = Callable[[Points], None]

Prepared = tuple[dict[str, Any], Callable[[Save, Points], Points], Callable[[Mapping[str, Any]], str]]
"""Facts that stand above the points; the work, given how to save and what is done; the table of what was found."""


def _growth(given: Mapping[str, Any]) -> Prepared:
    subjects = _subjects(given["attentions"], given["set"])
    for name in ("dim", "heads", "rounds"):
        if given[name] < 1:
            raise ValueError(f"{name} must be at least 1; got {given[name]}")
    if given["dim"] % given["heads"]:
        raise ValueError(f"dim must be divisible by heads; got {given['dim']} and {given['heads']}")
    if not given["lengths"] or min(given["lengths"]) < 1:
        raise ValueError(f"lengths are whole numbers of at least 1; got {given['lengths']}")
    setting = {"dim": given["dim"], "heads": given["heads"], "rounds": given["rounds"], "batch": 1, "precision": "fp32"}

    def work(save: Save, done: Points) -> Points:  # its rounds visit all lengths, so nothing of it is done before the end
        sizes = {name: given[name] for name in ("dim", "heads", "rounds")}
        points = measure_growth(subjects, given["lengths"], **sizes, tell=_tell)
        return [{"label": _label(point.subject), **point.to_dict()} for point in points]

    return {"setting": setting, "environment": describe_environment("cpu")}, work, growth_table


def _linformer_table3(given: Mapping[str, Any]) -> Prepared:
    setting = resolve_setting(given)
    facts = {
        "setting": {**asdict(setting), "reduced": setting.reduced()},
        "environment": describe_environment(setting.device),
    }
    return facts, lambda save, done: linformer_table3.measure(setting, tell=_tell, save=save, done=done), linformer_table3_table


def _linformer_kernels(given: Mapping[str, Any]) -> Prepared:
    setting, limits = resolve_kernels_setting(given)
    facts = {"setting": asdict(setting), "kernels": kernels_digest(), "environment": describe_environment(setting.device)}

    def work(save: Save, done: Points) -> Points:
        return linformer_kernels.measure(setting, limits, tell=_tell, save=save, done=done)

    return facts, work, linformer_kernels_table


def _peers(given: Mapping[str, Any]) -> Prepared:
    peer = peers.require_peer()
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items() if key != "output"
    }
    setting = peers.Setting(**values)
    facts = {"setting": asdict(setting), "environment": describe_environment("cpu"), "peer": peer}
    return facts, lambda save, done: peers.measure(setting, tell=_tell, save=save, done=done), peers_table


_PREPARE: Mapping[str, Callable[[Mapping[str, Any]], Prepared]] = {
    "growth": _growth,
    "linformer_table3": _linformer_table3,
    "linformer_kernels": _linformer_kernels,
    "peers": _peers,
}


def _bad(point: Mapping[str, Any]) -> bool:
    """Whether a result was held against a reference and is not right, or could not be."""
    return point.get("part") == "check" and point.get("verdict") != "right"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _done(output: Path, wanted: Mapping[str, Any]) -> Points:
    """Points of a measurement in ``output`` that is not complete and of the same setting, code and kind of machine."""
    try:
        earlier = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(earlier, dict) or earlier.get("complete") is not False or _identity(earlier) != _identity(wanted):
        return []
    _tell(f"{output} holds {len(earlier['points'])} points of this measurement; going on from there")
    return list(earlier["points"])


def _identity(found: Mapping[str, Any]) -> str:
    machine = {name: found["environment"].get(name) for name in ("cpu", "cores", "threads", "gpu", "torch", "commit")}
    return json.dumps([found["experiment"], found["setting"], found.get("peer"), found.get("kernels"), machine], sort_keys=True)


def _check_writable(output: Path) -> None:
    """Find out before the work whether its result can be written."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ValueError(f"output must be a file in a folder that exists; got {str(output)!r}")
    existed = output.exists()
    with output.open("a", encoding="utf-8"):
        pass
    if not existed:
        output.unlink()


def _subjects(texts: Sequence[str], settings: Mapping[str, Any]) -> list[Subject]:
    """The layers that ``NAME`` or ``NAME:IMPLEMENTATION`` ask for, with their own of the options."""
    names = [text.partition(":")[0] for text in texts]
    for owner in settings:
        if owner not in names:
            raise UnknownNameError("attention among attentions=[...]", str(owner), names)
    subjects = []
    for name, text in zip(names, texts, strict=True):
        implementation = text.partition(":")[2] or "eager"
        known = card(name).implementations
        if implementation not in known:
            raise UnknownNameError(f"implementation of {name}", implementation, known)
        subjects.append(Subject(name, _options(name, settings.get(name, {})), implementation))
    if not subjects:
        raise ValueError("attentions=[...] must name at least one attention")
    if len(set(texts)) < len(texts):
        raise ValueError(f"attentions names one of them twice; got {list(texts)}")
    return subjects


def _options(name: str, given: Any) -> dict[str, Any]:
    """All options of an attention, the given ones in their right types."""
    if not isinstance(given, dict):
        raise ValueError(f"options are set one by one, set.{name}.OPTION=VALUE; got set.{name}={given}")
    kind = card(name).options
    for option in given:
        if option not in (known := [f.name for f in fields(kind)]):
            raise UnknownNameError(f"option of attention {name}", option, known)
    try:
        typed = OmegaConf.merge(OmegaConf.structured(kind), given)
    except OmegaConfBaseException as error:
        raise ValueError(f"set.{name}: {explain(error)}") from error
    return plain_options(make_options(f"attention {name}", kind, {option: typed[option] for option in given}))


def _label(subject: Subject) -> str:
    defaults = plain_options(card(subject.attention).options())
    changed = [f"{key}={value}" for key, value in subject.options.items() if defaults[key] != value]
    kernel = [] if subject.implementation == "eager" else [f"({subject.implementation})"]
    return " ".join([subject.attention, *kernel, *changed])
