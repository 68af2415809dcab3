"""Settings and other state that PyTorch keeps for the whole process."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.utils import _device

from attn_zoo.process_state.part import Part

_cuda = torch.backends.cuda
_OPEN: list[Any] = []
"""Contexts that were entered to undo a context of a plugin. They are never left, because this would bring the plugin's context
back."""

_FLOAT32 = [("generic", "all")] + [(end, use) for end in ("cuda", "mkldnn") for use in ("all", "matmul", "conv", "rnn")]
"""Pairs of a back end and an operation that have a float32 precision of their own."""

_SETTINGS: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "cuDNN": {name: (torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")},
    "reduced-precision sums": {
        name: (torch.backends.cuda.matmul, name)
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation")
    },
    "einsum": {name: (torch.backends.opt_einsum, name) for name in ("enabled", "strategy")},
}
"""For each group of settings, the attributes of PyTorch's modules that hold their values."""

_USUAL_PRECISION = ("highest", True, ("none", "none", "none", "tf32", "tf32", "none", "none", "none", "none"))


def _modes() -> tuple[Any, ...]:
    """Return the modes that calls of PyTorch pass through, and the default device, which is one of them."""
    functions = tuple(map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack())))
    operators = tuple(map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack())))
    return functions, operators, getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), _device.CURRENT_DEVICE


def _put_modes(before: tuple[Any, ...]) -> None:
    """Build both stacks of modes again. PyTorch's own functions fail if a mode was entered inside another one."""
    functions, operators, default, current = before
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)
    for mode in functions:
        torch._C._push_on_torch_function_stack(mode)
    for mode in operators:
        torch._C._push_on_torch_dispatch_stack(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = default
    _device.CURRENT_DEVICE = current


def _default_device() -> str | None:
    """Return the default device, or None if nobody has set one."""
    context = _modes()[2]
    return None if context is None else str(context.device)


def _precision() -> tuple[Any, ...]:
    """Return the precision settings of float32 products: the old one, that of cuDNN, and those of every back end."""
    own = tuple(torch._C._get_fp32_precision_getter(*pair) for pair in _FLOAT32)
    return _or_none(torch.get_float32_matmul_precision), _or_none(torch._C._get_cudnn_allow_tf32), own


def _or_none(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except RuntimeError:  # PyTorch does not name the old setting when a new one contradicts it
        return None


def _put_precision(before: tuple[Any, ...]) -> None:
    old, cudnn, own = before
    for value, put in ((old, torch.set_float32_matmul_precision), (cudnn, torch._C._set_cudnn_allow_tf32)):
        if value is not None:
            put(value)
    for pair, value in zip(_FLOAT32, own, strict=True):
        torch._C._set_fp32_precision_setter(*pair, value)


def _put_inference(wanted: bool) -> None:
    context = torch.inference_mode(wanted)
    context.__enter__()
    _OPEN.append(context)


def _autocast() -> tuple[Any, ...]:
    kinds = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
    return kinds, torch.is_autocast_cache_enabled()


def _put_autocast(before: tuple[Any, ...]) -> None:
    for kind, enabled, dtype in before[0]:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(before[1])


def _hooks() -> dict[str, Any]:
    """Return the hooks of every module and optimiser by the names of PyTorch's tables."""
    return {f"{home.__name__}.{name}": dict(table) for home, name, table in _hook_tables()}


def _hook_tables() -> list[tuple[Any, str, Any]]:
    from torch.optim import optimizer

    places = [(home, name) for home in (modules, optimizer) for name in vars(home) if name.startswith("_global_")]
    return [(home, name, table) for home, name in places if isinstance(table := getattr(home, name), dict)]


def _put_hooks(before: dict[str, Any]) -> None:
    for home, name, table in _hook_tables():
        table.clear()
        table.update(before.get(f"{home.__name__}.{name}", {}))


def _saved() -> tuple[Any, Any]:
    """Return the hooks for tensors that autograd saves, and the message if such hooks are forbidden."""
    of = torch._C._autograd
    return of._top_saved_tensors_default_hooks(True), of._saved_tensors_hooks_get_disabled_error_message()


def _put_saved(before: tuple[Any, Any]) -> None:
    of = torch._C._autograd
    of._saved_tensors_hooks_enable()
    while (top := _saved()[0]) is not None and top != before[0]:
        of._pop_saved_tensors_default_hooks()
    if before[0] is not None and _saved()[0] is None:
        of._push_saved_tensors_default_hooks(*before[0])
    if before[1] is not None:
        of._saved_tensors_hooks_disable(before[1])


def flushes_denormals() -> bool:
    """Return True if this thread rounds denormal numbers to zero. In float32 they are the numbers below 2⁻¹²⁶."""
    return float((torch.tensor(2.0**-140, dtype=torch.float32, device="cpu") * 0.5).item()) == 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Return a context in which this thread rounds denormal numbers to zero, because the processor computes slowly with them.
    Threads of PyTorch that start inside the context do so as well."""
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _put_deterministic(before: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _settings(name: str) -> Part:
    places = _SETTINGS[name]

    def put(before: Mapping[str, Any]) -> None:
        for key, value in before.items():
            home, attribute = places[key]
            setattr(home, attribute, value)

    return Part(name, lambda: {key: getattr(*place) for key, place in places.items()}, put)


def _random() -> tuple[Any, ...]:
    return torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())


def _put_random(before: tuple[Any, ...]) -> None:
    torch.set_rng_state(before[0])
    if before[1:]:
        torch.cuda.set_rng_state_all(list(before[1:]))


def _fill() -> bool:
    return bool(getattr(torch.utils.deterministic, "fill_uninitialized_memory"))  # noqa: B009 (PyTorch leaves it untyped)


def _put_fill(before: bool) -> None:
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", before)  # noqa: B010


def _generators() -> tuple[Any, ...]:
    return torch.default_generator, vars(torch.random)["default_generator"]


def _put_generators(before: tuple[Any, ...]) -> None:
    torch.default_generator, vars(torch.random)["default_generator"] = before


def _conversion() -> tuple[bool, bool]:
    future = torch.__future__
    return future.get_overwrite_module_params_on_conversion(), future.get_swap_module_params_on_conversion()


def _put_conversion(before: tuple[bool, bool]) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(before[0])
    torch.__future__.set_swap_module_params_on_conversion(before[1])


_KEYS = {f"{use}{device}" for use in ("", "Autograd", "Autocast") for device in ("", "CPU", "CUDA")}
_KEYS |= {"CompositeImplicitAutograd", "CompositeExplicitAutograd"}
"""Dispatch keys of the kernels that compute; PyTorch registers others itself, when a part of it is used first."""


def _operators() -> frozenset[str]:
    """Return kernels that replace PyTorch's own, such as ``aten/gelu/CPU``."""
    names: set[str] = getattr(torch.library, "_impls", set())
    return frozenset(name for name in names if name.startswith("aten/") and name.rpartition("/")[2] in _KEYS)


def _put_operators(before: frozenset[str]) -> None:
    added = _operators() - before
    for library in [found for found in gc.get_objects() if type(found) is torch.library.Library]:
        if added & set(library._op_impls):
            library._destroy()


TORCH_PARTS = [
    Part("default device and modes", _modes, _put_modes),  # first, because they change what the other parts return
    Part("inference mode", torch.is_inference_mode_enabled, _put_inference),
    Part("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Part("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Part("precision of float32 products", _precision, _put_precision),
    Part("autocast", _autocast, _put_autocast),
    Part("number of threads", torch.get_num_threads, torch.set_num_threads),
    Part("deterministic algorithms", _deterministic, _put_deterministic),
    Part("filling of empty tensors", _fill, _put_fill),
    Part("anomaly detection", _anomaly, lambda before: torch.set_anomaly_enabled(*before)),
    Part("denormal numbers", flushes_denormals, torch.set_flush_denormal),
    Part("default generator", _generators, _put_generators, lambda before, now: all(map(operator.is_, before, now))),
    Part("operators of PyTorch", _operators, _put_operators),
    Part("conversion of modules", _conversion, _put_conversion),
    Part("hooks of every module", _hooks, _put_hooks),
    Part("hooks of saved tensors", _saved, _put_saved),
    Part("oneDNN", torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    Part("NNPACK", torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled),
    Part("flash attention", _cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    Part("memory-efficient attention", _cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    Part("cuDNN attention", _cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
    Part("attention by its formula", _cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    Part("16-bit sums of attention", _cuda.fp16_bf16_reduction_math_sdp_allowed, _cuda.allow_fp16_bf16_reduction_math_sdp),
    Part("order of attention kernels", torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order),
    *(_settings(name) for name in _SETTINGS),
]

STATED: Mapping[str, tuple[Callable[[], Any], Any]] = {
    "default device": (_default_device, None),
    "default dtype": (torch.get_default_dtype, torch.float32),
    "gradient mode": (torch.is_grad_enabled, True),
    "inference mode": (torch.is_inference_mode_enabled, False),
    "precision of float32 products": (_precision, _USUAL_PRECISION),
    "deterministic algorithms": (_deterministic, (False, False)),
    "anomaly detection": (torch.is_anomaly_enabled, False),
    "autocast": (lambda: [kind for kind, enabled, _ in _autocast()[0] if enabled], []),
    "oneDNN": (torch._C._get_mkldnn_enabled, True),
    "flash attention": (_cuda.flash_sdp_enabled, True),
    "memory-efficient attention": (_cuda.mem_efficient_sdp_enabled, True),
    "cuDNN attention": (_cuda.cudnn_sdp_enabled, True),
    "attention by its formula": (_cuda.math_sdp_enabled, True),
}
"""Settings that a user may choose before a run and that can change scores, with their values in a fresh process."""
TORCH_RANDOM = Part("PyTorch's generators", _random, _put_random)
