"""Export of any module to a file for another runtime; the file is run and compared with the module."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from attn_zoo.contract import Attention, UnknownNameError, UnsupportedError
from attn_zoo.export.reasons import DifferentAnswer, Reason, reason_of

FORMATS = {"onnx": "ONNX, for onnxruntime and others", "torch": "torch.export's own, for torch.export.load"}
"""Descriptions of the file formats."""

OPSET = 20
"""Opset of ONNX: the first that has the operators of current image models and of discrete Fourier transforms."""

TOLERANCE = 3e-5
"""Tolerance for float32 rounding, relative to the largest number of the output; the conformance kit uses the same."""

Inputs = Mapping[str, Tensor]
Runner = Callable[[Inputs], Tensor]
Sizes = Mapping[str, Mapping[int, str]]
"""Names of dynamic sizes, by input and axis."""


class ExportRefused(UnsupportedError):
    """Failure of the exporter or the runtime; ``reason`` states the cause."""

    def __init__(self, what: str, reason: Reason) -> None:
        super().__init__(f"{what} cannot be exported: {reason.line} ({reason.kind}); attn-zoo export --all lists what can")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Exported:
    """Written file whose outputs agree with those of the module."""

    path: Path
    format: str
    open_sizes: tuple[str, ...]
    """Names of dynamic sizes, those that may differ from call to call."""
    nbytes: int
    opset: int | None
    """Opset of ONNX; None for other formats."""
    difference: float
    """Largest difference from the module's output, relative to the largest number of that output."""


def export_model(
    model: nn.Module,
    inputs: Inputs,
    output: Path,
    *,
    format: str = "onnx",
    sizes: Sizes | None = None,
    others: Sequence[Inputs] = (),
    means: Callable[[Tensor, Inputs], Tensor] | None = None,
) -> Exported:
    """Write a module in evaluation mode as a program, run the file and compare its output with the module's.

    The module is not changed: a copy without gradients is exported, on the CPU and in float32 (see ``plain_copy``).

    Args:
        model: module that takes ``inputs`` as positional arguments, in their order, and returns one tensor.
        inputs: example inputs; their names become those of the program's inputs.
        output: file to write, which must not exist.
        format: one of ``FORMATS``.
        sizes: dynamic sizes; all others are fixed at those of the example.
        others: further inputs, of other sizes, for the comparison.
        means: function that selects the meaningful part of an output for the comparison; by default all of it.

    Raises:
        UnknownNameError: no such format.
        UnsupportedError: the extra is missing.
        ExportRefused: the exporter or the runtime fails, or the output of the program differs. No file is left behind.
        FileExistsError: ``output`` exists.
        FileNotFoundError: the folder of ``output`` does not exist.
    """
    refuse_output(output, format)
    program = trace(model, inputs, sizes)
    return write(program, model, [inputs, *others], output, format=format, sizes=sizes, means=means)


def refuse_output(output: Path, format: str) -> None:
    """Refuse an unknown format or an unusable output path, before any work is done.

    Raises:
        UnknownNameError: no such format.
        UnsupportedError: the extra is missing.
        FileExistsError: ``output`` exists, or the file in which ONNX keeps its weights.
        FileNotFoundError: the folder of ``output`` does not exist.
    """
    if format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if format == "onnx" and missing:
        raise UnsupportedError(f"ONNX needs {', '.join(missing)}; install attn-zoo[export], or take format=torch")
    for file in (output, data_of(output)) if format == "onnx" else (output,):
        if file.exists():
            raise FileExistsError(f"{str(file)!r} is there already; choose another file, or remove it first")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{str(output)!r} lies in no folder that exists; make the folder first")


def data_of(output: Path) -> Path:
    """File in which ONNX keeps large weights of a program."""
    return output.with_name(output.name + ".data")


def trace(model: nn.Module, inputs: Inputs, sizes: Sizes | None = None) -> ExportedProgram:
    """Trace a copy of the module without gradients by ``torch.export``; see ``export_model`` for the arguments.

    Raises:
        ExportRefused: the program cannot be traced with these dynamic sizes.
    """
    plain = plain_copy(model).requires_grad_(False)
    dims: dict[str, Any] = {}

    def dim(name: str, axis: int, tensor: str) -> Any:
        bound = sizes_bound(name)
        return dims.setdefault(bound[0], Dim(bound[0], max=bound[1]) if bound[1] else Dim(bound[0]))

    shapes = None
    if sizes is not None:
        shapes = tuple({axis: dim(name, axis, tensor) for axis, name in sizes.get(tensor, {}).items()} for tensor in inputs)
    with _quiet(), torch.enable_grad():  # without gradients, layers split queries into size-dependent blocks
        try:
            return torch.export.export(plain, tuple(inputs.values()), dynamic_shapes=shapes)
        except Exception as error:  # an exporter raises errors of any type
            raise ExportRefused(type(model).__name__, reason_of(error)) from error


def plain_copy(model: nn.Module) -> nn.Module:
    """Copy a module to the CPU, in float32 and evaluation mode; ``eager`` replaces implementations that ``auto`` chose."""
    plain = copy.deepcopy(model).to("cpu", torch.float32).eval()
    for module in plain.modules():
        if isinstance(module, Attention) and module.chosen_for is not None:
            module.use("eager")
            module.chosen_for = None
    return plain


def sizes_bound(name: str) -> tuple[str, int | None]:
    """Split ``length<=64`` into a name and a maximum; the maximum is None for a plain name such as ``batch``."""
    plain, _, bound = name.partition("<=")
    return plain, int(bound) if bound else None


def write(
    program: ExportedProgram,
    model: nn.Module,
    examples: Sequence[Inputs],
    output: Path,
    *,
    format: str,
    sizes: Sizes | None,
    means: Callable[[Tensor, Inputs], Tensor] | None,
) -> Exported:
    """Write a traced program, load the file, run it on all examples and compare outputs; see ``export_model``."""
    plain, files = plain_copy(model), (output, data_of(output)) if format == "onnx" else (output,)
    try:
        with _quiet():
            opset, run = (_write_onnx if format == "onnx" else _write_torch)(program, examples[0], output)
            difference = max(_difference(plain, run, inputs, means) for inputs in examples)
    except BaseException as error:  # an exporter or a runtime raises errors of any type
        for file in files:
            file.unlink(missing_ok=True)
        if isinstance(error, Exception):
            raise ExportRefused(type(model).__name__, reason_of(error)) from error
        raise
    nbytes = sum(file.stat().st_size for file in files if file.exists())
    names = dict.fromkeys(sizes_bound(name)[0] for axes in (sizes or {}).values() for name in axes.values())
    return Exported(output, format, tuple(names), nbytes, opset, difference)


def _write_torch(program: ExportedProgram, inputs: Inputs, output: Path) -> tuple[None, Runner]:
    torch.export.save(program, output)
    module = torch.export.load(output).module()
    return None, lambda inputs: module(*inputs.values())


def _write_onnx(program: ExportedProgram, inputs: Inputs, output: Path) -> tuple[int, Runner]:
    import onnxruntime

    from attn_zoo.export.operators import translations

    onnx_program = torch.onnx.export(
        program,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=["answer"],
        custom_translation_table=translations(),
        verbose=False,
    )
    assert onnx_program is not None
    onnx_program.save(output, external_data=_large(program))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(output), options, providers=["CPUExecutionProvider"])

    def run(given: Inputs) -> Tensor:
        return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in given.items()})[0])

    return int(onnx_program.model.opset_imports[""]), run


def _large(program: ExportedProgram) -> bool:
    """Return whether weights need a file of their own: a protobuf message is at most 2 GiB."""
    return sum(t.numel() * t.element_size() for t in program.state_dict.values()) > 2**30


def _difference(model: nn.Module, run: Runner, inputs: Inputs, means: Callable[[Tensor, Inputs], Tensor] | None) -> float:
    with torch.no_grad():
        expected, actual = model(*inputs.values()), run(inputs)
    if actual.shape != expected.shape:
        raise DifferentAnswer(f"the program answers {tuple(actual.shape)}, the module {tuple(expected.shape)}")
    if means is not None:
        expected, actual = means(expected, inputs), means(actual, inputs)
    gap, size = (actual - expected).abs().max().item(), expected.abs().max().item()
    relative = gap / size if size else gap
    if not relative <= TOLERANCE:  # NaN as well
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in inputs.items())
        raise DifferentAnswer(f"differs by {relative:.1g} of the largest number for {shapes}; rounding allows {TOLERANCE:g}")
    return relative


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context without the output and warnings of exporters; failures are raised."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
