"""Export of an attention layer as a program whose inputs are tokens and, if the mechanism supports it, a padding mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.export import ExportedProgram

from attn_zoo.contract import UnknownNameError, UnsupportedError
from attn_zoo.export.models import FORMATS, Exported, ExportRefused, Inputs, Sizes, refuse_output, trace, write
from attn_zoo.export.reasons import Reason
from attn_zoo.layer import MultiHeadAttention

SIZES = ("batch and length", "batch", "fixed")
"""Choices of dynamic sizes, from the most to the least dynamic."""


class Masked(nn.Module):
    """Layer that takes the mask as a positional argument, as exported programs do."""

    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, tokens: Float[Tensor, "batch length dim"], key_valid: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length dim"]:
        """Return the output of the layer; at padding it has no meaning."""
        return self.layer(tokens, key_valid=key_valid)


@dataclass(frozen=True)
class Subject:
    """Layer to export, with example inputs."""

    layer: MultiHeadAttention
    padded: bool

    @property
    def module(self) -> nn.Module:
        """Module that takes the inputs as positional arguments."""
        return Masked(self.layer) if self.padded else self.layer

    def inputs(self, batch: int, length: int, seed: int = 0) -> Inputs:
        """Draw normal tokens; with a mask, padding is the last third of row 1, the first quarter of row 2, and all of row 3."""
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randn(batch, length, self.layer.dim, generator=generator)
        if not self.padded:
            return {"tokens": tokens}
        valid = torch.ones(batch, length, dtype=torch.bool)
        for row, hidden in enumerate((slice(length - length // 3, None), slice(None, length // 4), slice(None))):
            if row + 1 < batch:
                valid[row + 1, hidden] = False
        return {"tokens": tokens, "key_valid": valid}

    def open_sizes(self, sizes: str) -> Sizes | None:
        """Names of the dynamic sizes, by input and axis; None for ``fixed``.

        Raises:
            UnsupportedError: the mechanism does not support other lengths.
        """
        if sizes == "fixed":
            return None
        axes = {0: "batch"}
        if sizes == "batch and length":
            card = self.layer.mechanism.card
            if not (card.can.any_length or card.can.shorter):
                raise UnsupportedError(f"{card.name} runs only at the length it was built for; leave only the batch open")
            axes[1] = "length" if card.can.any_length else f"length<={self.length}"
        return dict.fromkeys(("tokens", "key_valid") if self.padded else ("tokens",), axes)

    @property
    def length(self) -> int:
        """Length that the layer was built for."""
        return self.layer.mechanism.geometry.keys

    def examples(self, sizes: str) -> list[Inputs]:
        """Draw example inputs of several sizes for a program with these dynamic sizes; the first is used for tracing."""
        shapes = [(4, self.length)]
        if sizes != "fixed":
            shapes += [(1, self.length), (7, self.length)]
        if sizes == "batch and length":
            longer = [self.length + self.length // 2 + 1] * self.layer.mechanism.card.can.any_length
            shapes += [(2, length) for length in (self.length - self.length // 4 - 1, *longer)]
        return [self.inputs(batch, length, seed) for seed, (batch, length) in enumerate(shapes)]


def export_layer(
    layer: MultiHeadAttention, output: Path, *, format: str = "onnx", sizes: str = "auto", padded: bool | None = None
) -> Exported:
    """Write a layer in evaluation mode as a program of ``tokens`` and ``key_valid``, run the file and compare it with the layer.

    Random features and hashes are those drawn when the layer was built, so that the program is deterministic.

    Args:
        layer: self-attention layer. It is not changed; a copy is exported, on the CPU and in float32.
        output: file to write, which must not exist.
        format: one of ``FORMATS``.
        sizes: one of ``SIZES``, or ``auto``: the first of them that the exporter allows.
        padded: True for a program with a mask; None for a mask if the mechanism supports one.

    Raises:
        UnknownNameError: no such format or sizes.
        UnsupportedError: the layer has a context, or the mechanism does not support a mask or other lengths.
        ExportRefused: the exporter or the runtime fails, or the output of the program differs. No file is left behind.
        FileExistsError: ``output`` exists.
        FileNotFoundError: the folder of ``output`` does not exist.
    """
    refuse_output(output, format)
    subject = subject_of(layer, padded)
    if sizes != "auto" and sizes not in SIZES:
        raise UnknownNameError("sizes", sizes, ("auto", *SIZES))
    choices = offered_sizes(subject) if sizes == "auto" else (sizes,)
    captured = capture(subject, choices)
    exported = captured.write_best(output, format)
    if exported is None:
        at, reason = list(captured.refused[format].items())[-1]
        raise ExportRefused(f"{layer.mechanism.card.name} ({at}{'' if at == 'fixed' else ' open'})", reason)
    return exported


def subject_of(layer: MultiHeadAttention, padded: bool | None = None) -> Subject:
    """Prepare a layer for export.

    Raises:
        UnsupportedError: the layer has a context, or the mechanism does not support a mask.
    """
    card = layer.mechanism.card
    if layer.crosses:
        raise UnsupportedError(f"{card.name}: only self-attention can be exported; this layer was built with a context")
    if padded and not card.can.key_padding:
        raise UnsupportedError(f"{card.name} cannot leave keys out, so it takes no padding mask; export it without one")
    return Subject(layer, card.can.key_padding if padded is None else padded)


def offered_sizes(subject: Subject) -> tuple[str, ...]:
    """Subset of ``SIZES`` that the card supports."""
    can = subject.layer.mechanism.card.can
    return SIZES if can.any_length or can.shorter else SIZES[1:]


@dataclass
class Captured:
    """Traced programs of a layer by their dynamic sizes, the most dynamic first, and reasons for missing ones."""

    subject: Subject
    programs: dict[str, ExportedProgram]
    refused: dict[str, dict[str, Reason]]
    """Reasons of failures, by format and sizes."""

    def write_best(self, output: Path, format: str) -> Exported | None:
        """Write the most dynamic program that can be written and run; None if there is none, with reasons in ``refused``."""
        for sizes, program in self.programs.items():
            shapes, examples, module = self.subject.open_sizes(sizes), self.subject.examples(sizes), self.subject.module
            try:
                return write(program, module, examples, output, format=format, sizes=shapes, means=at_real_tokens)
            except ExportRefused as error:
                self.refused[format][sizes] = error.reason
                if error.reason.kind == "operator":  # missing for all sizes
                    return None
        return None


def capture(subject: Subject, choices: Sequence[str]) -> Captured:
    """Trace a program for each choice of sizes, from the least dynamic to the most, until one fails.

    Raises:
        UnsupportedError: the mechanism does not support other lengths.
    """
    programs: dict[str, ExportedProgram] = {}
    refused: dict[str, dict[str, Reason]] = {format: {} for format in FORMATS}
    for sizes in reversed(choices):
        shapes = subject.open_sizes(sizes)
        try:
            programs[sizes] = trace(subject.module, subject.examples(sizes)[0], shapes)
        except ExportRefused as error:
            for by_sizes in refused.values():
                by_sizes[sizes] = error.reason
            break
    return Captured(subject, dict(reversed(programs.items())), refused)


def at_real_tokens(answer: Tensor, inputs: Inputs) -> Tensor:
    """Set the output at padding, which is meaningless, to zero."""
    valid = inputs.get("key_valid")
    return answer if valid is None else answer.masked_fill(~valid[..., None], 0)
