"""Tiers of the suite: ``pytest`` runs ``plain``, ``pytest --all`` all but ``exhaustive``, ``pytest --exhaustive`` every test.

A test is in the tier of its marker, else of its folder or file in ``PLACES``, else in ``plain``. A case of the conformance kit is
in ``variants`` or ``exhaustive`` (see ``tier_of_variant``) unless it tests the defaults of a card, and in ``data`` if these read a
published data set. Tests that are named on the command line run, whatever their tier.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PLAIN, EXHAUSTIVE = "plain", "exhaustive"
TIERS: Mapping[str, str] = {
    PLAIN: "what needs pytest alone, in two minutes",
    "variants": "the kit beyond default settings, eager and usual sizes, and its mutants",
    "process": "commands, sweeps and workers in processes of their own, and measurements",
    "kernels": "Triton kernels in the interpreter or compiled, exported and compiled layers",
    "docs": "the tutorials, a command of each kind that the documentation shows, and files that are made from records",
    "peers": "comparisons with public packages",
    "extras": "what needs another extra than ``test``",
    "data": "published data sets, and the tasks that read them by default",
    "simulations": "thousands of simulated records, for the level and the power of a test",
    EXHAUSTIVE: "every setting in every check, every launcher, a hundred kills, every command and page that is shown, the site",
}
"""Tiers by the marker that selects them."""

PLACES: Mapping[str, str] = {
    **dict.fromkeys(["docs/test_site.py", "leaderboard/test_page_in_browser.py"], EXHAUSTIVE),
    **dict.fromkeys(["docs", "golden", "test_readme.py", "test_tutorials.py", "test_way_in.py"], "docs"),
    **dict.fromkeys(["kernels", "benchmarks/test_kernel_report.py", "benchmarks/test_linformer_kernels.py"], "kernels"),
    **dict.fromkeys(["test_export.py", "attention/test_fla.py", "attention/test_flex.py"], "kernels"),
    **dict.fromkeys(["attention/peers", "attention/test_linformer_peer.py", "benchmarks/test_peers.py"], "peers"),
    **dict.fromkeys(["attention/test_eager_form.py", "integrations/test_transformers_zoo.py"], "variants"),
    "integrations/test_timm_own_tests.py": "variants",
    **dict.fromkeys(["attention/test_second_derivatives.py", "bench/test_counted.py", "bench/test_counted_models.py"], "variants"),
    **dict.fromkeys(["mutants", "test_conformance_causes.py", "test_conformance_jumps.py", "test_layer_steps.py"], "variants"),
    **dict.fromkeys(["hostile", "survival", "sweeps", "cli/test_cli.py", "benchmarks/test_gpu.py"], "process"),
    **dict.fromkeys(["cli/test_every_task_runs.py", "recommend/test_command.py", "bench/test_workers.py"], "process"),
    **dict.fromkeys(["runner/test_checkpoint.py", "test_packaging.py"], "process"),
    **dict.fromkeys(["runner/test_pretraining.py", "runner/test_callback.py"], "process"),
    **dict.fromkeys(["test_plugin.py", "tasks/test_published_flaws.py"], "process"),
    **dict.fromkeys(["records/test_committed_ids.py", "records/test_rerun.py"], "process"),
    **dict.fromkeys(["test_light_import.py", "cli/test_new.py", "bench/test_session.py"], "process"),
    **dict.fromkeys(["cli/test_check.py", "cli/test_entry.py", "cli/test_submit.py"], "process"),
    **dict.fromkeys(["cli/test_experiments.py", "runner/test_kept_weights.py", "analysis/test_commands.py"], "process"),
    **dict.fromkeys(["transplant", "data/test_labelled_text.py"], "extras"),
    "analysis/test_analyze.py": "extras",
    **dict.fromkeys([f"integrations/test_transformers{part}.py" for part in ("", "_refusals", "_saving")], "extras"),
    **dict.fromkeys([f"integrations/test_{name}.py" for name in ("convolved", "generation", "hybrid_models")], "extras"),
    "leaderboard/test_verdict_simulations.py": "simulations",
}
"""Folders and files whose tests are all in one tier."""

KIT = ("test_attention_conformance.py", "test_task_conformance.py")
CHECKS: Mapping[str, str] = {
    "another_process_agrees": "process",
    "compiled_agrees": "kernels",
    **dict.fromkeys(["every_size_runs_in_every_type", "gradients_follow_outputs_at_every_size"], "variants"),
    **dict.fromkeys(["every_position_counts_at_every_size", "no_future_leaks_at_any_border"], "variants"),
    **dict.fromkeys(["options_hold_beyond_the_variants", "steps_hold_on_for_long", "calls_recover_from_errors"], "variants"),
    **dict.fromkeys(["time_grows_as_printed", "promises_hold_once_trained", "data_seed_changes_the_data"], "variants"),
    **dict.fromkeys(["batch_size_has_no_influence", "padding_position_does_not_matter"], "variants"),
    **dict.fromkeys(["memory_grows_as_printed", "second_derivatives_are_right_or_refused"], "variants"),
    "checkpointing_changes_nothing": "variants",
}
"""Tiers of checks of the kit that start a process or a compiler, or run large sizes or many of them, by name."""

CORE = frozenset(
    [
        *("card_is_complete", "eager_agrees_with_the_definition", "implementation_agrees_with_eager", "limit_is_softmax"),
        *("causal_output_ignores_the_future", "padding_has_no_influence", "padding_amounts_to_shorter_inputs"),
        *("stepwise_matches_full", "gradients_match_finite_differences"),
    ]
)
"""Checks that run on settings other than the defaults before ``exhaustive``; others run on the defaults alone."""
DEFINITION, AGREEMENT = "eager_agrees_with_the_definition", "implementation_agrees_with_eager"

LOOPS = frozenset(
    [
        *("delta_product", "delta_rule", "forgetting", "gated_delta_rule", "gated_linear", "gated_slot", "kda", "retention"),
        *("rwkv7", "sparse_compression", "ssd"),
    ]
)
"""Attentions whose definition takes seconds, most of them position after position: ``plain`` does not compare them with it."""

LONG = ("process", "docs", EXHAUSTIVE)
"""Tiers with tests of half a minute and more."""

IMPLEMENTATIONS: Mapping[str, str] = {"triton": "kernels", "fla": "kernels", "tiled": "variants", "sdpa": "variants"}
"""Tiers of cases of the kit by their implementation; those in ``kernels`` run in Triton's interpreter."""
INTERPRETED = "triton"
"""Implementation of which checks outside of ``CORE`` are in ``exhaustive``: the interpreter takes half a minute for them. Tests in
``kernels`` have strides, dropout, types and gradients of its kernels, and ``benchmarks/gpu.py`` runs the whole kit on a GPU."""

TESTS = Path(__file__).parent

NAMED: pytest.StashKey[bool] = pytest.StashKey()
"""True if files or tests were named on the command line."""
COLLECTED: pytest.StashKey[Counter[str]] = pytest.StashKey()
"""Number of tests that were collected, by tier."""


def selected(tier: str, level: str) -> bool:
    """Return True if tests of a tier run at a level: ``plain``, ``all`` or ``exhaustive``."""
    return level == EXHAUSTIVE or tier == PLAIN or (level == "all" and tier != EXHAUSTIVE)


@cache
def tier_of_path(path: Path) -> str | None:
    """Tier of all tests of a folder or file; None if they are not all in one tier."""
    inside = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    return next((tier for place, tier in PLACES.items() if inside == place or inside.startswith(f"{place}/")), None)


def place_of(path: Path, name: str) -> str | None:
    """Tier of a test by its folder or file, or as a case of the kit; None if it has none."""
    kit = path.parent == TESTS and path.name in KIT
    if kit and "[" in name.partition("[")[2]:
        subject, _, check = name.removesuffix("]").rpartition("-")
        entry = name.partition("[")[2].partition("[")[0]
        if "[default]" not in name:
            return tier_of_variant(entry, subject.rpartition("-")[2], check, path.name == KIT[1])
        if check == DEFINITION and entry in LOOPS:
            return "variants"
        if subject.rpartition("-")[2] == INTERPRETED and check not in CORE:
            return EXHAUSTIVE
        if check in CHECKS:
            return CHECKS[check]
        if name.startswith("test_registered_task_conforms["):
            return "data" if reads_published_data(name.split("[")[1]) else None
        return IMPLEMENTATIONS.get(subject.rpartition("-")[2])
    return tier_of_path(path)


def tier_of_variant(name: str, implementation: str, check: str, is_task: bool) -> str:
    """Tier of a case of the kit with other settings than the defaults.

    Three kinds of case of ``CORE`` are left to ``exhaustive`` as well, since others tell the same before it. The card of a task
    that can read published data takes seconds, and ``tests/tasks/test_every_task.py`` builds the task at every level. An
    implementation must agree with ``eager`` in outputs and gradients, with and without padding, and the other checks run on
    ``eager``. Attentions of ``LOOPS`` that have steps are compared with these.
    """
    from attn_zoo.registry import card, task_card  # imports Triton, as in ``reads_published_data``

    if check not in CORE:
        return EXHAUSTIVE
    if is_task:
        told = bool(task_card(name).locations)
    elif implementation != "eager":
        told = check != AGREEMENT
    else:
        told = check == DEFINITION and name in LOOPS and card(name).can.stepwise
    return EXHAUSTIVE if told else "variants"


@cache
def reads_published_data(task: str) -> bool:
    """Return True if a task reads, by default, a data set from the user's data folder."""
    from attn_zoo.registry import build_task, task_card  # imports Triton, before which conftest.py chooses its interpreter

    return bool(task_card(task).locations) and build_task(task).data_title != "generated"


def tier_of(item: pytest.Item) -> str:
    """Tier of a test, by its marker, else by its place.

    Raises:
        UsageError: its markers name more than one, and not ``exhaustive``.
    """
    named = {mark.name for mark in item.iter_markers() if mark.name in TIERS}
    if EXHAUSTIVE in named:  # as one case of a test in another tier
        return EXHAUSTIVE
    if len(named) > 1:
        raise pytest.UsageError(f"{item.nodeid}: a test is in one tier; got {', '.join(sorted(named))}")
    return next(iter(named), None) or place_of(item.path, item.name) or PLAIN


def leave_out(test: pytest.Metafunc, level: str) -> None:
    """Leave out cases of the kit that a level does not run, before pytest makes a test of each and deselects it."""
    path, marks = test.definition.path, test.definition.own_markers
    for at, mark in enumerate(marks):
        if path.parent == TESTS and path.name in KIT and mark.name == "parametrize" and mark.args[0] == "check":
            places = {case.id: place_of(path, f"{test.definition.name}[{case.id}]") or PLAIN for case in mark.args[1]}
            kept = [case for case in mark.args[1] if selected(places[case.id], level)]
            marks[at] = pytest.mark.parametrize("check", kept).mark


def in_halves(paths: Sequence[Path], tiers: Sequence[str]) -> list[int]:
    """Order of tests for two processes that begin with a half each: files of ``LONG`` tiers whole at the beginning of either half.

    At its end a process takes tests from the other's end, which are short ones there.
    """
    long, short = defaultdict[Path, list[int]](list), list[int]()
    for at, (path, tier) in enumerate(zip(paths, tiers, strict=True)):
        (long[path] if tier in LONG and path.name not in KIT else short).append(at)
    first, second = list[int](), list[int]()
    for own in sorted(long.values(), key=len, reverse=True):
        min(first, second, key=len).extend(own)
    middle = max(0, len(paths) // 2 - len(first))
    return [*first, *short[:middle], *second, *short[middle:]]


def covering(first: Iterable[Any], second: Iterable[Any], enough: Sequence[Any] | None = None) -> list[Any]:
    """Parameters for all pairs of two lists: pairs that give every value of both lists once, and the others in ``exhaustive``.

    Args:
        enough: values of ``first`` that must have such a pair; by default all.
    """
    ours, theirs = list(first), list(second)
    chosen = [at for at, one in enumerate(ours) if enough is None or one in enough]
    needed = {(chosen[at % len(chosen)], at % len(theirs)) for at in range(max(len(chosen), len(theirs)))}
    return [
        pytest.param(one, other, marks=() if (i, j) in needed else pytest.mark.exhaustive)
        for i, one in enumerate(ours)
        for j, other in enumerate(theirs)
    ]


BEST_KNOWN = ("linformer", "linear", "longformer", "nystrom", "delta_rule")
"""Attentions that represent their kind."""


def kinds(names: Iterable[str]) -> list[str]:
    """Return one of those attentions that have equal capabilities and inputs, by which layers and models treat them."""
    from attn_zoo.contract import CompressingAttention  # imports Triton, as in ``reads_published_data``
    from attn_zoo.registry import card

    every, first = list(names), dict[Any, str]()
    for name in sorted(every, key=lambda name: name not in BEST_KNOWN):
        entry = card(name)
        first.setdefault((entry.can, entry.reads, entry.streams, issubclass(entry.build, CompressingAttention)), name)
    return [name for name in every if name in first.values()]


def of_each_kind(names: Iterable[str]) -> list[Any]:
    """Parameters for attentions: one of each kind, and the others in ``exhaustive``.

    It is for tests of what surrounds a mechanism, such as layers and models; the kit tests every mechanism.
    """
    every = list(names)
    chosen = kinds(every)
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.exhaustive) for name in every]
