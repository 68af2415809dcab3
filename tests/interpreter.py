"""Triton's interpreter with its bfloat16 repaired and faster calls, so that kernels can be tested on a machine without a GPU.

The interpreter keeps bfloat16 as the 16-bit integers of numpy. It cuts float32 off instead of rounding it, and computes
sums and products of the integers, with errors of 1e10 and no exception. After ``repair`` bfloat16 is rounded to nearest,
ties to even, and computed in float32, as the GPU does.

While a kernel runs, the interpreter replaces the functions of ``triton.language`` by its own, looks for functions to replace again
at each call of a device function, and repeats each sum and product of 32-bit integers in 64 bits. After ``repair`` it replaces once
a kernel and trusts 32 bits, as the GPU does, since no tensor of a test is near them. That takes half of the time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return np.where(np.isnan(values), np.uint16(0x7FC0), (rounded >> np.uint32(16)).astype(np.uint16))


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Value of bfloat16 bits as float32."""
    return (np.ascontiguousarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def repair() -> None:
    """Repair bfloat16 in the interpreter. Has no effect the second time, or where kernels are compiled."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    if getattr(InterpreterBuilder, "knows_bfloat16", False):
        return
    convert, unary, binary, ternary, dot = (
        getattr(InterpreterBuilder, name) for name in ("cast_impl", "unary_op", "binary_op", "ternary_op", "create_dot")
    )
    float_to_float = InterpreterBuilder.create_fp_to_fp
    comparisons = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}

    def is_bfloat16(handle: Any) -> bool:
        return bool(handle.dtype.scalar == tl.bfloat16)

    def widen(handle: Any) -> Any:
        return TensorHandle(from_bfloat16(handle.data), tl.float32) if is_bfloat16(handle) else handle

    def narrow(handle: Any) -> Any:
        return TensorHandle(to_bfloat16(handle.data.astype(np.float32)), tl.bfloat16)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == target.scalar:
            return source
        if is_bfloat16(source):
            return cast_impl(self, widen(source), target)
        return narrow(source) if target.scalar == tl.bfloat16 else convert(self, source, target)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if is_bfloat16(source) or target.scalar == tl.bfloat16:
            return cast_impl(self, source, target)
        return float_to_float(self, source, target, rounding)

    def unary_op(self: Any, argument: Any, operation: Any) -> Any:
        return narrow(unary(self, widen(argument), operation)) if is_bfloat16(argument) else unary(self, argument, operation)

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        if not (is_bfloat16(left) and is_bfloat16(right)):
            return binary(self, left, right, operation)
        wide = binary(self, widen(left), widen(right), operation)
        return wide if operation in comparisons else narrow(wide)

    def ternary_op(self: Any, first: Any, second: Any, third: Any, operation: Any) -> Any:
        if operation is np.where or not is_bfloat16(third):  # a selection moves bits and computes nothing
            return ternary(self, first, second, third, operation)
        return narrow(ternary(self, widen(first), widen(second), widen(third), operation))

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return dot(self, widen(left), widen(right), *rest)

    def get_bf16(self: Any, value: float) -> Any:  # absent before Triton 3.9
        return TensorHandle(to_bfloat16(np.array([value], np.float32)), tl.bfloat16)

    for method in (cast_impl, create_fp_to_fp, unary_op, binary_op, ternary_op, create_dot, get_bf16):
        setattr(InterpreterBuilder, method.__name__, method)
    InterpreterBuilder.knows_bfloat16 = True
    faster()


def faster() -> None:
    """Replace functions of ``triton.language`` only where they are not replaced already, keep the dtypes found for numpy, and
    leave out the second computation in 64 bits."""
    import triton.language as tl
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "_get_np_dtype")):
        return  # another version of Triton, in which tests are right but slow
    patch, is_original = interpreter._patch_lang, tl.core.is_builtin

    def patch_lang(function: Any) -> Any:
        seen = [module for module in (tl, tl.core) if any(value is module for value in function.__globals__.values())]
        if any(is_original(found) for found in (tl.tensor.__add__, *(module.load for module in seen))):
            return patch(function)
        return interpreter._LangPatchScope()  # of no replacement, so it restores nothing

    def dtype_for_numpy(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in dtypes:
            dtypes[name] = find_dtype(dtype)
        return dtypes[name]

    dtypes, find_dtype = dict[str, Any](), interpreter._get_np_dtype
    interpreter._patch_lang, interpreter._get_np_dtype = patch_lang, dtype_for_numpy
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
