"""Experiment ``models``: time of whole models of timm and transformers before and after their attention is replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attn_zoo.bench.bench import Bench
from attn_zoo.bench.compare import quotients
from attn_zoo.bench.experiment import Experiment
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.tables import failures, figure, joined, notes, seconds_or_reason
from attn_zoo.contract import UnknownNameError
from attn_zoo.rows import RowName, only_row, option
from attn_zoo.terminal import table

GPT2 = {"n_layer": 2, "n_embd": 256, "n_head": 4, "attn_pdrop": 0.0, "vocab_size": 1000, "bos_token_id": None, "eos_token_id": None}
"""Configuration of the decoder, without its number of positions."""
PROMPT = 16
"""Number of tokens in the prompt."""


def random_inputs(name: str, size: int, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random inputs of a model as a tuple of one tensor: images (batch, 3, size, size) for ``vit``, otherwise token ids
    (batch, size). ``length`` is not used."""
    return (torch.randn(batch, 3, size, size, dtype=dtype) if name == "vit" else torch.randint(1, 1000, (batch, size)),)


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
class ModelsExperiment(Experiment):
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
        if self.image < 16 or self.image % 16:
            raise ValueError(f"image= must be a multiple of 16, the side of a patch; got {self.image}")
        if self.tokens <= PROMPT:
            raise ValueError(f"tokens= must be more than {PROMPT}, the length of the prompt; got {self.tokens}")
        row, recurrent = only_row("attention", self.attention, hybrids=True), only_row("recurrent", self.recurrent, hybrids=True)
        self.rows = {"vit": row, "bert": row, "generation": recurrent}

    @property
    def protocol(self) -> TimingProtocol:
        return TimingProtocol.on(self.device, rounds=self.rounds, seconds=0.0)

    def groups(self) -> list[list[Cell]]:
        lengths = {"vit": (self.image // 16) ** 2 + 1, "bert": self.length, "generation": self.tokens}
        roles = {"vit": ("before", "after"), "bert": ("before", "after"), "generation": ("before", "softmax", "after")}
        return [[Cell(f"{name}, {role}", "forward", lengths[name], group=name) for role in roles[name]] for name in self.models]

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        name, role = cell.label.split(", ")
        build = partial(build_model, name, role, self.rows[name], self.depth, self.image)
        inputs = partial(random_inputs, name, {"vit": self.image, "bert": self.length, "generation": PROMPT}[name])
        return Bench, build, inputs, torch.device(self.device), self.precision, None, self.protocol

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        settings, rows = found.settings, []
        for name in settings["models"]:
            cells = {cell.label.split(", ")[1]: cell for cell in found.cells if cell.group == name}
            if "after" not in cells:  # an interrupted measurement did not reach it
                continue
            after = cells.pop("after")
            for role, before in cells.items():
                faster = quotients(before.all("seconds"), after.all("seconds"))
                times = [seconds_or_reason(each) for each in (before, after)]
                times.append(figure(faster) if faster else "-")
                rows.append([MODELS[name], f"{after.length:,}", _change(name, role, settings), *times])
        head = ["whole model", "tokens", "change", "before (s)", "after (s)", "times as fast"]
        what = (
            f"One sequence, in {settings['precision']}; BERT has {settings['depth']} layers; GPT-2 has {GPT2['n_layer']} and a "
            f"prompt of {PROMPT} tokens"
        )
        failed = failures(found.cells, {"forward": "forward"})
        return joined(found, table(head, rows, format, left=(0, 2)), notes(found, what, "models", before=failed))


def _change(name: str, role: str, settings: Mapping[str, Any]) -> str:
    """Return words for the change from a role to ``after``."""
    if name != "generation":
        return f"softmax → {settings['attention']}"
    before = "softmax, cached keys" if role == "softmax" else f"{settings['recurrent']}, recomputed"
    return f"{before} → {settings['recurrent']}, recurrent state"
