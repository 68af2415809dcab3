"""Check that second derivatives and forward-mode derivatives are correct or raise an error, whichever PyTorch function computes
them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import product

import torch
from torch import Tensor
from torch.autograd.functional import hvp, jvp
from torch.utils.checkpoint import checkpoint

from attn_zoo.conformance.gradients import STEPS, smallest
from attn_zoo.conformance.harness import Violation, require
from attn_zoo.conformance.requests import Request, called_with, trained_parameters
from attn_zoo.conformance.subject import ENDS_AND_HOLES, Subject, attention_check
from attn_zoo.contract import Attention

ADVICE = 'implementation="eager"'
CLOSE = 1e-4
"""Largest permitted difference from finite differences, relative to the largest number."""

Tensors = tuple[Tensor, ...]
Loss = Callable[..., Tensor]
"""Function that maps tensors to a scalar."""
Form = Callable[[Loss, Tensors, Tensors], Tensors]
"""Function that returns derivatives of a loss. Its arguments are the loss, the tensors at which to differentiate, and
directions."""


@attention_check("implementation")
def second_derivatives_are_right_or_refused(subject: Subject) -> str:
    """Second derivatives equal finite differences of the gradients of ``eager``, and forward-mode derivatives equal finite
    differences of the outputs of ``eager``. If derivatives are unsupported, requesting them raises an error that names
    ``implementation="eager"``.

    The loss is a weighted sum of the outputs or of their squares. Derivatives are taken with respect to all tensors together
    (inputs including streams, parameters, weights of the sum), to the inputs only, and to each input and parameter alone.

    ``backward`` and ``grad`` with ``create_graph=True`` are tested, also with batched gradients and under gradient checkpointing.
    ``torch.autograd.functional``, ``torch.autograd.forward_ad`` and ``torch.func`` are tested too.
    """
    refused = set[str]()
    for geometry in subject.plain_and_causal():
        module = smallest(subject, geometry)
        exact = smallest(subject.as_eager(), geometry).to(torch.float64)
        exact.load_state_dict(module.state_dict())
        request = subject.draw_padded(module, ENDS_AND_HOLES)
        for squared, group in product((False, True), _groups(module, request)):
            loss, tensors = _loss(module, request, group, squared=squared)
            truth, _ = _loss(exact, request.cast(torch.float64), group, squared=squared)
            differences = cache(partial(_differences, truth, tensors))
            for form in FORMS if len(group) > 1 else (by_grad,):
                where = f"{module.geometry}, {form.__name__.replace('_', ' ')} of {', '.join(group)}, squared={squared}"
                derivative = partial(_quietly, form, loss, tensors)
                try:
                    first = derivative(_directions(tensors, 0))
                except Exception as error:
                    _require_advice(subject, error, where)
                    refused.add(form.__name__)
                else:
                    _require_right(subject, first, derivative, partial(differences, form in FIRST), tensors, where)
    names = ", ".join(form.__name__.replace("_", " ") for form in FORMS if form.__name__ in refused)
    return f"refused: {names}" if refused else "all are right"


def _groups(module: Attention, request: Request) -> list[tuple[str, ...]]:
    """Return groups of names of tensors to differentiate together: all, the inputs with frozen parameters, and each alone."""
    inputs, parameters = tuple(request.tensors), tuple(f"parameter {name}" for name in trained_parameters(module))
    every = (*inputs, *parameters, WEIGHTS)
    return [every, *([inputs] if len(inputs) > 1 else []), *((name,) for name in every if name != WEIGHTS)]


WEIGHTS = "the loss's weights"


def _loss(module: Attention, request: Request, group: Sequence[str], *, squared: bool) -> tuple[Loss, Tensors]:
    """Return a loss, and the tensors of ``group``, which are its arguments. The loss is a weighted sum of the outputs or of their
    squares."""
    parameters = {f"parameter {name}": tensor.detach() for name, tensor in trained_parameters(module).items()}
    weights = torch.linspace(-1, 1, request.value.shape[-1], dtype=request.value.dtype, device=request.value.device)
    every = {**request.tensors, **parameters, WEIGHTS: weights}

    def loss(*given: Tensor) -> Tensor:
        held = {**every, **dict(zip(group, given, strict=True))}
        out = called_with(request, module, held)
        return ((out.square() if squared else out) * held[WEIGHTS]).sum()

    return loss, tuple(every[name] for name in group)


def by_grad(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions`` at the tensors ``at``, by two calls of
    ``torch.autograd.grad``."""
    leaves, slope = _slope(loss, at, directions)
    return torch.autograd.grad(slope, leaves, materialize_grads=True) if slope.requires_grad else tuple(map(torch.zeros_like, at))


def by_backward(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions`` at the tensors ``at``, by calling ``backward`` on the first
    derivative."""
    leaves, slope = _slope(loss, at, directions)
    if slope.requires_grad:
        slope.backward()
    return tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)


def _slope(loss: Loss, at: Tensors, directions: Tensors) -> tuple[Tensors, Tensor]:
    leaves, grads = _gradients(loss, at, create_graph=True)
    return leaves, _along(grads, directions)


def _gradients(loss: Loss, at: Tensors, *, create_graph: bool = False) -> tuple[Tensors, Tensors]:
    leaves = tuple(tensor.detach().requires_grad_() for tensor in at)
    return leaves, torch.autograd.grad(loss(*leaves), leaves, create_graph=create_graph, materialize_grads=True)


def _along(grads: Iterable[Tensor], directions: Tensors) -> Tensor:
    return torch.stack([(grad * along).sum() for grad, along in zip(grads, directions, strict=True)]).sum()


def checkpointed(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions``, with ``loss`` under gradient checkpointing."""
    return by_grad(lambda *given: checkpoint(loss, *given, use_reentrant=False), at, directions)


def graph_of_batched_gradients(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions``. The first gradients are computed with
    ``is_grads_batched=True``, as in ``functional.jacobian(vectorize=True)``."""
    leaves = tuple(tensor.detach().requires_grad_() for tensor in at)
    out = loss(*leaves)
    found = torch.autograd.grad(out, leaves, out.new_ones(1), create_graph=True, is_grads_batched=True, allow_unused=True)
    slopes = [(grad[0] * along).sum() for grad, along in zip(found, directions, strict=True) if grad is not None]
    if not any(slope.requires_grad for slope in slopes):
        return tuple(map(torch.zeros_like, at))
    return torch.autograd.grad(torch.stack(slopes).sum(), leaves, materialize_grads=True)


def batched_gradients_of_gradients(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions``. They are computed for a batch of directions, as in
    ``functional.hessian(vectorize=True)``."""
    leaves, grads = _gradients(loss, at, create_graph=True)
    pairs = [(grad, along[None]) for grad, along in zip(grads, directions, strict=True) if grad.requires_grad]
    if not pairs:
        return tuple(map(torch.zeros_like, at))
    outputs, directions = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, leaves, directions, is_grads_batched=True, allow_unused=True)
    return tuple(torch.zeros_like(leaf) if grad is None else grad[0] for grad, leaf in zip(found, leaves, strict=True))


def functional_hvp(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions``, computed by ``torch.autograd.functional.hvp``."""
    found: Tensors = hvp(loss, at, directions)[1]
    return found


def functional_jvp(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the first derivative of ``loss`` along ``directions``, computed by ``torch.autograd.functional.jvp``."""
    return (jvp(loss, at, directions)[1],)


def func_grad_twice(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions``, computed by ``torch.func.grad`` of ``torch.func.grad``."""
    every = tuple(range(len(at)))

    def slope(*given: Tensor) -> Tensor:
        return _along(torch.func.grad(loss, argnums=every)(*given), directions)

    found: Tensors = torch.func.grad(slope, argnums=every)(*at)
    return found


def func_jvp_of_grad(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions``, computed by ``torch.func.jvp`` of ``torch.func.grad``, as
    ``torch.func.hessian`` does."""
    found: Tensors = torch.func.jvp(torch.func.grad(loss, argnums=tuple(range(len(at)))), at, directions)[1]
    return found


def func_vmap_of_vjp(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the second derivatives of ``loss`` along ``directions``, computed by ``torch.func.vmap`` over the backward pass of
    ``torch.func.grad``."""
    back = torch.func.vjp(torch.func.grad(loss, argnums=tuple(range(len(at)))), *at)[1]
    return tuple(found[0] for found in torch.func.vmap(back)(tuple(along[None] for along in directions)))


def func_vmap_of_grad(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the first derivative of ``loss`` along ``directions``, computed by ``torch.func.vmap`` of ``torch.func.grad``, as for
    per-example gradients."""
    grads = torch.func.vmap(torch.func.grad(loss, argnums=tuple(range(len(at)))))(*(tensor[None] for tensor in at))
    return (_along((grad[0] for grad in grads), directions),)


def func_jvp(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the first derivative of ``loss`` along ``directions``, computed by ``torch.func.jvp`` in forward mode."""
    return (torch.func.jvp(loss, at, directions)[1],)


def forward_mode(loss: Loss, at: Tensors, directions: Tensors) -> Tensors:
    """Return the first derivative of ``loss`` along ``directions``, computed by ``torch.autograd.forward_ad``."""
    with torch.autograd.forward_ad.dual_level():
        duals = (torch.autograd.forward_ad.make_dual(tensor, along) for tensor, along in zip(at, directions, strict=True))
        tangent = torch.autograd.forward_ad.unpack_dual(loss(*duals)).tangent
    return (at[0].new_zeros(()) if tangent is None else tangent,)


FORMS: tuple[Form, ...] = (
    by_grad,
    by_backward,
    checkpointed,
    graph_of_batched_gradients,
    batched_gradients_of_gradients,
    functional_hvp,
    functional_jvp,
    func_grad_twice,
    func_jvp_of_grad,
    func_vmap_of_vjp,
    func_vmap_of_grad,
    func_jvp,
    forward_mode,
)
FIRST = (functional_jvp, func_vmap_of_grad, func_jvp, forward_mode)
"""Functions in ``FORMS`` that return first derivatives, not second ones."""


def _directions(tensors: Tensors, seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in tensors)


def _require_advice(subject: Subject, error: Exception, where: str) -> None:
    """Require that an error names ``implementation="eager"``. ``eager`` itself may raise any error."""
    if subject.implementation != "eager" and ADVICE not in str(error):
        message = (
            f"{where}: the error for an unsupported derivative must name {ADVICE}; got {type(error).__name__}: {str(error)[:200]}"
        )
        raise Violation(message) from error


def _require_right(
    subject: Subject,
    first: Tensors,
    derivative: Callable[[Tensors], Tensors],
    differences: Callable[[int], tuple[Tensor, float]],
    tensors: Tensors,
    where: str,
) -> None:
    """Compare derivatives along several directions with finite differences. ``first`` are the derivatives along the first
    direction."""
    limit = max(CLOSE, 10 * subject.tolerance)
    gap = size = 0.0
    for seed in range(len(STEPS)):  # one step may cross a kink or the border of a bucket, but hardly all
        got = _flat(first if seed == 0 else derivative(_directions(tensors, seed)))
        want, size = differences(seed)
        require(got.shape == want.shape, f"{where}: there must be {len(want)} numbers; got {len(got)}")
        gap = (got - want).abs().max().item()
        if gap <= limit * size:
            return
    raise Violation(f"{where}: differs by {gap:.3g} from finite differences, whose largest number is {size:.3g}")


def _differences(truth: Loss, tensors: Tensors, first: bool, seed: int) -> tuple[Tensor, float]:
    """Return finite differences along directions, and their largest number. They are differences of the outputs of ``truth`` if
    ``first`` is True, and of its gradients otherwise."""
    step, directions = STEPS[seed], _directions(tensors, seed)

    def found(sign: int) -> Tensor:
        at = tuple(t.double() + sign * step * along.double() for t, along in zip(tensors, directions, strict=True))
        return _flat(truth(*at) if first else _gradients(truth, at)[1])

    ahead, behind = found(1), found(-1)
    want = (ahead - behind) / (2 * step)
    return want, max(want.abs().max().item(), ahead.abs().max().item())


def _flat(found: Tensor | Tensors) -> Tensor:
    return torch.cat([part.detach().double().flatten() for part in ((found,) if isinstance(found, Tensor) else found)])


def _quietly(form: Form, *given: object) -> Tensors:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return form(*given)  # type: ignore[arg-type]
