"""Checks of heads, of side effects on the process, of printed text, and of errors, resizing and empty inputs."""

from __future__ import annotations

import copy
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attn_zoo.conformance.harness import Violation, require, seed_generators
from attn_zoo.conformance.requests import Request, answers, require_like_queries, trained_parameters
from attn_zoo.conformance.subject import Subject, attention_check, move_parameters
from attn_zoo.contract import Attention, UnsupportedError
from attn_zoo.process_state import kept


@attention_check("twin")
def some_setting_is_served(subject: Subject) -> None:
    """The implementation supports the default options or at least one variant (set of options) on the card, causal or not."""
    reasons = set()
    for options in (subject.options, *subject.variants()):
        forms = [subject.geometry(causal=causal) for causal in (False, *([True] if subject.causal else []))]
        found = [subject.card.build.refuses(subject.implementation, geometry, options) for geometry in forms]
        if None in found:
            return
        reasons.update(found)
    raise Violation(f"{subject.implementation} supports no variant of the card: {'; '.join(map(str, sorted(map(str, reasons))))}")


@attention_check("implementation")
def heads_keep_to_themselves(subject: Subject) -> None:
    """No head influences another head, unless the card declares ``mixes_heads``. With ``mixes_heads``, some head must influence
    another."""
    largest = 0.0
    for module in subject.modules(replace(geometry, heads=3) for geometry in subject.plain_and_causal()):
        for each in subject.requests(module):
            before = each(module)
            for moved, what, factor in (
                (1, "other numbers", 1.0),
                (1, "numbers 100 times as large", 100.0),
                (0, "other numbers", 1.0),
            ):
                after = each.changed(partial(_with_head, moved, factor))(module)
                for head in {0, 1, 2} - {moved}:
                    if subject.card.can.mixes_heads:
                        largest = max(largest, (after[:, head] - before[:, head]).abs().max().item())
                        continue
                    what_moved = f"head {head} when head {moved} holds {what}, causal={module.geometry.causal}"
                    subject.equal(after[:, head], before[:, head], what_moved)
    require(largest > 0 or not subject.card.can.mixes_heads, "the card declares mixes_heads, but no head influences another")


def _with_head(head: int, factor: float, name: str, tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    changed[:, head] = factor * (tensor[:, head].flip(-1) + 1)
    return changed


@attention_check("implementation")
def the_process_is_left_as_it_was(subject: Subject) -> None:
    """Building, calls and training do not change settings of the process, such as random states and the number of threads.
    PyTorch's generator may advance if random numbers are drawn, but must never be seeded."""
    draws, modules = subject.card.can.random_at_build, list(subject.modules(options=subject.without_dropout()))
    with kept(), ExitStack() as after:  # both put back what is changed here
        after.callback(logging.root.setLevel, logging.root.level)
        for read, move, (usual, other) in SWITCHES:
            move(other if read() == usual else usual)
        warnings.resetwarnings()
        for module in modules:
            may_draw = {"building": draws or any(True for _ in module.parameters()), "a call": False, "a call in training": draws}
            for what, run in _runs(subject, module).items():
                torch.set_num_threads(2 if what == "building" else 1)  # calls on more threads than idle cores are slow
                _require_no_trace(run, what, module.geometry.causal, may_draw[what])


def _runs(subject: Subject, module: Attention) -> dict[str, Callable[[], object]]:
    """Return functions, by name, that build a module like ``module``, call it, and call it in training mode with a backward
    pass."""
    request = subject.draw(module)
    return {
        "building": lambda: subject.card.build(module.geometry, copy.deepcopy(subject.options), subject.implementation),
        "a call": partial(request, module),
        "a call in training": partial(answers, request, copy.deepcopy(module).train()),
    }


OF_LIBRARIES = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning)
"""Categories of warnings that depend on the version of a library. The check ignores them."""


@attention_check("implementation")
def calls_are_silent(subject: Subject) -> None:
    """Building, calls and training print nothing and issue no Python warnings. Warnings about options are returned by the method
    ``warnings`` instead."""
    for module in subject.modules():
        for what, run in _runs(subject, module).items():
            with (
                redirect_stdout(StringIO()) as out,
                redirect_stderr(StringIO()) as err,
                warnings.catch_warnings(record=True) as told,
            ):
                warnings.simplefilter("always")
                run()
            told = [warning for warning in told if not issubclass(warning.category, OF_LIBRARIES)]
            printed = (out.getvalue() + err.getvalue()).strip()
            require(not printed, f"{what} prints {printed[:80]!r}")
            require(not told, f"{what} warns: {told[0].message if told else ''}")


Switch = tuple[Callable[[], Any], Callable[[Any], object], tuple[Any, Any]]
"""Setting of the process, as a triple: a function that reads the setting, a function that sets it, and two of its values."""

SWITCHES: tuple[Switch, ...] = (
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest", "high")),
    (lambda: logging.root.manager.disable, logging.disable, (0, 1)),
    (lambda: logging.root.level, logging.root.setLevel, (logging.WARNING, logging.INFO)),
    (lambda: torch.backends.cudnn.benchmark, partial(setattr, torch.backends.cudnn, "benchmark"), (False, True)),
    (lambda: torch.backends.cudnn.allow_tf32, partial(setattr, torch.backends.cudnn, "allow_tf32"), (True, False)),
)
"""Settings that a check changes before it runs a module. The check then also notices a module that sets the usual value."""


def _require_no_trace(run: Callable[[], object], what: str, causal: bool, may_draw: bool) -> None:
    """Require that two runs change no setting of the process, and do not seed random generators. If ``may_draw`` is False, they
    must not advance PyTorch's generator either."""
    random.random(), np.random.random()  # so that seeding once more with the same seed is a change
    _set_environment(STARTED)
    ends = []
    with kept() as changed:
        before, modules = _settings(), len(sys.modules)
        for seed in (11, 12):
            _set_environment(STARTED)  # a library that the first run imported may have set more
            seed_generators(seed)
            start = torch.get_rng_state()
            run()
            ends.append(torch.get_rng_state())
            moved = not torch.equal(start, ends[-1])
            require(may_draw or not moved, f"{what} draws from torch's global generator, but must not draw random numbers")
        after = _settings()
        variables = sorted(name for name in STARTED.keys() | os.environ.keys() if STARTED.get(name) != os.environ.get(name))
    if len(sys.modules) != modules:  # a library imported on first use may add filters; ``kept`` finds those that plugins add
        del after[_FILTERS]
    changed += [name for name, found in after.items() if found != before[name]]
    require(not variables, f"{what} changed environment variables: {', '.join(variables)}")
    require(not changed, f"{what}, causal={causal} changed {', '.join(dict.fromkeys(changed))}")
    require(not torch.equal(*ends), f"{what} seeds torch's global generator")


_FILTERS = "filters of warnings"


def _settings() -> dict[str, Any]:
    """Return random states and settings of the process of which ``kept`` does not report every change, by name."""
    return {
        "the state of random": random.getstate(),
        "the state of numpy.random": repr(np.random.get_state()),
        "logging": (logging.root.level, list(logging.root.handlers)),
        _FILTERS: len(warnings.filters),
    }


STARTED = dict(os.environ)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


@attention_check("variant")
def resizing_keeps_what_was_trained(subject: Subject) -> None:
    """``resize_length`` keeps trained weights, and resizing to the present length changes no output.

    Tensors that keep their shape are unchanged, bit by bit. If a parameter changes its shape, as many of its new numbers as
    possible must depend on the old weights.
    """
    for geometry in subject.plain_and_causal():
        module = subject.build(geometry)
        request = subject.draw(module)
        before = request(module)
        try:
            module.resize_length(geometry.keys)
            subject.equal(request(module), before, "output after a resize to the present length", subject.exactness)
        except UnsupportedError:
            pass
        for length in (2 * geometry.keys + 1, geometry.keys - 2):
            _require_kept(subject, move_parameters(subject.build(geometry), 1.0), length)


def _require_kept(subject: Subject, module: Attention, length: int) -> None:
    old = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    trained, held = {name for name, _ in module.named_parameters()}, trained_parameters(module).keys()
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    try:
        for each in (module, other):
            seed_generators(8)
            each.resize_length(length)
    except UnsupportedError:
        return  # resizing_leads_to_the_new_length checks that claimed lengths are not refused
    dtypes = {parameter.dtype for parameter in module.parameters()}
    require(
        dtypes <= {subject.dtype} and not module.training,
        f"resize_length({length}) must keep {subject.dtype} and eval mode; got {dtypes} and training={module.training}",
    )
    for name, new in module.state_dict().items():
        if name in old and new.shape == old[name].shape:
            require(torch.equal(new, old[name]), f"resize_length({length}) changed {name}, whose shape is the same")
        elif name in trained:
            kept = int((other.state_dict()[name] != new).sum())
            least = min(new.numel(), old[name].numel()) if name in old else 0
            message = f"resize_length({length}): {kept} of {new.numel()} numbers of {name} depend on the trained weights"
            require(kept >= least, f"{message}, but at least {least} must")
    frozen = sorted(held - trained_parameters(module).keys())
    require(not frozen, f"resize_length({length}) froze {', '.join(frozen)}")


@attention_check("implementation")
def calls_recover_from_errors(subject: Subject) -> None:
    """After a call with wrong arguments, or after an error inside a call, the next call gives the same output as before."""
    for module in subject.modules():
        request = subject.draw(module)
        before = request(module)
        bad = [replace(request, value=request.value[0]), request.padded(request.value[:, 0, :, 0]), request.first(0)]
        for each in bad:
            with suppress(Exception):  # any error may come; the next call is what counts
                each(module)
        counted = _FailsAt(-1)
        with counted:
            request(module)
        for place in sorted({1, counted.seen // 2, counted.seen}):
            with suppress(Exception), _FailsAt(place):
                request(module)
            where = f"the call after an error at operation {place} of {counted.seen}, causal={module.geometry.causal}"
            subject.equal(request(module), before, where, subject.exactness)
        require(request.leaves()(module).requires_grad, "after an error inside a call, no gradient reaches any input")


class _FailsAt(TorchDispatchMode):
    """Dispatch mode in which one operation fails, as if memory had run out."""

    def __init__(self, place: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
        self.place, self.seen = place, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        if self.seen == self.place:
            raise RuntimeError("this operation fails, as if memory had run out")
        return func(*args, **(kwargs or {}))


@attention_check("implementation")
def empty_inputs_are_answered_or_refused(subject: Subject) -> None:
    """Inputs without examples, or without positions, give an empty output and empty gradients. A mechanism may instead raise
    ``ValueError`` or ``UnsupportedError``."""
    for module in subject.modules():
        request = subject.draw(module)
        none = request.rows(slice(0, 0))
        cases: dict[str, Request] = {"no examples": none, "no positions": request.first(0)}
        if subject.card.can.key_padding:
            mask = torch.ones(0, module.geometry.keys, dtype=torch.bool, device=subject.device)
            cases["no examples, padded"] = none.padded(mask)
        for what, empty in cases.items():
            leaves = empty.leaves()
            try:
                out = leaves(module)
            except (ValueError, UnsupportedError):
                continue
            require_like_queries(leaves, out, what)
            require(out.requires_grad, f"{what}: no gradient reaches any input")
            out.sum().backward()
