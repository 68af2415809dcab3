"""Conformance tests of a mechanism: the checks that run for each variant (set of options) and implementation on its card."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import partial

import torch

from attn_zoo.conformance import (
    agreement,
    batch,
    causality,
    claims,
    cost,
    gradients,
    modes,
    numerics,
    padding,
    placement,
    promises,
    second_derivatives,
    state,
    stepwise,
    variation,
    written,
)
from attn_zoo.conformance.harness import Case, Report, run_cases, unbuildable
from attn_zoo.conformance.sizes import drawn_sizes
from attn_zoo.conformance.subject import ATTENTION_CHECKS, DEFAULTS_AT, AttentionCheck, Scope, Subject, home_of
from attn_zoo.contract import AttentionCard, TaskCard
from attn_zoo.registry import attention_options, task_card, task_names
from attn_zoo.registry import card as card_of

THEMES = (
    claims,
    agreement,
    causality,
    padding,
    placement,
    stepwise,
    batch,
    promises,
    state,
    written,
    modes,
    gradients,
    second_derivatives,
    numerics,
    cost,
    variation,
)
"""Modules of checks, in the order in which their checks run. Importing a module registers its checks."""

DEFAULT = "default"

NO_DEFINITION = "no definition: nobody has compared the output with your equation"
"""Warning in the report of a mechanism that is not exact and has no method ``definition``."""


def resolve(target: str) -> AttentionCard | TaskCard:
    """Return the card (registered description) of a mechanism or a task.

    Args:
        target: a registered name, or a class that is written ``package.module:Class``.

    Raises:
        UnknownNameError: nothing has this name.
        ValueError: the module cannot be imported or has no such class, or the class has no card of its own.
    """
    if ":" not in target:
        return task_card(target) if target in task_names() else card_of(target)
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module outside the zoo may raise anything
        raise ValueError(f"{target!r}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, class_name):
        raise ValueError(f"{target!r}: module {module_name!r} has no attribute {class_name!r}")
    found = getattr(module, class_name)
    card = getattr(found, "card", None)
    if not isinstance(found, type) or not isinstance(card, (AttentionCard, TaskCard)):
        raise ValueError(f"{target!r}: {class_name!r} in {module_name!r} is not a class with a card; register it with a decorator")
    if card.build is not found:
        raise ValueError(
            f"{target!r}: the card of {class_name!r} in {module_name!r} belongs to {card.origin}; give the class its own"
        )
    return card


def attention_checks(attention: str | AttentionCard, device: torch.device | None = None) -> Iterator[Case]:
    """Yield every conformance check of a mechanism as a case that can be called.

    The checks run with the default options and with each set of options in ``card.variants``, in every implementation that this
    machine can run. An implementation that it cannot run yields one skipped case with the reason. GPU kernels that run on a CPU are
    checked with the default options only.

    Args:
        attention: a registered name, ``package.module:Class`` or a card.
        device: device on which every implementation runs. None means the CPU for all implementations that can run on it.

    Raises:
        UnknownNameError: no mechanism has this name.
        ValueError: the class cannot be found, or is a task.
    """
    card = resolve(attention) if isinstance(attention, str) else attention
    if isinstance(card, TaskCard):
        raise ValueError(f"{attention!r} is a task, not an attention mechanism; use check_task")
    for variant, given in {DEFAULT: {}, **card.variants}.items():
        try:
            options = attention_options(card, DEFAULTS_AT, given)
        except Exception as error:  # an entry's own rules may raise anything; other settings are still checked
            yield unbuildable(card.name, variant, error, ATTENTION_CHECKS["card_is_complete"].contract, "eager")
            continue
        for implementation in card.implementations:
            home, reason = home_of(implementation, device)
            if home is None:
                if variant == DEFAULT:
                    yield Case(
                        card.name, "runs_here", "The implementation runs on this machine.", _never, variant, implementation, reason
                    )
                continue
            subject = Subject(card, variant, options, implementation, home)
            if subject.interpreted and variant != DEFAULT:
                continue  # each takes minutes, and the kernels are the same
            for check in sorted(ATTENTION_CHECKS.values(), key=_place):
                if _concerns(check.scope, variant, implementation):
                    yield Case(card.name, check.name, check.contract, partial(check.prove, subject), variant, implementation)


def check_attention(attention: str | AttentionCard, *, expected_failures: Mapping[str, str] | None = None) -> Report:
    """Run the conformance tests on a mechanism and return the report. For ``expected_failures``, see ``run_cases``.

    Args:
        attention: a registered name, ``package.module:Class`` or a card.

    Raises:
        UnknownNameError: no mechanism has this name, or ``expected_failures`` names a check that does not exist.
        ValueError: the class cannot be found.
    """
    cases = list(attention_checks(attention))
    card = resolve(attention) if isinstance(attention, str) else attention
    return run_cases(card.name, cases, expected_failures, str(drawn_sizes(card.name)), unknown=unknown_of(card))


def unknown_of(card: AttentionCard | TaskCard) -> str:
    """Return a warning if no check compares the outputs of a mechanism with its equation, otherwise an empty text. A check compares
    exact mechanisms with softmax attention, and other mechanisms with their method ``definition``, if they have one."""
    known = isinstance(card, TaskCard) or card.can.exact or card.build.definition is not None
    return "" if known else NO_DEFINITION


def _place(check: AttentionCheck) -> int:
    """Return the rank of a check by theme. Checks that are registered elsewhere come last."""
    names = [theme.__name__ for theme in THEMES]
    return names.index(check.prove.__module__) if check.prove.__module__ in names else len(names)


def _concerns(scope: Scope, variant: str, implementation: str) -> bool:
    if scope == "twin":
        return implementation != "eager"
    return scope == "implementation" or (implementation == "eager" and (scope == "variant" or variant == DEFAULT))


def _never() -> None:
    """Placeholder for cases that this machine cannot run; calling such a case reports the reason."""
