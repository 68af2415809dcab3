"""Experiment ``models``: time of whole models of timm and transformers before and after their attention is replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attn_zoo.bench.bench import Bench
from attn_zoo.bench.grid import Grid
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.probes import SECONDS, Probe
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.tables import failures, figure, joined, notes, seconds_or_reason
from attn_zoo.bench.timing import quotients
from attn_zoo.contract import UnknownNameError
from attn_zoo.rows import RowName, only_row, option
from attn_zoo.terminal import table

GPT2 = {"n_layer": 2, "n_embd": 256, "n_head": 4, "attn_pdrop": 0.0, "vocab_size": 1000, "bos_token_id": None, "eos_token_id": None}
"""Configuration of the decoder, without its number of positions."""
PROMPT = 16
"""Number of tokens in the prompt."""


def random_images(size: int, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random images of shape (batch, 3, size, size), as a tuple of one tensor. ``length`` is not used."""
    return (torch.randn(batch, 3, size, size, dtype=dtype),)


def random_ids(tokens: int, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random token ids below 1,000 of shape (batch, tokens), as a tuple of one tensor. ``length`` and ``dtype`` are not
    used."""
    return (torch.randint(1, 1000, (batch, tokens)),)


class Generating(nn.Module):
    """Decoder that generates tokens greedily. ``tokens`` is the total number of tokens, including the prompt. If ``cached`` is
    True, the decoder keeps a recurrent state or the keys and values of earlier tokens. Otherwise it computes the whole sequence
    again for each token."""

    def __init__(self, model: Any, tokens: int, cached: bool) -> None:
        super().__init__()
        self.model, self.tokens, self.cached = model, tokens, cached

    def forward(self, ids: Tensor) -> Tensor:
        """Return token ids (batch, tokens): the prompt ``ids`` (batch, prompt), followed by the generated tokens."""
        new = self.tokens - ids.shape[1]
        how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "use_cache": self.cached}
        return self.model.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=None, pad_token_id=0, **how)


def build_model(name: str, role: str, row: RowName, depth: int, size: int, length: int) -> nn.Module:
    """Return a model of another library, with its own attention or with a mechanism of attn-zoo.

    Args:
        name: ``vit``, ``bert`` or ``generation`` (GPT-2 that generates text).
        role: variant of the model. For ``vit`` and ``bert``, ``before`` keeps the model's own attention, and ``after`` uses
            ``row``. For ``generation``, ``softmax`` keeps the model's own attention with cached keys, ``before`` uses ``row``
            without a cache, and ``after`` uses ``row`` with a cache or a recurrent state.
        row: mechanism with its options.
        depth: number of layers of BERT.
        size: side of an image in pixels, for ``vit``.
        length: number of tokens, for ``bert`` and ``generation``.
    """
    options = {"implementation": row.implementation, **row.options}
    if name == "vit":
        from timm import create_model

        from attn_zoo.integrations.timm import replace_attention as replace_in_timm

        vit = create_model("vit_tiny_patch16_224", img_size=size)
        return vit if role == "before" else replace_in_timm(vit, row.attention, **options)
    from attn_zoo.integrations.transformers.library import require_transformers
    from attn_zoo.integrations.transformers.replace import replace_attention

    library = require_transformers()
    if name == "bert":
        config = library.BertConfig(num_hidden_layers=depth, max_position_embeddings=length)
        bert = library.BertModel(config, add_pooling_layer=False)
        return bert if role == "before" else replace_attention(bert, row.attention, **options)
    config = library.GPT2Config(n_positions=length, **GPT2)
    decoder = library.GPT2LMHeadModel(config)
    if role != "softmax":
        decoder = replace_attention(decoder, row.attention, **options)
    return Generating(decoder, length, cached=role != "before")


MODELS = {"vit": "ViT-tiny of timm", "bert": "BERT-base of transformers", "generation": "GPT-2 of transformers, generating"}


@dataclass
class WholeModels(Grid):
    """Time of a timm ViT and a BERT before and after a mechanism replaces softmax, and time of generating text with GPT-2."""

    models: list[str] = option(list(MODELS), "what is timed: vit, bert, generation (the last two need the extra text)")
    attention: str = option("linformer", "mechanism that replaces softmax in ViT and BERT, or a hybrid of layers")
    recurrent: str = option("linear", "mechanism of the decoder; it must have a recurrent form")
    image: int = option(1024, "side of the ViT's images in pixels, a multiple of 16")
    length: int = option(4096, "number of tokens of BERT")
    depth: int = option(12, "number of layers of BERT")
    tokens: int = option(1024, f"number of tokens after generation, of which {PROMPT} are the prompt")
    device: str = option("auto", "auto, cpu or cuda; auto is cuda if there is a GPU")
    precision: str = option("fp32", "precision of weights and inputs: fp32, bf16 or fp16")
    rounds: int = option(5, "number of rounds, each of which times everything once")

    preloaded: ClassVar[Sequence[str]] = ("timm", *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2")))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.models:
            if name not in MODELS:
                raise UnknownNameError("model of experiment=models", name, MODELS)
        if self.image < 16 or self.image % 16 or self.tokens <= PROMPT:
            wanted = (
                f"image= must be a multiple of 16, the side of a patch, and tokens= must be more than {PROMPT}, the length of the "
                "prompt"
            )
            raise ValueError(f"{wanted}; got image={self.image} and tokens={self.tokens}")
        row, recurrent = only_row("attention", self.attention, hybrids=True), only_row("recurrent", self.recurrent, hybrids=True)
        self.rows = {"vit": row, "bert": row, "generation": recurrent}

    @property
    def protocol(self) -> TimingProtocol:
        return TimingProtocol.on(self.device, rounds=self.rounds, seconds=0.0)

    def groups(self) -> list[list[Cell]]:
        lengths = {"vit": (self.image // 16) ** 2 + 1, "bert": self.length, "generation": self.tokens}
        return [[Cell(f"{name}, {role}", "forward", lengths[name], group=name) for role in _roles(name)] for name in self.models]

    def each(self, cell: Cell) -> Sequence[Probe]:
        return (SECONDS,)

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        name, role = cell.label.split(", ")
        build = partial(build_model, name, role, self.rows[name], self.depth, self.image)
        if name == "vit":
            inputs = partial(random_images, self.image)
        else:
            inputs = partial(random_ids, self.length if name == "bert" else PROMPT)
        return Bench, build, inputs, torch.device(self.device), self.precision, None, self.protocol

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        grid, rows = found.grid, []
        for name in grid["models"]:
            cells = {cell.label.split(", ")[1]: each for cell, each in found.cells.items() if cell.group == name}
            if "after" not in cells:  # an interrupted measurement did not reach it
                continue
            after = cells.pop("after")
            for role, before in cells.items():
                faster = quotients(before.all("seconds"), after.all("seconds"))
                times = [seconds_or_reason(each) for each in (before, after)]
                times.append(figure(faster) if faster else "-")
                rows.append([MODELS[name], f"{after.cell.length:,}", _change(name, role, grid), *times])
        head = ["whole model", "tokens", "change", "before (s)", "after (s)", "times as fast"]
        what = (
            f"One sequence, in {grid['precision']}; BERT has {grid['depth']} layers; GPT-2 has {GPT2['n_layer']} and a "
            f"prompt of {PROMPT} tokens"
        )
        failed = failures(found.cells.values(), {"forward": "forward"})
        return joined(found, table(head, rows, format, left=(0, 2)), notes(found, what, "models", before=failed))


def _roles(name: str) -> Sequence[str]:
    """Return the roles of a model. The last one is compared with each of the others."""
    return ("before", "softmax", "after") if name == "generation" else ("before", "after")


def _change(name: str, role: str, grid: Mapping[str, Any]) -> str:
    """Return words for the change from a role to ``after``."""
    if name != "generation":
        return f"softmax → {grid['attention']}"
    before = "softmax, cached keys" if role == "softmax" else f"{grid['recurrent']}, recomputed"
    return f"{before} → {grid['recurrent']}, recurrent state"
