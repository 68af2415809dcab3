"""Approximation error of mechanisms, and their cost.

For each head, the error is ‖Y - Y_exact‖ / ‖Y_exact‖, where Y is the output of the mechanism and Y_exact that of softmax attention
for the same inputs. Everything is computed in float64, so rounding does not contribute to an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.inputs import AttentionInputs, attend, build_layers, described
from attn_zoo.contract import Attention
from attn_zoo.count import activation_bytes
from attn_zoo.registry import build_attention, card, stated_options
from attn_zoo.rows import RowName
from attn_zoo.terminal import short, table


class Reference:
    """Inputs of attention layers with the exact outputs of softmax attention. Mechanisms are compared with these outputs.

    Raises:
        ValueError: an exact output is zero or not finite, so relative errors are undefined.
    """

    def __init__(self, layers: Sequence[AttentionInputs]) -> None:
        self.layers = [layer.double() for layer in layers]
        self.exact = [exact_attention(layer) for layer in self.layers]
        geometry, softmax = self.layers[0].geometry, card("softmax")
        self.flops = softmax.cost(geometry, softmax.options()).flops
        self.activation_bytes = activation_bytes(softmax, geometry, softmax.options())
        uniform, _ = build_layers("uniform", self.layers, {})
        self.uniform = float(self._errors(self._outputs(uniform), self.exact).mean())

    def error(self, row: RowName, *, seeds: int = 1, first_seed: int = 0) -> dict[str, Any]:
        """Return how far a mechanism is from softmax attention, and its costs, as a dictionary for JSON. The mechanism is built
        for every layer and, if it draws random numbers, for every seed. Its learnable parameters have their initial values.

        - ``error`` is the mean over random draws, layers, sequences and heads. ``by_layer`` has that of each layer.
        - ``over_heads`` and ``over_draws`` are standard deviations over heads and draws, or None if there is only one.
        - ``tied_error`` is the error relative to softmax(Q Qᵀ / √d) V, if the mechanism uses the queries Q as keys, else None.
        - ``flops`` and ``activation_bytes`` are those of one layer and one sequence. The bytes, which autograd saves in float32 on
          a CPU, are None if they cannot be counted from shapes. Shares are relative to softmax.
        - ``streams`` has additional inputs, each with the input from which a newly built layer computes it.

        Args:
            seeds: number of seeds, counted from ``first_seed``.

        Raises:
            UnknownNameError: no such mechanism or option.
            ValueError, UnsupportedError: the mechanism cannot be built with these options for these inputs.
        """
        draws, tied = [], []
        for seed in range(first_seed, first_seed + seeds):
            built, drawn = build_layers(row.attention, self.layers, row.options, seed)
            outputs = self._outputs(built)
            draws.append(self._errors(outputs, self.exact))
            if built[0].card.can.shares_query_key:
                same = [exact_attention(replace(layer, key=layer.query)) for layer in self.layers]
                tied.append(float(self._errors(outputs, same).mean()))
            if not drawn:
                break
        errors = torch.stack(draws)
        mean, heads, means = float(errors.mean()), errors.mean(dim=(0, 2)).flatten(), errors.mean(dim=(1, 2, 3))
        found = {
            "label": str(row),
            "attention": row.attention,
            "options": {name: value for name, value in stated_options(card(row.attention), row.options).items() if value != ""},
            "control": card(row.attention).control,
            "error": mean,
            "of_uniform": mean / self.uniform if self.uniform else None,
            "over_heads": float(heads.std()) if len(heads) > 1 else None,
            "over_draws": float(means.std()) if len(means) > 1 else None,
            "draws": len(errors),
            "by_layer": errors.mean(dim=(0, 2, 3)).tolist(),
            "tied_error": sum(tied) / len(tied) if tied else None,
            **self._costs(built[0]),
        }
        return {**found, "notes": ", ".join(_notes(found))}

    def _costs(self, mechanism: Attention) -> dict[str, Any]:
        own, geometry, options = mechanism.card, mechanism.geometry, mechanism.options
        flops, kept = own.cost(geometry, options).flops, activation_bytes(own, geometry, options)
        return {
            "flops": flops,
            "flops_share": flops / self.flops,
            "activation_bytes": kept,
            "activation_share": None if kept is None or self.activation_bytes is None else kept / self.activation_bytes,
            "parameters": sum(p.numel() for p in mechanism.parameters() if p.requires_grad),
            "streams": {stream.name: stream.starts_as for stream in own.streams(geometry, options)},
            "warnings": list(own.build.warnings(geometry, options)),
        }

    def _outputs(self, built: Sequence[Attention]) -> list[Tensor]:
        return [_one_by_one(mechanism, layer) for mechanism, layer in zip(built, self.layers, strict=True)]

    def _errors(self, outputs: Sequence[Tensor], exact: Sequence[Tensor]) -> Float[Tensor, "layers sequences heads"]:
        return torch.stack([relative_error(out, right) for out, right in zip(outputs, exact, strict=True)])


def exact_attention(inputs: AttentionInputs) -> Float[Tensor, "batch heads queries head_dim"]:
    """Return softmax(Q Kᵀ / √d) V in float64, for queries Q, keys K and values V with heads of width d."""
    return _one_by_one(build_attention("softmax", inputs.geometry).eval(), inputs.double())


def relative_error(
    out: Float[Tensor, "batch heads queries head_dim"], exact: Float[Tensor, "batch heads queries head_dim"]
) -> Float[Tensor, "batch heads"]:
    """Return the error ‖out - exact‖ / ‖exact‖ of each head in the Frobenius norm.

    Raises:
        ValueError: an exact output is zero or not finite.
    """
    whole = torch.linalg.vector_norm(exact, dim=(2, 3))
    if not bool((whole.isfinite() & (whole > 0)).all()):
        raise ValueError(
            "the exact output of every head must be finite and not zero, because errors are divided by it. Give other inputs"
        )
    return torch.linalg.vector_norm(out - exact, dim=(2, 3)) / whole


def error_table(found: Mapping[str, Any], format: str = "terminal") -> str:
    """Return the result of ``attn-zoo analyze error`` as a table in the format ``terminal`` or ``github``. It begins with the
    smallest error, and has notes below."""
    rows = sorted(found["rows"], key=lambda row: row["error"])
    head = ["attention", "error", "over heads", "over draws", "of uniform", "FLOPs", "of softmax", "saved, of softmax", "notes"]
    body = [
        [
            row["label"],
            *(_number(row[name]) for name in ("error", "over_heads", "over_draws", "of_uniform")),
            short(row["flops"]),
            *(_share(row[name]) for name in ("flops_share", "activation_share")),
            row["notes"] if row["tied_error"] is None else f"{row['notes']}: {_number(row['tied_error'])}",
        ]
        for row in rows
    ]
    notes = [
        f"{described(found['inputs'])}.",
        f"softmax has {short(found['softmax']['flops'])} FLOPs; the uniform average has an error of {_number(found['uniform'])}. "
        "Columns and method: docs/reference/measurements.md#analyze-error.",
    ]
    if warned := [row["label"] for row in rows if row["warnings"]]:
        notes.append(f"Settings that do not suit this length: {', '.join(warned)}.")
    notes += [f"{refused['label']} is left out: {refused['reason']}." for refused in found["refused"]]
    return table(head, body, format, left=(0, 8)) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def _one_by_one(mechanism: Attention, inputs: AttentionInputs) -> Tensor:
    """Compute the output one sequence at a time, to limit the memory of the scores."""
    return torch.cat([attend(mechanism, inputs.sequences(slice(at, at + 1))) for at in range(len(inputs.query))])


def _notes(row: Mapping[str, Any]) -> list[str]:
    own = card(row["attention"])
    notes = ["control"] if own.control else []
    if row["parameters"]:
        notes.append(f"untrained ({row['parameters']:,} parameters)")
    if row["streams"]:
        notes.append("untrained (" + ", ".join(row["streams"]) + ")")
    if own.can.shares_query_key:
        notes.append("keys = queries")
    elif unread := [words for part, words in (("query", "no queries"), ("key", "no keys")) if part not in own.reads]:
        notes.append(f"reads {' and '.join(unread)}")
    return notes


def _share(value: float | None) -> str:
    """Format a share as a percentage with three digits."""
    return "-" if value is None else f"{100 * value:,.0f} %" if value >= 1 else f"{100 * value:.3g} %"


def _number(value: float | None) -> str:
    """Format with three digits after the point; rounding errors of float64 count as 0."""
    return "-" if value is None else "0" if value < 1e-9 else f"{value:.3f}"
