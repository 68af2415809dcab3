"""Layers of public packages with their projections, (batch, length, dim) -> same. Packages are imported when a layer is built.

``size`` is the rival's dial: see ``attn_zoo.cost.peers.rivals``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RANDOM_BLOCKS = 3
"""Of BigBird, the published number."""

HASHES = 4
"""Rounds of hashing of Reformer."""

Core = Callable[[Tensor, Tensor, Tensor], Tensor]


class Surrounded(nn.Module):
    """A core over (batch, heads, length, head_dim) between projections like those of our layer."""

    def __init__(self, dim: int, heads: int, core: Core) -> None:
        super().__init__()
        self.heads, self.core = heads, core
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        """Project, split into heads, and back."""
        split = (each(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value))
        out: Tensor = self.out(self.core(*split).transpose(1, 2).flatten(2))
        return out


class Completed(nn.Module):
    """A layer of transformers that lacks only the output projection, with what its model would have told it about the tokens."""

    def __init__(self, dim: int, inner: nn.Module, told: Callable[[Tensor], dict[str, Any]]) -> None:
        super().__init__()
        self.inner, self.told = inner, told
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """The first of what the layer gives back, projected."""
        out: Tensor = self.out(self.inner(tokens, **self.told(tokens))[0])
        return out


def linformer(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """``size`` projected keys."""
    return _built(_package("linformer").LinformerSelfAttention(dim=dim, seq_len=length, k=size, heads=heads))


def performer(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """``size`` random features, drawn once."""
    return _built(_package("performer_pytorch").SelfAttention(dim, heads=heads, dim_head=dim // heads, nb_features=size))


def local_attention(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """``size`` keys on either side, exactly, and no rotary positions."""
    return _built(
        _package("local_attention").LocalMHA(
            dim=dim, heads=heads, dim_head=dim // heads, window_size=size, exact_windowsize=True, use_rotary_pos_emb=False
        )
    )


def longformer(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """``size`` keys on either side, no global tokens."""
    config = _package("transformers").LongformerConfig(
        hidden_size=dim, num_attention_heads=heads, attention_window=[2 * size], attention_probs_dropout_prob=0.0
    )
    module = _package("transformers.models.longformer.modeling_longformer")
    return Completed(dim, module.LongformerSelfAttention(config, layer_id=0), _not_masked)


def reformer(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """Buckets and chunks of ``size`` on average."""
    return _built(_package("reformer_pytorch").LSHSelfAttention(dim, heads=heads, bucket_size=size, n_hashes=HASHES))


def lsh_of_transformers(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """Chunks of ``size``; buckets as the model chooses them by the length."""
    config = _package("transformers").ReformerConfig(
        hidden_size=dim,
        num_attention_heads=heads,
        attention_head_size=dim // heads,
        lsh_attn_chunk_length=size,
        num_hashes=HASHES,
        num_buckets=None,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=False,
        max_position_embeddings=length,
    )
    module = _package("transformers.models.reformer.modeling_reformer")
    return Completed(dim, module.LSHSelfAttention(config), _nothing)


def nystrom(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """``size`` landmarks, no convolution of the values."""
    return _built(
        _package("nystrom_attention").NystromAttention(dim, dim_head=dim // heads, heads=heads, num_landmarks=size, residual=False)
    )


def linear(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """Softmax of queries over features and of keys over positions."""
    module = _package("linear_attention_transformer.linear_attention_transformer")
    return _built(module.SelfAttention(dim, heads))


def linear_causal(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """The plain chunked form, over elu(x) + 1."""
    return Surrounded(dim, heads, partial(_by_chunks, fla_naive("linear_attn").naive_chunk_linear_attn))


def bigbird(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """Blocks of ``size``."""
    config = _package("transformers").BigBirdConfig(
        hidden_size=dim,
        num_attention_heads=heads,
        block_size=size,
        num_random_blocks=RANDOM_BLOCKS,
        max_position_embeddings=length,
    )
    module = _package("transformers.models.big_bird.modeling_big_bird")
    make = module.BigBirdModel.create_masks_for_block_sparse_attn
    return Completed(dim, module.BigBirdBlockSparseAttention(config, seed=0), partial(_blocks_of_ones, make, size))


def entmax(dim: int, heads: int, size: int, length: int) -> nn.Module:
    """The package's normaliser over all scores."""
    return Surrounded(dim, heads, partial(_normalised, _package("entmax").entmax15))


def fla_naive(folder: str) -> ModuleType:
    """The plain PyTorch reference of one operator of flash-linear-attention.

    It is read from its own file: importing the package around it takes Triton and a quarter of a minute, which it does not need.

    Raises:
        ImportError: the package is not installed.
    """
    spec = importlib.util.find_spec("fla")
    for place in (spec.submodule_search_locations or []) if spec else []:
        file = Path(place) / "ops" / folder / "naive.py"
        if file.is_file():
            own = importlib.util.spec_from_file_location(f"fla_naive_{folder}", file)
            assert own is not None and own.loader is not None
            module = importlib.util.module_from_spec(own)
            own.loader.exec_module(module)
            return module
    raise ImportError(f"no ops/{folder}/naive.py of flash-linear-attention is installed")


def _package(name: str) -> Any:
    return importlib.import_module(name)


def _built(layer: Any) -> nn.Module:
    assert isinstance(layer, nn.Module)
    return layer


def _nothing(tokens: Tensor) -> dict[str, Any]:
    return {}


def _not_masked(tokens: Tensor) -> dict[str, Any]:
    no = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    masks = {"is_index_masked": no, "is_index_global_attn": no, "is_global_attn": False}
    return {"attention_mask": torch.zeros(tokens.shape[:2]), **masks}


def _blocks_of_ones(make: Callable[..., tuple[Tensor, ...]], size: int, tokens: Tensor) -> dict[str, Any]:
    blocked, band, rows, columns = make(tokens.new_ones(tokens.shape[:2]).detach(), size)
    blocks = {"from_blocked_mask": blocked, "to_blocked_mask": blocked}
    return {"band_mask": band, "from_mask": rows, "to_mask": columns, **blocks}


def _by_chunks(core: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    features = (F.elu(query) + 1, F.elu(key) + 1, value)
    return core(*(x.transpose(1, 2) for x in features), scale=1.0, normalize=True).transpose(1, 2)


def _normalised(normalise: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return normalise((query * query.shape[-1] ** -0.5) @ key.mT, dim=-1) @ value
