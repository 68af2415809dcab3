"""Checks that a module is deterministic, can be restored from its state dict, and does not depend on other modules or earlier
calls."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.conformance.harness import require, seed_generators
from attn_zoo.conformance.requests import Request, answers, without_padded_queries
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention


@attention_check("implementation")
def eval_is_deterministic(subject: Subject) -> None:
    """In eval mode, equal calls give outputs that are equal bit by bit, whatever the state of the random generator."""
    for module in subject.modules():
        request = subject.draw(module)
        first = request(module)
        seed_generators(99)
        subject.equal(request(module), first, f"two calls in eval mode, causal={module.geometry.causal}", 0.0)


@attention_check("implementation")
def building_follows_the_seed(subject: Subject) -> None:
    """``torch.manual_seed`` decides all random numbers that are drawn when a module is built. Under the same seed, parameters,
    buffers and outputs are equal bit by bit."""
    first = subject.build(seed=3)
    torch.randn(7)
    second = subject.build(seed=3)
    mine, other = first.state_dict(), second.state_dict()
    require(mine.keys() == other.keys(), f"state dicts of two modules: {sorted(mine.keys() ^ other.keys())} is in only one of them")
    subject.equal(mine, other, "of two modules built under one seed", 0.0)
    request = subject.draw(first)
    subject.equal(request(first), request(second), "outputs of two modules built under one seed", 0.0)


@attention_check("implementation")
def state_dict_restores_the_output(subject: Subject) -> None:
    """If a module loads the state dict of a module that was built under another seed, the two modules give the same output. The
    state dict must therefore contain everything that is drawn when a module is built."""
    module, other = subject.build(seed=1), subject.build(seed=2)
    _disturb(module)
    other.load_state_dict(module.state_dict(), strict=True)
    request = subject.draw(module)
    subject.equal(request(other), request(module), "output after loading the state dict", 0.0)


@attention_check("implementation")
def copies_are_independent(subject: Subject) -> None:
    """A deep copy of a module gives the same output, even after the original is changed."""
    module = subject.build()
    request = subject.draw(module)
    before = request(module)
    twin = copy.deepcopy(module)
    subject.equal(request(twin), before, "output of a deep copy", 0.0)
    _disturb(module)
    subject.equal(request(twin), before, "output of a deep copy after the original was changed", 0.0)


@attention_check("variant")
def instances_share_nothing(subject: Subject) -> None:
    """Building, changing and calling other modules of the same class does not change the output of a module. Modules share no
    tensors."""
    module = subject.build(seed=0)
    request = subject.draw(module)
    before = request(module).detach().clone()
    twin = subject.build(seed=1)
    shared = _storages(module).keys() & _storages(twin).keys()
    require(not shared, f"two modules share the memory of {sorted(_storages(module)[place] for place in shared)}")
    _disturb(twin)
    other = subject.build(subject.geometry(2 * subject.length + 3, heads=3, head_dim=2 * module.geometry.head_dim), seed=2)
    subject.draw(other)(other)
    subject.equal(request(module), before, "output after another module was built, changed and run", 0.0)
    held = sorted(_class_tensors(type(module)))
    require(not held, f"the class holds tensors that all its modules share: {', '.join(held)}")


@attention_check("implementation")
def earlier_calls_leave_no_trace(subject: Subject) -> None:
    """After other calls, a module gives the same outputs as a fresh module, and gradients can be computed. The other calls may
    be in inference mode, at other lengths or scales, or on the same tensors with other content. A call does not change the
    output of an earlier call."""
    for geometry in subject.plain_and_causal():
        fresh, used = subject.build(geometry), subject.build(geometry)
        request = subject.draw(fresh)
        expected = request(fresh)
        for earlier in _earlier(subject, used):
            with torch.inference_mode():
                earlier(used)
        leaves = request.leaves()
        out = leaves(used)
        where = f"causal={geometry.causal}"
        subject.equal(out.detach(), expected.detach(), f"output of a used module against a fresh one, {where}", 0.0)
        out.sum().backward()
        subject.draw(used)(used)
        subject.equal(request(fresh), expected, f"output of one module called twice, {where}", 0.0)
        _require_fresh_content(subject, used, where)


@torch.no_grad()
def _require_fresh_content(subject: Subject, module: Attention, where: str) -> None:
    """Replace the content of an earlier call's tensors in place, as a serving loop does. Compare the output with that of a call on
    new tensors."""
    first, second = (subject.draw_padded(module, seed=seed) for seed in (7, 8))
    if second.key_valid is not None:
        second = second.padded(second.key_valid.roll(1, dims=0))
    out = first.padded(None)(module)  # with a mask, the outputs are a copy
    kept = out.clone()
    second.padded(None)(module)
    first(module)
    subject.equal(out, kept, f"output after a later call, {where}", 0.0)
    for name, tensor in first.tensors.items():
        tensor.copy_(second.tensors[name])
    if first.key_valid is not None and second.key_valid is not None:
        first.key_valid.copy_(second.key_valid)
    found = without_padded_queries(first, first(module))
    wanted = without_padded_queries(second, second(copy.deepcopy(module)))
    subject.equal(found, wanted, f"output where the tensors of an earlier call hold new numbers, {where}", 0.0)


@attention_check("implementation")
def calls_keep_no_tensors(subject: Subject) -> None:
    """After a call in eval mode, the module holds no tensor that depends on the inputs of the call, such as attention weights or
    the output. In training, it does not hold more tensors after each call."""
    for module in subject.modules():
        held = []
        for seed in (1, 2):
            request = subject.draw_padded(module, seed=seed)
            if request.key_valid is not None:
                request = request.padded(request.key_valid.roll(seed, dims=0))
            request(module)
            held.append({name: tensor.detach().clone() for name, tensor in tensors_of(module)})
        kept = [name for name in held[1] if name not in held[0] or not _same(held[0][name], held[1][name])]
        require(not kept, f"a call in eval mode stores {', '.join(f'{name} {tuple(held[1][name].shape)}' for name in kept[:8])}")
        module.train()
        for seed in (1, 2, 3):
            answers(subject.draw_padded(module, seed=seed), module)
            held.append(dict(tensors_of(module)))
        more = [name for name in held[-1] if name not in held[-2]]
        require(not more, f"each call in training stores more tensors, such as {', '.join(more[:8])}")


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def tensors_of(held: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a module's attributes hold, directly or in modules, mappings and sequences, with their paths."""
    if isinstance(held, Tensor):
        yield name, held
    elif isinstance(held, (nn.Module, Mapping, list, tuple)):
        named = vars(held) if isinstance(held, nn.Module) else held if isinstance(held, Mapping) else dict(enumerate(held))
        for part, value in named.items():
            yield from tensors_of(value, f"{name}.{part}" if name else str(part))


def _earlier(subject: Subject, module: Attention) -> Iterator[Request]:
    any_length = subject.card.can.any_length
    for length in (subject.length, 2 * subject.length + 3, 5) if any_length else (subject.length,):
        yield subject.draw(module, queries=length, keys=length, seed=5, batch=2)
        yield subject.draw(module, queries=length, keys=length, seed=6).times(30)
    if any_length and subject.card.can.cross and not module.geometry.causal:
        yield subject.draw(module, keys=2 * subject.length + 3)
        yield subject.draw(module, queries=9)


def _disturb(module: nn.Module) -> None:
    """Change every parameter and floating buffer in place."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.add_(0.25)


def _storages(module: nn.Module) -> dict[int, str]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {tensor.untyped_storage().data_ptr(): name for name, tensor in named if tensor.numel()}


def _class_tensors(kind: type) -> Iterator[str]:
    """Yield the attributes of a class, and of its bases below ``Attention``, that are or directly contain tensors or modules."""
    for owner in kind.__mro__:
        if owner is Attention:
            return
        for name, held in vars(owner).items():
            inside = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple, set)) else (held,)
            if any(isinstance(thing, (Tensor, nn.Module)) for thing in inside):
                yield f"{owner.__name__}.{name}"
