"""Kernels with first derivatives only: each other derivative is refused by an error that names ``implementation="eager"``.

PyTorch's ``once_differentiable`` raises only where the gradient of the output requires a gradient, and its error is lost where
gradients of chosen inputs are requested: the second derivative then silently lacks the part of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from attn_zoo.contract import UnsupportedError

Backward = Callable[..., Any]


class OnceDifferentiable(Function):
    """Base of autograd functions whose backward pass is written by hand and cannot be differentiated. Call ``run``, not ``apply``.

    ``save_for_backward`` must get every input that has a gradient itself, and no view of it, because a second derivative is refused
    where it would pass through a saved tensor.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.backward = staticmethod(once_differentiable(cls.backward))  # type: ignore[method-assign]

    @classmethod
    def run(cls, *inputs: Any) -> Any:
        """Apply the function.

        Raises:
            UnsupportedError: an input has a tangent (forward mode), or ``torch.func`` transforms a function without
                ``setup_context``.
        """
        if not torch.compiler.is_compiling():  # which cannot trace the comparison
            refuse_transforms(*inputs, func=cls.setup_context is Function.setup_context)
        return cls.apply(*inputs)


def once_differentiable(backward: Backward) -> Backward:
    """Make a backward pass refuse second derivatives.

    Gradients are computed without a graph. With ``create_graph=True`` they are then attached to the tensors that they depend on,
    the saved ones and the gradients of the outputs, by a node that raises ``UnsupportedError`` when it is differentiated.
    """

    @wraps(backward)
    def without_graph(ctx: Any, *gradients: Tensor | None) -> Any:
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return found
        return _Refusal.apply(found, *(t for t in (*gradients, *ctx.saved_tensors) if t is not None and t.requires_grad))

    return without_graph


class _Refusal(Function):
    """Identity of ``found``, attached to the tensors it depends on, which raises when it is differentiated."""

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
    """Make second derivatives that PyTorch refuses, as those of its fused attention, raise our error, which says what to do."""
    if not torch.compiler.is_compiling() and out.grad_fn is not None:  # in this order: the compiler does not trace grad_fn
        out.grad_fn.register_hook(_name_refusal)
    return out


def _name_refusal(found: tuple[Tensor | None, ...], _: Any) -> tuple[Tensor | None, ...] | None:
    refused = [g for g in found if g is not None and g.grad_fn is not None and g.grad_fn.name().endswith("NotImplemented")]
    return _Refusal.apply(found, *refused) if refused else None


def refuse_graph_of_gradients(out: Tensor) -> Tensor:
    """Refuse ``create_graph=True`` for the output of another package's kernel, whose gradients may have no graph or a wrong one."""
    if not torch.compiler.is_compiling() and out.requires_grad:
        out.register_hook(_refuse_graph)
    return out


def _refuse_graph(_: Tensor) -> None:
    if torch.is_grad_enabled():
        raise _unsupported("second derivatives (create_graph=True)")


def refuse_transforms(*inputs: Any, func: bool = True) -> None:
    """Refuse tensors with a tangent and, with ``func``, all transforms of ``torch.func``.

    Raises:
        UnsupportedError: forward-mode differentiation or a transform reached this kernel.
    """
    if torch.compiler.is_compiling():
        return
    if func and torch._C._are_functorch_transforms_active():
        raise _unsupported("transforms of torch.func")
    if forward_ad._current_level < 0:
        return
    if any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise _unsupported("forward-mode derivatives")


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(f'{what} need implementation="eager": this attention ran in a kernel with first derivatives only')
