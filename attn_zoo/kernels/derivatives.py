"""Base class and errors for kernels that have first derivatives only. The error for any other derivative advises
``implementation="eager"``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._C._functorch import TransformType
from torch.autograd import Function, forward_ad

from attn_zoo.contract import UnsupportedError
from attn_zoo.precision import without_autocast

Backward = Callable[..., Any]

NO_TRANSFORMS: frozenset[TransformType] = frozenset()
GRADIENTS = frozenset({TransformType.Grad})
"""Transforms of ``torch.func`` that an autograd function supports if it has ``setup_context``: grad, vjp, and others built from
these two.
"""
GRADIENTS_AND_BATCHES = GRADIENTS | {TransformType.Vmap}
_TRANSFORMS = {
    TransformType.Jvp: "forward-mode derivatives",
    TransformType.Vmap: "batches of torch.func.vmap",
    TransformType.Grad: "transforms of torch.func",
    TransformType.Functionalize: "transforms of torch.func",
}
"""Part of the error message for each transform that a kernel does not support."""


# PyTorch's once_differentiable raises an error only if the gradient of the output requires a gradient. Even then,
# torch.autograd.grad(y, inputs) does not reach the error, because it differentiates only the nodes that lead to the inputs.
# The second derivative is then silently wrong: it lacks the contribution of the kernel.
class OnceDifferentiable(Function):
    """Base class of autograd functions whose backward pass is written by hand and has no derivative. Call ``run``, not ``apply``.

    A subclass must give ``save_for_backward`` every input that has a gradient; a view of the input is not enough. The error for
    a second derivative is attached to the saved tensors.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.backward = staticmethod(once_differentiable(cls.backward))  # type: ignore[method-assign]

    @classmethod
    def run(cls, *inputs: Any) -> Any:
        """Return the outputs of the autograd function for these inputs.

        Raises:
            UnsupportedError: the call is differentiated in forward mode or transformed by torch.func.vmap, or a subclass
                without ``setup_context`` is transformed by any function of ``torch.func``.
        """
        if not torch.compiler.is_compiling():  # which cannot trace the comparison
            refuse_transforms(*inputs, allow=NO_TRANSFORMS if cls.setup_context is Function.setup_context else GRADIENTS)
        return cls.apply(*inputs)


def once_differentiable(backward: Backward) -> Backward:
    """Return the function ``backward``, changed so that it raises ``UnsupportedError`` in two cases.

    The first case is a second derivative: with ``create_graph=True``, the error is raised when the gradients are
    differentiated. The second case is a batch of gradients for several outputs (``is_grads_batched``, ``vectorize``).
    """

    @wraps(backward)
    def without_graph(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.compiler.is_compiling():
            with torch.no_grad():
                return backward(ctx, *gradients)
        refuse_batches(*gradients)  # kernels write into new tensors, which PyTorch cannot batch
        read = _Read(ctx)
        device = next(g.device for g in gradients if g is not None)
        with torch.no_grad(), without_autocast(device):
            found = backward(read, *gradients)
        if not torch.is_grad_enabled():
            return found
        return _Refusal.apply(found, *(t for t in (*gradients, *read.saved_tensors) if t is not None and t.requires_grad))

    return without_graph


class _Read:
    """Context whose saved tensors are read once, because gradient checkpointing does not allow a second time."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Refusal(Function):
    """Identity function of the gradients ``found``. It raises an error when it is differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(found: tuple[Tensor | None, ...], *depends_on: Tensor) -> tuple[Tensor | None, ...]:
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise _unsupported("second derivatives")


def name_refusal(out: Tensor) -> Tensor:
    """Return ``out``, changed so that second derivatives that PyTorch does not support raise an error with a remedy, unlike
    PyTorch's own error.
    """
    if not torch.compiler.is_compiling() and out.grad_fn is not None:  # in this order: the compiler does not trace grad_fn
        out.grad_fn.register_hook(_name_refusal)
    return out


def _name_refusal(found: tuple[Tensor | None, ...], _: Any) -> tuple[Tensor | None, ...] | None:
    gradients = [g for g in found if g is not None]
    if torch.is_grad_enabled() and any(map(_functorch.is_legacy_batchedtensor, gradients)):
        raise _unsupported("second derivatives of several outputs at once")  # PyTorch loses their graph
    refused = [g for g in gradients if _is_refused(g)]
    return _Refusal.apply(found, *refused) if refused else None


def _is_refused(gradient: Tensor) -> bool:
    """Return True if PyTorch has no derivative of this gradient. A gradient in a batch hides its graph, so the result is True for
    it.
    """
    if _functorch.is_batchedtensor(gradient):
        return True
    return gradient.grad_fn is not None and gradient.grad_fn.name().endswith("NotImplemented")


def refuse_graph_of_gradients(out: Tensor) -> Tensor:
    """Return ``out``, the output of another package's kernel, changed so that gradients with ``create_graph=True`` raise
    ``UnsupportedError``. The graph of these gradients may be missing or wrong.
    """
    if not torch.compiler.is_compiling() and out.requires_grad:
        out.register_hook(_refuse_graph)
    return out


def _refuse_graph(_: Tensor) -> None:
    if torch.is_grad_enabled():
        raise _unsupported("second derivatives (create_graph=True)")


def refuse_transforms(*inputs: Any, allow: frozenset[TransformType] = NO_TRANSFORMS) -> None:
    """Raise an UnsupportedError if an input is differentiated in forward mode, or if a transform of ``torch.func`` that is not
    in ``allow`` is active.
    """
    if torch.compiler.is_compiling():
        return
    active = {level.key() for level in _functorch.get_interpreter_stack() or ()} - allow
    tangents = forward_ad._current_level >= 0 and TransformType.Jvp not in active
    if tangents and any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise _unsupported("forward-mode derivatives")
    for transform, what in _TRANSFORMS.items():
        if transform in active:
            raise _unsupported(what)


def refuse_batches(*gradients: Tensor | None) -> None:
    """Raise an UnsupportedError if a backward pass gets a batch of gradients (of ``torch.func.vmap`` or of torch.autograd), one
    for each of several outputs.
    """
    several = TransformType.Vmap in {level.key() for level in _functorch.get_interpreter_stack() or ()}
    if several or any(g is not None and _functorch.is_legacy_batchedtensor(g) for g in gradients):
        raise _unsupported("gradients of several outputs at once (is_grads_batched, vectorize, torch.func.vmap)")


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        f'{what} need implementation="eager", because the kernel of this implementation computes only first derivatives'
    )
