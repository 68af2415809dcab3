"""Checks that training gives the same results with gradient checkpointing, and when it continues from a state dict."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attn_zoo.conformance.harness import NotApplicable, require, seed_generators
from attn_zoo.conformance.requests import Request, trained_parameters, weighed, without_padded_queries
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention, Geometry, UnsupportedError, auxiliary_loss
from attn_zoo.contract.auxiliary import has_auxiliary_loss

Call = Callable[[Request, Attention], Tensor]


def _plainly(request: Request, module: Attention) -> Tensor:
    return request(module)


def _checkpointed(reentrant: bool) -> Call:
    def call(request: Request, module: Attention) -> Tensor:
        def run(*tensors: Tensor) -> Tensor:
            return request.holding(dict(zip(request.tensors, tensors, strict=True)))(module)

        out: Tensor = checkpoint(run, *request.tensors.values(), use_reentrant=reentrant)
        return out

    return call


@attention_check("implementation")
def checkpointing_changes_nothing(subject: Subject) -> None:
    """Gradient checkpointing, reentrant or not, changes no gradient, no buffer and no later output, with and without dropout.

    With checkpointing, the backward pass calls the module a second time. The second call must compute the same as the first, and
    must not change buffers or other stored numbers again. This also holds if several calls come before one backward pass.

    If the mechanism has an auxiliary loss, all this also holds for a loss to which it is added, and the backward pass must leave no
    further auxiliary loss. With reentrant checkpointing, ``auxiliary_loss`` may raise an error that asks for use_reentrant=False.
    """
    for geometry in subject.plain_and_causal():
        for options in _with_and_without_dropout(subject, geometry):
            module = subject.build(geometry, options=options)
            for auxiliary in (False, True) if has_auxiliary_loss(module) else (False,):
                want = _training(subject, module, _plainly, auxiliary)
                for reentrant in (False, True):
                    where = f"with checkpointing, use_reentrant={reentrant}, causal={geometry.causal}, auxiliary={auxiliary}"
                    try:
                        got = _training(subject, module, _checkpointed(reentrant), auxiliary)
                    except UnsupportedError as error:
                        require(auxiliary and reentrant and "use_reentrant=False" in str(error), f"{where}: {error}")
                        continue
                    subject.equal(got, want, where, subject.exactness)


def _with_and_without_dropout(subject: Subject, geometry: Geometry) -> Iterator[object]:
    yield subject.without_dropout()
    if names := subject.dropouts():
        options = replace(subject.options, **dict.fromkeys(names, 0.3))
        try:
            subject.build(geometry, options=options)
        except (NotApplicable, UnsupportedError):  # this implementation or form has no dropout
            return
        yield options


def _training(subject: Subject, module: Attention, call: Call, auxiliary: bool) -> dict[str, Tensor]:
    """Return gradients, buffers and a later output of a copy of the module after training steps. Each step has two calls with
    gradients. Every second step also has one call without gradients.

    Args:
        auxiliary: if True, the auxiliary loss is added to the loss. The auxiliary loss that remains after the backward passes is
            returned, too.
    """
    module = copy.deepcopy(module).train()
    left = torch.zeros((), device=subject.device)
    first, second = (_draw(subject, module, seed=seed) for seed in (1, 2))
    seed_generators(5)
    for step in range(1 if subject.interpreted else 4):
        outs = [without_padded_queries(request, call(request, module)) for request in (first, second)]
        loss = weighed(outs[0]) + weighed(outs[1]).sin()
        (loss + auxiliary_loss(module) if auxiliary else loss).backward()
        if auxiliary:
            with torch.no_grad():
                left = left + auxiliary_loss(module)
        if step % 2 == 0:  # with two calls in the other steps, every period of a counter meets a call with gradients
            with torch.no_grad():
                second(module)
    named = {**first.tensors, **trained_parameters(module)}
    grads = {f"gradient of {name}": torch.zeros_like(of) if of.grad is None else of.grad for name, of in named.items()}
    with torch.no_grad():
        later = without_padded_queries(first, first(module.eval()))
    buffers = {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
    return {**grads, **buffers, "later output": later, "auxiliary loss after the backward pass": left}


def _draw(subject: Subject, module: Attention, seed: int) -> Request:
    request = subject.draw(module, batch=1, seed=seed) if subject.interpreted else subject.draw_padded(module, seed=seed)
    return request.leaves()


@attention_check("implementation")
def training_goes_on_from_the_state_dict(subject: Subject) -> None:
    """A module that loads a state dict continues training as the saved module does.

    The loading module was built under another seed, and the saved module has made a training call. The state dict must therefore
    contain whatever a training call leaves for later calls, such as counters and averages.
    """
    for geometry in subject.plain_and_causal():
        saved, loaded = subject.build(geometry, seed=1).train(), subject.build(geometry, seed=2).train()
        _train(subject, saved, calls=1, seed=5)
        loaded.load_state_dict(copy.deepcopy(saved.state_dict()), strict=True)
        wanted, found = (_train(subject, module, calls=6, seed=6) for module in (saved, loaded))
        for at, (want, got) in enumerate(zip(wanted, found, strict=True), start=1):
            where = f"output of training call {at} after loading the state dict, causal={geometry.causal}"
            subject.equal(got, want, where, subject.exactness)


def _train(subject: Subject, module: Attention, calls: int, seed: int) -> list[Tensor]:
    """Return the outputs of training calls, each with its backward pass."""
    seed_generators(seed)
    outs = []
    for at in range(calls):
        request = _draw(subject, module, seed=at)
        out = without_padded_queries(request, request(module))
        weighed(out).backward()
        outs.append(out.detach())
    return outs
