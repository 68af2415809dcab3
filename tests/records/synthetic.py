"""Synthetic records of many mechanisms on many tasks, with profiles of ability, refusals, failures and gaps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from make import PERPLEXITY, make_record

from attn_zoo.records import RunRecord

MECHANISMS = (
    *("softmax", "linformer", "performer", "longformer", "reformer", "bigbird", "block_sparse", "kernelized_linformer"),
    *("delta_rule", "fnet", "linear", "linformer_causal", "mega", "nystrom", "synthesizer_factorised", "topk"),
    *(f"mechanism_{number}" for number in range(40)),
)
CONTROLS = ("none", "uniform", "convolution", "frozen_random")
DIALS = {"linformer": "projected_length", "performer": "features", "longformer": "window", "nystrom": "landmarks", "topk": "k"}
TASKS = {
    "mqar": "Associative recall (MQAR)",
    "copying": "Selective copying",
    "induction": "Induction heads",
    "selective": "Selective sum",
    "haystack": "Needle in a byte haystack",
    "listops": "ListOps",
    "masked_language": "Masked language (bytes)",
    "text": "Text (IMDB bytes)",
    "retrieval": "Retrieval (20 Newsgroups)",
    "pixels": "Pixels (CIFAR-10)",
    "pathfinder": "Pathfinder",
    "cifar10": "CIFAR-10 (patches)",
    "cifar100": "CIFAR-100 (patches)",
    "mnist": "MNIST (patches)",
    "sst2": "SST-2",
    "qnli": "QNLI",
}
_PERPLEXITY = "masked_language"


def synthetic_records(mechanisms: int = 60, tasks: int = 16) -> list[RunRecord]:
    """Return records of ``mechanisms`` (controls included) on ``tasks``, with three seeds each. One mechanism refuses a task, one
    diverges at one seed, one runs out of memory, one times out, and one was not run on a task."""
    chance = random.Random(0)
    names = [*MECHANISMS[: mechanisms - len(CONTROLS)], *CONTROLS]
    skill = {name: [chance.random() for _ in range(4)] for name in names}
    records = []
    for at, task in enumerate(list(TASKS)[:tasks]):
        for place, name in enumerate(names):
            if (name, task) == ("longformer", "qnli"):
                continue
            flops = 2e6 * (1 + 3 * (name == "softmax") + place % 5 / 4)
            for seed in (1, 2, 3):
                level = _level(name, skill[name], at) + chance.gauss(0, 0.04 if name == "reformer" else 0.013)
                records.append(_record(name, task, seed, level, flops, status=_status(name, task, seed)))
    return records


def dialled_records(tasks: int = 9, seeds: int = 3) -> list[RunRecord]:
    """Return records of five mechanisms over five settings each, with softmax and controls at one setting."""
    chance = random.Random(1)
    records = []
    for at, task in enumerate(list(TASKS)[:tasks]):
        rows: list[tuple[str, dict[str, int], float, float]] = [
            ("softmax", {}, 0.95, 9e6),
            ("uniform", {}, 0.15 + 0.02 * at, 2e6),
            ("none", {}, 0.0, 1.9e6),
        ]
        for place, (name, option) in enumerate(DIALS.items()):
            for step, dial in enumerate((8, 16, 32, 64, 128)):
                reach = 0.94 - 0.5 * 0.6 ** (step + ((place * 3 + at) % 5) / 1.5)
                rows.append((name, {option: dial}, reach, 2.2e6 * (1 + place / 6) + 1.5e4 * dial * (1 + place / 2)))
        for name, options, level, flops in rows:
            measured = {"train_seconds": flops / 1e6 * 1.2, "peak_bytes": flops * 4, "examples_per_second": 1e9 / flops}
            for seed in range(1, seeds + 1):
                found = level + chance.gauss(0, 0.013)
                records.append(_record(name, task, seed, found, flops, measured=measured, spec_options=options))
    return records


def _record(name: str, task: str, seed: int, level: float, flops: float, **changes: Any) -> RunRecord:
    """Return a run that solves the share ``level`` of a task."""
    lower = task == _PERPLEXITY
    test = 19 - 11 * level if lower else min(1.0, max(0.0, 0.1 + 0.88 * level))
    card = {"title": TASKS[task], "length": 1024, **(PERPLEXITY if lower else {})}
    counted = {"parameters": 70_000, "flops_per_example": int(flops), "mechanism_flops_4096": int(flops)}
    record = make_record(name, task, seed, test=test, card=card, counted=counted, chance=19.0 if lower else 0.1, **changes)
    return replace(record, attention_card={**record.attention_card, "control": name in CONTROLS})


def _level(name: str, skill: Sequence[float], at: int) -> float:
    """Share of a task that a mechanism solves, from 0 to 1; it is the same for all mechanisms on the tenth task."""
    if at == 9:
        return 0.35
    if name in CONTROLS:
        return (0.02, 0.2, 0.32, 0.25)[CONTROLS.index(name)]
    if name == "softmax":
        return 0.95
    return min(1.0, 0.15 + 0.85 * skill[at % 4] ** 0.7)


def _status(name: str, task: str, seed: int) -> str:
    known = {("fnet", "listops"): "refused", ("topk", "retrieval"): "out_of_memory", ("mega", "text"): "timed_out"}
    return "diverged" if (name, task, seed) == ("delta_rule", "mqar", 2) else known.get((name, task), "done")
