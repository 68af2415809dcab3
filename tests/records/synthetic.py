"""Synthetic records of many mechanisms on many tasks, with profiles of ability, refusals, failures and gaps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from make import make_record

from attn_zoo.records import RunRecord

MECHANISMS = (
    *("softmax", "linformer", "performer", "longformer", "reformer", "bigbird", "block_sparse", "clustered", "cosformer"),
    *("delta_rule", "entmax", "external", "fixed", "fnet", "gated_linear", "kernelized_linformer", "linear", "linformer_causal"),
    *("linformer_lsh", "linformer_window", "local", "long_short", "luna", "mega", "nystrom", "pooling", "routing", "sinkhorn"),
    *("sparse_linformer", "strided", "synthesizer_dense", "synthesizer_factorised", "synthesizer_random", "topk"),
    *("transformer_xl", "retention", "differential", "moba", "native_sparse", "log_linear", "gated_delta", "hedgehog", "based"),
    *("lightning", "rwkv", "lightweight", "dynamic", "sliding", "dilated", "memory_tokens", "perceiver", "set_pooling"),
    *("galerkin", "fourier_mix", "xca", "hydra"),
)
CONTROLS = ("none", "uniform", "convolution", "frozen_random")
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


def synthetic_records(mechanisms: int = 60, tasks: int = 16, seeds: int = 3, draw: int = 0) -> list[RunRecord]:
    """Return records of ``mechanisms`` (controls included) on ``tasks``, with ``seeds`` each. One mechanism refuses a task, one
    diverges at one seed, one runs out of memory, one times out, and one was not run on a task."""
    chance = random.Random(draw)
    names = [*MECHANISMS[: mechanisms - len(CONTROLS)], *CONTROLS]
    skill = {name: [chance.random() for _ in range(4)] for name in names}
    records: list[RunRecord] = []
    for at, (task, title) in enumerate(list(TASKS.items())[:tasks]):
        lower = task == _PERPLEXITY
        card = dict(make_record(task=task).task_card) | {"title": title, "length": 1024}
        card |= {"metric": "perplexity", "higher_is_better": False} if lower else {}
        for place, name in enumerate(names):
            if (name, task) == ("longformer", "qnli"):
                continue
            level = _level(name, skill[name], at)
            score = 19 - 11 * level if lower else 0.1 + 0.88 * level
            noise = (0.25 if lower else 0.012) * (3 if name == "reformer" else 1)
            counted = {"parameters": 70_000, "flops_per_example": int(2e6 * (1 + 3 * (name == "softmax") + place % 5 / 4))}
            for seed in range(1, seeds + 1):
                status = _status(name, task, seed)
                test = score + chance.gauss(0, noise)
                test = max(1.0, test) if lower else min(1.0, max(0.0, test))
                records.append(
                    make_record(
                        name, task, seed, test=test, status=status, task_card=card, counted=counted, chance=19.0 if lower else 0.1
                    )
                )
    return [_marked(record) for record in records]


def dialled_records(dials: Sequence[int] = (8, 16, 32, 64, 128), tasks: int = 9, seeds: int = 3, draw: int = 1) -> list[RunRecord]:
    """Records of five mechanisms over their hyperparameters, with softmax and controls at one setting."""
    chance = random.Random(draw)
    options = {
        "linformer": "projected_length",
        "performer": "features",
        "longformer": "window",
        "nystrom": "landmarks",
        "topk": "k",
    }
    records = []
    for at, (task, title) in enumerate(list(TASKS.items())[:tasks]):
        lower = task == _PERPLEXITY
        card = dict(make_record(task=task).task_card) | {"title": title}
        card |= {"metric": "perplexity", "higher_is_better": False} if lower else {}
        rows: list[tuple[str, dict[str, int], float, float]] = [
            ("softmax", {}, 0.95, 9e6),
            ("uniform", {}, 0.22 + 0.02 * at, 2e6),
            ("none", {}, 0.1, 1.9e6),
        ]
        for place, (name, option) in enumerate(options.items()):
            for step, dial in enumerate(dials):
                reach = 0.94 - 0.5 * 0.6 ** (step + ((place * 3 + at) % 5) / 1.5)
                rows.append((name, {option: dial}, reach, 2.2e6 * (1 + place / 6) + 1.5e4 * dial * (1 + place / 2)))
        for name, chosen, level, flops in rows:
            for seed in range(1, seeds + 1):
                test = (19 - 11 * level if lower else level) + chance.gauss(0, 0.3 if lower else 0.012)
                counted = {"parameters": 70_000, "flops_per_example": int(flops)}
                measured = {"train_seconds": flops / 1e6 * 1.2, "peak_bytes": flops * 4, "examples_per_second": 1e9 / flops}
                records.append(
                    make_record(
                        name,
                        task,
                        seed,
                        test=test,
                        task_card=card,
                        counted=counted,
                        measured=measured,
                        spec_options=chosen,
                        chance=19.0 if lower else 0.1,
                    )
                )
    return [_marked(record) for record in records]


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


def _marked(record: RunRecord) -> RunRecord:
    return replace(record, attention_card={**record.attention_card, "control": record.spec.attention in CONTROLS})
