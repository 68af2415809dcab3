"""How each experiment of ``attn-zoo measure`` is made ready: what was asked, checked; the work; the table of what is found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from attn_zoo.cli.subjects import label, subjects_of
from attn_zoo.cost.counted import experiment as counted
from attn_zoo.cost.counted.launches import SHAPES, launch_rows, launch_table
from attn_zoo.cost.counted.table import counted_table
from attn_zoo.cost.energy import NotMeasured, energy_meter
from attn_zoo.cost.honesty import experiment as honesty
from attn_zoo.cost.honesty.table import honesty_table
from attn_zoo.cost.linformer_kernels import experiment as linformer_kernels
from attn_zoo.cost.linformer_kernels.setting import kernels_digest
from attn_zoo.cost.linformer_kernels.setting import resolve_setting as resolve_kernels_setting
from attn_zoo.cost.linformer_kernels.table import linformer_kernels_table
from attn_zoo.cost.linformer_table3 import experiment as linformer_table3
from attn_zoo.cost.linformer_table3.setting import resolve_setting
from attn_zoo.cost.linformer_table3.table import linformer_table3_table
from attn_zoo.cost.peers import experiment as peers
from attn_zoo.cost.peers.table import peers_table
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.step_cost import experiment as step_cost
from attn_zoo.cost.step_cost.setting import resolve_setting as resolve_cost_setting
from attn_zoo.cost.step_cost.table import step_cost_table
from attn_zoo.records import describe_environment
from attn_zoo.registry import attentions, card

Points = list[dict[str, Any]]

Save = Callable[[Points], None]

Prepared = tuple[dict[str, Any], Callable[[Save, Points], Points], Callable[[Mapping[str, Any]], str]]
"""Facts that stand above the points; the work, given how to save and what is done; the table of what was found."""


def _counted(given: Mapping[str, Any]) -> Prepared:
    subjects = subjects_of(given["attentions"], given["set"])
    entries = [counted.Entry(label(s), s.attention, s.options, s.implementation) for s in subjects]
    sizes = {name: given[name] for name in ("level", "dim", "heads", "causal", "mlp_ratio")}
    setting = counted.Setting(lengths=tuple(given["lengths"]), **sizes)
    facts = {"setting": asdict(setting), "environment": describe_environment("cpu")}
    return facts, lambda save, done: counted.count_all(entries, setting, tell=tell), counted_table


def _launches(given: Mapping[str, Any]) -> Prepared:
    names = given["attentions"] or list(attentions())
    for name in names:
        card(name)

    def work(save: Save, done: Points) -> Points:
        points = list(done)
        for name in names[len({point["attention"] for point in done}) :]:
            tell(name)
            points += launch_rows(name)
            save(points)
        return points

    return {"setting": {"attentions": names, "shapes": [list(shape) for shape in SHAPES]}}, work, launch_table


def _linformer_table3(given: Mapping[str, Any]) -> Prepared:
    setting = resolve_setting(given)
    facts = {
        "setting": {**asdict(setting), "reduced": setting.reduced()},
        "protocol": setting.protocol().to_dict(),
        "environment": describe_environment(setting.device),
    }
    return facts, lambda save, done: linformer_table3.measure(setting, tell=tell, save=save, done=done), linformer_table3_table


def _linformer_kernels(given: Mapping[str, Any]) -> Prepared:
    setting, limits = resolve_kernels_setting(given)
    facts = {"setting": asdict(setting), "kernels": kernels_digest(), "environment": describe_environment(setting.device)}

    def work(save: Save, done: Points) -> Points:
        return linformer_kernels.measure(setting, limits, tell=tell, save=save, done=done)

    return facts, work, linformer_kernels_table


def _peers(given: Mapping[str, Any]) -> Prepared:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items() if key != "output"
    }
    setting = peers.Setting(**values)
    versions, missing = peers.require_peers(setting.mechanisms)
    for reason in missing:
        tell(f"left out: {reason} (extra: peers)")
    facts = {
        "setting": asdict(setting),
        "protocol": setting.protocol().to_dict(),
        "environment": describe_environment("cpu"),
        "peer": versions,
        "missing": missing,
    }
    return facts, lambda save, done: peers.measure(setting, tell=tell, save=save, done=done), peers_table


def _cost(given: Mapping[str, Any]) -> Prepared:
    subjects = {label(subject): subject for subject in subjects_of(given["attentions"], given["set"])}
    setting = resolve_cost_setting(given, subjects)
    meter = energy_meter(setting.device)
    energy = not isinstance(meter, NotMeasured)
    facts = {
        "setting": setting.to_dict(),
        "protocol": setting.protocol.to_dict(),
        "energy": {"meter": None, "reason": meter.reason} if isinstance(meter, NotMeasured) else {"meter": meter.what},
        "environment": describe_environment(setting.device.type),
    }

    def work(save: Save, done: Points) -> Points:
        return step_cost.measure(setting, energy=energy, tell=tell, save=save, done=done)

    return facts, work, step_cost_table


def _honesty(given: Mapping[str, Any]) -> Prepared:
    (subject,) = subjects_of([given["layer"]], {})
    protocol = TimingProtocol.on("cpu", rounds=given["rounds"], seed=given["seed"], most_repeats=given["steps"])
    sizes = ("length", "dim", "heads", "repeats", "fresh_every", "smallest_difference", "time_limit")
    setting = honesty.Setting(subject, protocol=protocol, **{name: given[name] for name in sizes})
    facts = {"setting": setting.to_dict(), "protocol": protocol.to_dict(), "environment": describe_environment("cpu")}
    return facts, lambda save, done: honesty.measure(setting, tell=tell, save=save, done=done), honesty_table


PREPARE: Mapping[str, Callable[[Mapping[str, Any]], Prepared]] = {
    "counted": _counted,
    "launches": _launches,
    "cost": _cost,
    "linformer_table3": _linformer_table3,
    "linformer_kernels": _linformer_kernels,
    "peers": _peers,
    "honesty": _honesty,
}
"""How each experiment is made ready, by its name."""


def tell(line: str) -> None:
    """Say how far the work is, beside the table."""
    print(line, file=sys.stderr, flush=True)
