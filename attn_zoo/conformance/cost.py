"""Checks that the costs on a card equal the costs of the code."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.conformance.harness import require
from attn_zoo.conformance.modes import require_shape_on_meta
from attn_zoo.conformance.requests import Request
from attn_zoo.conformance.subject import Subject, attention_check
from attn_zoo.contract import Attention, Geometry, Growth
from attn_zoo.count.counter import Counts, tally

SLACK, LOG_SLACK = 0.15, 0.15
"""Largest permitted difference between a fitted exponent and that of the card's big-O. ``LOG_SLACK`` is added if the big-O has a
factor log n."""

# The outputs of so many later tokens depend on all past tokens.
READ, LATER = 5, 17
"""Numbers of past and of later tokens in the check of the recurrent state."""

MANY = 2**16
"""Number of past tokens so large that storing them takes more bytes than a recurrent state of fixed size."""

FLOAT_BYTES = 4


@attention_check("variant")
def cost_formula_is_exact(subject: Subject) -> str | None:
    """The FLOPs that the card states for the forward pass, and optionally for the backward pass, equal those that PyTorch counts.
    The number of parameters on the card equals that of the module. Two examples need at most twice the FLOPs of one."""
    proved, unstated, subject = 0, False, subject.as_counted()
    for geometry in _geometries(subject):
        module = subject.build_if_allowed(geometry)
        if module is None:
            continue
        stated, counted = subject.card.cost(geometry, subject.options), count(subject, module)
        require(
            stated.flops == counted.flops, f"{geometry}: the card states {stated.flops} FLOPs, but PyTorch counts {counted.flops}"
        )
        unstated = stated.backward_flops is None
        require(
            unstated or stated.backward_flops == counted.backward_flops,
            f"{geometry}: the card states {stated.backward_flops} backward FLOPs, but PyTorch counts {counted.backward_flops}",
        )
        held = sum(parameter.numel() for parameter in module.parameters())
        require(stated.parameters == held, f"{geometry}: the card states {stated.parameters} parameters, but the module has {held}")
        if geometry.keys == subject.length:
            twice = count(subject, module, batch=2).flops or 0
            require(twice <= 2 * stated.flops, f"{geometry}: two examples take {twice} FLOPs, more than 2 x {stated.flops}")
        proved += 1
    require(proved > 0, "this check needs a shape that the options support, but they support none of the shapes that it tries")
    return "the card does not state backward_flops" if unstated else None


@attention_check("variant")
def state_bytes_are_needed_and_enough(subject: Subject) -> str:
    """The ``state_bytes`` on the card are enough for the recurrent state, and not more than could be useful.

    The state needs at least as many numbers as the rank of the Jacobian of later outputs with respect to past inputs. At most, it
    stores all past inputs on which later outputs depend.
    """
    cost, options = subject.card.cost, subject.options
    without = cost(subject.geometry(), options).state_bytes
    require(without is None, f"state_bytes must be None if attention is not causal; the card states {without}")
    if not subject.causal:
        return "no causal form, no state"
    few = subject.geometry(READ, heads=1, head_dim=4, causal=True)
    read = READ if subject.card.can.any_length and subject.build_if_allowed(few) else subject.length
    stated = cost(replace(few, queries=read, keys=read), options).state_bytes
    if stated is None:
        return "the card does not state state_bytes"
    needed, names = past_in_the_future(subject, read)
    require(
        stated >= FLOAT_BYTES * needed,
        f"the card states {stated} bytes of state after {read} tokens, but outputs after {READ} tokens depend on {needed} "
        f"independent numbers of the past, which take {FLOAT_BYTES * needed} bytes",
    )
    far = _long(subject.geometry(causal=True), MANY)
    most = FLOAT_BYTES * MANY * far.inner_dim * len(names)
    held = cost(far, options).state_bytes
    require(
        held is not None and held <= most,
        f"the card states {held} bytes of state after {MANY} tokens; at most {most} are useful, because later outputs depend "
        f"only on {', '.join(sorted(names)) or 'nothing'}",
    )
    return f"{stated} bytes stated for {read} tokens, at least {FLOAT_BYTES * needed} needed"


def past_in_the_future(subject: Subject, built_for: int) -> tuple[int, set[str]]:
    """Compute how many numbers a recurrent state must store at least, and on which past inputs later outputs depend.

    Args:
        built_for: number of keys that the mechanism is built for.

    Returns:
        The rank of the Jacobian of outputs at ``LATER`` positions with respect to tokens at the ``READ`` positions before them, and
            the names of the inputs whose Jacobian is not zero.
    """
    module = subject.build(subject.geometry(built_for, heads=1, head_dim=4, causal=True))
    total = max(built_for, READ + LATER)
    request = subject.draw(module, batch=1, queries=total, keys=total).leaves()
    later = request(module)[:, :, READ : READ + LATER].flatten()
    rows: dict[str, list[Tensor]] = {name: [] for name in request.tensors}
    for output in later:
        grads = torch.autograd.grad(output, list(request.tensors.values()), retain_graph=True, allow_unused=True)
        for (name, tensor), grad in zip(request.tensors.items(), grads, strict=True):
            rows[name].append((torch.zeros_like(tensor) if grad is None else grad)[:, :, :READ].flatten())
    blocks = {name: torch.stack(found) for name, found in rows.items()}
    jacobian = torch.cat(list(blocks.values()), dim=1)
    return int(torch.linalg.matrix_rank(jacobian, rtol=1e-11)), {name for name, block in blocks.items() if block.any()}


@attention_check("variant")
def shapes_flow_without_numbers(subject: Subject) -> None:
    """The mechanism runs on PyTorch's meta device, whose tensors have shapes but no values. The costs of long models are counted
    quickly on this device."""
    for module in subject.modules():
        call = partial(_built_and_called_on_meta, subject, module.geometry)
        require_shape_on_meta(subject.draw(module, batch=1), call, f"{module.geometry}")


def _built_and_called_on_meta(subject: Subject, geometry: Geometry, request: Request) -> Tensor:
    with torch.device("meta"):
        return request(subject.card.build(geometry, copy.deepcopy(subject.options), "eager").to(subject.dtype).eval())


def _geometries(subject: Subject) -> Iterator[Geometry]:
    shapes = ((1, 4, 1), (2, 8, subject.length), (3, 8, 64), (2, 16, 100), (1, 4, 1000))
    for causal in subject.forms:
        for heads, head_dim, length in shapes[subject.brief :]:  # a matrix product over one position may be counted as none
            yield subject.geometry(length, heads=heads, head_dim=head_dim, causal=causal)
    if subject.card.can.cross:
        yield replace(subject.geometry(), queries=9)
        yield replace(subject.geometry(), queries=2 * subject.length + 1)


def count(subject: Subject, module: Attention, batch: int = 1) -> Counts:
    """Return the FLOPs that PyTorch counts for one call of ``module`` with ``batch`` examples."""
    request = subject.draw(module, batch=batch).leaves()
    return tally(partial(request, module), [*request.tensors.values(), *module.parameters(), *module.buffers()], module)


@attention_check("variant")
def time_grows_as_printed(subject: Subject) -> str:
    """FLOPs grow with the length at the rate that the card's big-O of time states. The amount of numbers written to memory grows no
    faster.

    If the card states the cost of an implementation other than ``eager``, such as ``tiled``, FLOPs and written numbers of ``eager``
    also grow no faster than this big-O.
    """
    claim, eager, subject = subject.card.time, subject, subject.as_counted()
    remarks = []
    for geometry in subject.plain_and_causal():
        where = f"causal={geometry.causal}"
        far = [subject.card.cost(_long(geometry, 2**power), subject.options).flops for power in (14, 16, 18)]
        fitted = exponent(far, 4)
        if any(far):
            message = f"{where}: FLOPs grow like n^{fitted:.2f}, but the card states {claim}"
            require(abs(fitted - claim.exponent) <= _slack(claim), message)
        traces = _traces(subject, geometry, claim)
        for seen in traces:
            stated = subject.card.cost(_long(geometry, seen.length), subject.options).flops
            require(
                seen.flops == stated,
                f"{where}: PyTorch counts {seen.flops} FLOPs at {seen.length} tokens, but the card states {stated}",
            )
        written = _require_no_faster(claim, where, "numbers written grow", [seen.written for seen in traces])
        products = f"FLOPs n^{fitted:.2f}" if any(far) else "no matrix products"
        remarks.append(f"{where}: {products}, numbers written n^{written:.2f}")
        if subject.implementation != "eager":
            traces, where = _traces(eager, geometry, claim), f"eager, {where}"
            _require_no_faster(claim, where, "FLOPs grow", [seen.flops for seen in traces])
            _require_no_faster(claim, where, "numbers written grow", [seen.written for seen in traces])
    return "; ".join(remarks)


def _require_no_faster(claim: Growth, where: str, what: str, sizes: Sequence[int]) -> float:
    """Require that sizes at three lengths, of which each is twice the last, grow no faster than the card states. Return the fitted
    exponent."""
    fitted = exponent(sizes, 2)
    message = f"{where}: {what} like n^{fitted:.2f} ({', '.join(map(str, sizes))}), but the card states {claim}"
    require(fitted <= claim.exponent + _slack(claim), message)
    return fitted


@attention_check("variant")
def memory_grows_as_printed(subject: Subject) -> str:
    """The largest tensor of a forward and backward pass grows with the length no faster than the card's big-O of memory.

    If the card states the cost of an implementation other than ``eager``, such as ``tiled``, the largest tensor of ``eager`` may
    grow as fast as the card's big-O of time.
    """
    forms = [(subject.as_counted(), subject.card.memory)]
    if forms[0][0].implementation != "eager":
        forms.append((subject, subject.card.time))
    return "; ".join(_largest_tensors(form, claim) for form, claim in forms)


def _largest_tensors(subject: Subject, claim: Growth) -> str:
    remarks = []
    for geometry in subject.plain_and_causal():
        traces = _traces(subject, geometry, claim)
        where = f"{subject.implementation}, causal={geometry.causal}"
        what = f"bytes of the largest tensor at {', '.join(str(seen.length) for seen in traces)} tokens grow"
        fitted = _require_no_faster(claim, where, what, [seen.largest for seen in traces])
        remarks.append(f"{where}: n^{fitted:.2f}")
    return "; ".join(remarks)


@dataclass(frozen=True, slots=True)
class Trace:
    """Measured cost of one forward and backward pass with one example."""

    length: int
    flops: int
    """FLOPs of the matrix products of the forward pass."""
    written: int
    """How many numbers all operations write, including sums, sorts and exponentials; a proxy of time."""
    largest: int
    """Bytes of the largest tensor."""


class _Recorder(TorchDispatchMode):
    """Dispatch mode that records the largest memory of a result, and how many numbers all operations except views write."""

    written = largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
                self.written += 0 if func.is_view else tensor.numel()
        return result


def trace(subject: Subject, causal: bool, length: int) -> Trace:
    """Return the measured cost of one head and one example with ``length`` tokens in float32. Costs are cached per subject."""
    key = (subject.implementation, causal, length)
    if key not in subject.traces:
        module = subject.build(subject.geometry(length, heads=1, causal=causal), dtype=torch.float32)
        request = subject.draw(module, batch=1).cast(torch.float32).leaves()
        with _Recorder() as recorder:  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
            with FlopCounterMode(display=False) as counter:
                out = request(module)
            out.sum().backward()
        subject.traces[key] = Trace(length, int(counter.get_total_flops()), recorder.written, recorder.largest)
    return subject.traces[key]


def exponent(sizes: Sequence[int], ratio: int) -> float:
    """Return the exponent p of a power law n^p that is fitted to sizes at three lengths n.

    One exponent is fitted to the two differences between neighbouring sizes, in which a constant term cancels. Another exponent is
    fitted to the first and the third size. The smaller exponent is returned. If the second size is not larger than the first, the
    differences are not used. If the third size is not larger than the second, the result is 0.

    Args:
        sizes: three sizes, such as numbers of FLOPs.
        ratio: each length divided by the next smaller length.
    """
    first, second, third = sizes
    if third <= second:
        return 0.0
    ends = math.log(third / max(first, 1)) / (2 * math.log(ratio))
    return min(ends, math.log((third - second) / (second - first)) / math.log(ratio)) if second > first else ends


def _slack(claim: Growth) -> float:
    """Return the tolerance of the exponent that is fitted for a claim."""
    return SLACK + (LOG_SLACK if claim.has_log else 0)


def _traces(subject: Subject, geometry: Geometry, claim: Growth) -> list[Trace]:
    """Return traces at three lengths, which are long enough to fill windows and buckets, and short enough for quadratic cost."""
    shortest = max(1024 if claim.exponent < 2 else 256, 2 ** (subject.length - 1).bit_length())
    return [trace(subject, geometry.causal, factor * shortest) for factor in (1, 2, 4)]


def _long(geometry: Geometry, length: int) -> Geometry:
    return replace(geometry, heads=1, queries=length, keys=length)
