"""Any module as a file for another runtime, compared with the module before it is handed over."""

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
"""Formats of files."""

OPSET = 20
"""Of ONNX; the first with the operators that image models of today and discrete Fourier transforms need."""

TOLERANCE = 3e-5
"""Largest difference, relative to the largest number of the answer, that rounding explains in float32; the kit's own."""

Inputs = Mapping[str, Tensor]
Runner = Callable[[Inputs], Tensor]
Sizes = Mapping[str, Mapping[int, str]]
"""By input and axis, the name of a size that is to stay open."""


class ExportRefused(UnsupportedError):
    """The exporter or the runtime refuses a module; ``reason`` says why."""

    def __init__(self, what: str, reason: Reason) -> None:
        super().__init__(f"{what} cannot be exported: {reason.line} ({reason.kind}); attn-zoo export --all lists what can")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written, read again and found to answer what the module answers."""

    path: Path
    format: str
    open_sizes: tuple[str, ...]
    """Sizes that may differ from call to call."""
    nbytes: int
    opset: int | None
    """None for other formats than ONNX."""
    difference: float
    """The largest, relative to the largest number of the module's own answer."""


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
    """Write a module in evaluation mode as a program, run the file and compare.

    The module is left as it is: a copy without gradients is exported, on the CPU and in float32 (see ``plain_copy``).

    Args:
        model: what takes ``inputs`` by position, in their order, and answers one tensor.
        inputs: an example; names become those of the program's inputs.
        output: file to write, which must not exist.
        sizes: sizes that stay open; all others are those of the example.
        others: further inputs, of other sizes, that are compared as well.
        means: what of an answer has a meaning and is compared; all of it by default.

    Raises:
        UnknownNameError: no such format.
        UnsupportedError: the extra is missing.
        ExportRefused: exporter or runtime refuse the module, or the program answers something else. No file is left behind.
        FileExistsError, FileNotFoundError: the file is there, or its folder is not.
    """
    refuse_output(output, format)
    program = trace(model, inputs, sizes)
    return write(program, model, [inputs, *others], output, format=format, sizes=sizes, means=means)


def refuse_output(output: Path, format: str) -> None:
    """Refuse, before work starts, a format or a place that is not.

    Raises:
        UnknownNameError: no such format.
        UnsupportedError: the extra is missing.
        FileExistsError, FileNotFoundError: the file is there, or its folder is not.
    """
    if format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if format == "onnx" and missing:
        raise UnsupportedError(f"ONNX needs {', '.join(missing)}; install attn-zoo[export], or take format=torch")
    if output.exists():
        raise FileExistsError(f"{str(output)!r} is there already; choose another file, or remove it first")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{str(output)!r} lies in no folder that exists; make the folder first")


def trace(model: nn.Module, inputs: Inputs, sizes: Sizes | None = None) -> ExportedProgram:
    """``torch.export`` of a copy of the module without gradients; arguments as of ``export_model``.

    Raises:
        ExportRefused: the program cannot be captured, or not with these sizes open.
    """
    plain = plain_copy(model).requires_grad_(False)
    dims: dict[str, Any] = {}

    def dim(name: str, axis: int, tensor: str) -> Any:
        bound = sizes_bound(name)
        return dims.setdefault(bound[0], Dim(bound[0], max=bound[1]) if bound[1] else Dim(bound[0]))

    shapes = None
    if sizes is not None:
        shapes = tuple({axis: dim(name, axis, tensor) for axis, name in sizes.get(tensor, {}).items()} for tensor in inputs)
    with _quiet(), torch.enable_grad():  # without, layers cut their queries into blocks, by sizes that are to stay open
        try:
            return torch.export.export(plain, tuple(inputs.values()), dynamic_shapes=shapes)
        except Exception as error:  # an exporter may raise anything
            raise ExportRefused(type(model).__name__, reason_of(error)) from error


def plain_copy(model: nn.Module) -> nn.Module:
    """Copy a module to the CPU, in float32 and evaluation mode; where ``auto`` chose an implementation, take ``eager``."""
    plain = copy.deepcopy(model).to("cpu", torch.float32).eval()
    for module in plain.modules():
        if isinstance(module, Attention) and module.chosen_for is not None:
            module.use("eager")
            module.chosen_for = None
    return plain


def sizes_bound(name: str) -> tuple[str, int | None]:
    """``length<=64`` as a name and the largest size, ``batch`` as a name alone."""
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
    """Write a captured program, read the file, run it on all examples and compare; see ``export_model``."""
    plain = plain_copy(model)
    try:
        with _quiet():
            opset, run = (_write_onnx if format == "onnx" else _write_torch)(program, examples[0], output)
            difference = max(_difference(plain, run, inputs, means) for inputs in examples)
    except Exception as error:  # an exporter or a runtime may raise anything
        output.unlink(missing_ok=True)
        output.with_name(output.name + ".data").unlink(missing_ok=True)
        raise ExportRefused(type(model).__name__, reason_of(error)) from error
    except BaseException:
        output.unlink(missing_ok=True)
        raise
    data = output.with_name(output.name + ".data")  # where ONNX keeps weights
    nbytes = output.stat().st_size + (data.stat().st_size if data.exists() else 0)
    named = dict.fromkeys(sizes_bound(name)[0] for axes in (sizes or {}).values() for name in axes.values())
    return Exported(output, format, tuple(named), nbytes, opset, difference)


def _write_torch(program: ExportedProgram, inputs: Inputs, output: Path) -> tuple[None, Runner]:
    torch.export.save(program, output)
    module = torch.export.load(output).module()
    return None, lambda inputs: module(*inputs.values())


def _write_onnx(program: ExportedProgram, inputs: Inputs, output: Path) -> tuple[int, Runner]:
    import onnxruntime

    from attn_zoo.export.operators import translations

    made = torch.onnx.export(
        program,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=["answer"],
        custom_translation_table=translations(),
        verbose=False,
    )
    assert made is not None
    made.save(output, external_data=_large(program))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(output), options, providers=["CPUExecutionProvider"])

    def run(given: Inputs) -> Tensor:
        return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in given.items()})[0])

    return int(made.model.opset_imports[""]), run


def _large(program: ExportedProgram) -> bool:
    """Whether weights need a file beside: a protobuf message ends at 2 GiB."""
    return sum(t.numel() * t.element_size() for t in program.state_dict.values()) > 2**30


def _difference(model: nn.Module, run: Runner, inputs: Inputs, means: Callable[[Tensor, Inputs], Tensor] | None) -> float:
    with torch.no_grad():
        want, got = model(*inputs.values()), run(inputs)
    if got.shape != want.shape:
        raise DifferentAnswer(f"the program answers {tuple(got.shape)}, the module {tuple(want.shape)}")
    if means is not None:
        want, got = means(want, inputs), means(got, inputs)
    gap, size = (got - want).abs().max().item(), want.abs().max().item()
    relative = gap / size if size else gap
    if not relative <= TOLERANCE:  # NaN as well
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in inputs.items())
        raise DifferentAnswer(f"differs by {relative:.1g} of the largest number for {shapes}; rounding allows {TOLERANCE:g}")
    return relative


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters print and warn of on their way: what matters is raised."""
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
