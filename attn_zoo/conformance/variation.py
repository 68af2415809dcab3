"""Checks beyond the variants (sets of options) on a card: with random changes of the parameters, and with other values of
options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import Any

from attn_zoo.conformance.harness import NotApplicable, Violation
from attn_zoo.conformance.requests import trained_parameters
from attn_zoo.conformance.subject import ATTENTION_CHECKS, DEFAULTS_AT, Subject, attention_check, home_of
from attn_zoo.contract import UnsupportedError
from attn_zoo.registry import attention_options

PROVED = (
    "building_does_not_mutate_options",
    "output_is_like_the_queries",
    "eager_agrees_with_the_definition",
    "causal_output_ignores_the_future",
    "padding_has_no_influence",
    "padding_position_does_not_matter",
    "batch_mates_have_no_influence",
    "stepwise_matches_full",
    "state_dict_restores_the_output",
    "every_parameter_gets_a_gradient",
    "gradients_match_finite_differences",
    "cost_formula_is_exact",
)
"""Checks of ``eager`` that are repeated for each value of an option."""

UNKNOWN = "unheard-of"
"""Text that is not an allowed value of any option."""


TRAINED = (
    "training_keeps_the_promises",
    "recording_gradients_changes_nothing",
    "eager_agrees_with_the_definition",
    "limit_is_softmax",
    "padding_amounts_to_shorter_inputs",
    "stepwise_matches_full",
    "resizing_keeps_what_was_trained",
)
"""Checks that are repeated after the parameters have moved from their initial values."""


@attention_check("variant")
def promises_hold_once_trained(subject: Subject) -> None:
    """A selection of the other checks also passes after random changes of the trainable parameters."""
    if not trained_parameters(subject.build()):
        raise NotApplicable("the module has no trainable parameters")
    far, near = (replace(subject, moved=distance, brief=True, traces={}) for distance in (2.0, 0.5))
    _prove([*((name, far) for name in TRAINED), *_against_eager(near)], "parameters moved")  # near: rounding at usual score sizes


@attention_check("card")
def options_hold_beyond_the_variants(subject: Subject) -> str:
    """If no variant (set of options on the card) changes an option, other allowed values of this option are tried. Dropout rates
    are left out. With each value, some of the other checks must pass."""
    covered = {name for given in subject.card.variants.values() for name in given}
    names = [option.name for option in fields(subject.options) if option.name not in covered and "dropout" not in option.name]
    if not names:
        raise NotApplicable("this check needs an option that no variant changes, but the variants change every option")
    tried = []
    for name in names:
        for value in _values(subject, name):
            told = f"{name}={value.name if isinstance(value, Enum) else value}"
            varied = _varied(subject, name, value, told)
            if varied is not None:
                tried.append(told)
                _prove([*((name, varied) for name in PROVED), *_against_eager(varied)], told)
    return f"tried {', '.join(tried) or 'none, since their rules allow no other value'}"


def _values(subject: Subject, name: str) -> Iterable[Any]:
    """Yield other values to try for an option, chosen by its type."""
    now = getattr(subject.options, name)
    return iter(texts(subject, name)) if type(now) is str else values(now)


def values(now: Any) -> Iterator[Any]:
    """Yield values to try for an option in place of its present value (``now``), chosen by the type of this value. Yield none for
    text, because the type does not say which texts are allowed."""
    if isinstance(now, bool):
        yield not now
    elif isinstance(now, Enum):
        yield from (member for member in type(now) if member is not now)
    elif isinstance(now, int):
        yield from dict.fromkeys(value for value in (now + 1, max(1, now // 2)) if value != now)
    elif isinstance(now, float):
        yield from (now / 2, now * 2) if now else (0.1, 1.0)


def texts(subject: Subject, name: str) -> list[str]:
    """Return texts to try as the value of the option ``name``. To find them, the option is set to an unknown text. If this raises
    ``ValueError`` or ``UnsupportedError``, the words of the message are returned, because it names the allowed texts. Otherwise,
    only the unknown text is returned."""
    try:
        _with(subject, name, UNKNOWN)
    except (ValueError, UnsupportedError) as refusal:
        words = (word.strip(".") for word in re.findall(r"[\w.+/-]+", str(refusal)))
        return [word for word in dict.fromkeys(words) if word and word not in (UNKNOWN, getattr(subject.options, name))]
    except Exception:  # ``_varied`` raises the same error again and reports it
        return [UNKNOWN]
    return [UNKNOWN]


def _with(subject: Subject, name: str, given: Any) -> Subject:
    """Return the subject with another value of one option. If it cannot be built, the error is raised."""
    options = attention_options(subject.card, DEFAULTS_AT, {name: given})
    varied = replace(subject, options=options, brief=True, traces={})
    varied.build()
    return varied


def _varied(subject: Subject, name: str, value: Any, told: str) -> Subject | None:
    """Return the subject with another value of one option, or None if the rules do not allow the value."""
    try:
        varied = _with(subject, name, value.name if isinstance(value, Enum) else value)
    except (ValueError, UnsupportedError):
        return None
    except Exception as error:
        raise Violation(
            f"{told}: building must succeed, or raise ValueError or UnsupportedError; got {type(error).__name__}: {error}"
        ) from error
    return replace(varied, variant=told)


def _against_eager(subject: Subject) -> list[tuple[str, Subject]]:
    """Return cases that compare each other implementation that can run here with ``eager``."""
    twins = [name for name in subject.card.implementations[1:] if home_of(name, subject.device)[0] is not None]
    return [("implementation_agrees_with_eager", replace(subject, implementation=name, traces={})) for name in twins]


def _prove(cases: Sequence[tuple[str, Subject]], told: str) -> None:
    for name, each in cases:
        if each.interpreted:
            continue
        try:
            ATTENTION_CHECKS[name].prove(each)
        except NotApplicable:
            continue
        except Exception as error:
            kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
            raise Violation(f"{told}: {name}: {kind}{error}") from error
