"""Tiny Hugging Face models with initial weights so large that attention is far from uniform, and inputs for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from attn_zoo.integrations.transformers import zoo_layers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOKENS = 10
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"
"""Name of a model's argument and output with the cache, which transformers 5.24 changed."""
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "initializer_range": 0.4}
_TEXT = {**_SIZES, "vocab_size": 30, "max_position_embeddings": 24}
_STILL = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
_GPT2 = {"vocab_size": 30, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4, "initializer_range": 0.4}
_END = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

ENCODERS: dict[str, Callable[..., Any]] = {
    "bert": lambda **o: transformers.BertModel(transformers.BertConfig(**{**_TEXT, **_STILL, **o})),
    "roberta": lambda **o: transformers.RobertaModel(transformers.RobertaConfig(**{**_TEXT, **_STILL, **o})),
    "electra": lambda **o: transformers.ElectraModel(transformers.ElectraConfig(**{**_TEXT, **_STILL, "embedding_size": 8, **o})),
    "distilbert": lambda **o: transformers.DistilBertModel(
        transformers.DistilBertConfig(
            **{"vocab_size": 30, "max_position_embeddings": 24, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 16}
            | {"initializer_range": 0.4, "attention_dropout": 0.0, "dropout": 0.0, **o}
        )
    ),
}
DECODERS: dict[str, Callable[..., Any]] = {
    "gpt2": lambda **o: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**{**_GPT2, **_END, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, **o})
    ),
    "llama": lambda **o: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**_TEXT, **_END, "num_key_value_heads": 2, **o})
    ),
}
SELDOM: dict[str, Callable[..., Any]] = {
    "gpt_neox": lambda **o: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**{**_TEXT, **_END, **o})),
}
"""Decoders for single tests: their layers name the cache otherwise."""


def sam() -> tuple[Any, dict[str, Tensor]]:
    """Two points per image, which attend to each other and to the image."""
    torch.manual_seed(0)
    image = {"hidden_size": 8, "image_size": 16, "patch_size": 4}
    config = transformers.SamConfig(
        vision_config={**image, "output_channels": 8, "mlp_dim": 8, "num_pos_feats": 4, "window_size": 0}
        | {"num_hidden_layers": 1, "num_attention_heads": 2, "global_attn_indexes": [0]},
        prompt_encoder_config={**image, "image_embedding_size": 4, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 8}
        | {"iou_head_hidden_dim": 8},
        initializer_range=0.4,
    )
    pixels, points = torch.randn(2, 3, 16, 16, dtype=torch.float64), 16 * torch.rand(2, 1, 2, 2, dtype=torch.float64)
    return transformers.SamModel(config).eval().double(), {"pixel_values": pixels, "input_points": points}


def mobilebert() -> tuple[Any, dict[str, Tensor]]:
    """Values come from wider tokens than queries and keys."""
    torch.manual_seed(0)
    narrow = {"embedding_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 1}
    config = transformers.MobileBertConfig(**{**_TEXT, **_STILL, **narrow, "num_hidden_layers": 1})
    return transformers.MobileBertModel(config).eval().double(), inputs("bert", "right")


APART: dict[str, Callable[[], tuple[Any, dict[str, Tensor]]]] = {"sam": sam, "mobilebert": mobilebert}
"""Models in float64, and inputs for them. Their attention modules get queries, keys and values from several tensors."""


def build(name: str, **options: Any) -> Any:
    """Model in evaluation mode, with the same weights each time."""
    torch.manual_seed(0)
    if name == "vit":
        sizes = {**_SIZES, **_STILL, "image_size": 12, "patch_size": 4, "num_channels": 1}
        return transformers.ViTModel(transformers.ViTConfig(**{**sizes, **options})).eval()
    return {**ENCODERS, **DECODERS, **SELDOM}[name](**options).eval()


def inputs(name: str, padding: str = "none") -> dict[str, Tensor]:
    """Three examples; with padding, the second keeps six of its tokens and the third nine; ``both`` pads the third on the left."""
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(3, 1, 12, 12, generator=generator)}
    ids = torch.randint(3, 30, (3, TOKENS), generator=generator)
    if padding == "none":
        return {"input_ids": ids}
    kept = torch.tensor([TOKENS, 6, 9])[:, None]
    at = torch.arange(TOKENS)[None]
    left = torch.tensor([padding == "left", padding == "left", padding in ("left", "both")])[:, None]
    real = torch.where(left, at >= TOKENS - kept, at < kept)
    return {"input_ids": ids, "attention_mask": real.long()}


def with_cache(cache: Any) -> dict[str, Any]:
    """Keyword argument that hands a cache to a model."""
    return {CACHE: cache}


def cache_of(output: Any) -> Any:
    """Cache that a model returned."""
    return getattr(output, CACHE)


def mechanisms(model: nn.Module) -> list[Any]:
    """Mechanisms attached to a model; untyped, because their parameters differ by class."""
    return list(zoo_layers(model))


def real_of(batch: dict[str, Tensor], out: Tensor) -> Tensor:
    """Mask of the output positions of real tokens."""
    return batch["attention_mask"].bool() if "attention_mask" in batch else torch.ones(out.shape[:2], dtype=torch.bool)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Gradients of all trainable parameters, by name."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
