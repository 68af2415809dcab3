"""Functions that build layers of public packages with their projections. Inputs and outputs have shape (batch, length, dim).
Recurrences have no projections; their inputs and outputs have shape (batch, heads, length, head_dim).

A package is imported when one of its layers is built. ``value`` is the option that both sides of a comparison share; see
``peer_comparisons``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.count.subjects import Subject, build_module

RANDOM_BLOCKS = 3
"""Number of random blocks of keys for each block of queries in BigBird, as published."""

HASHES = 4
"""Number of rounds of hashing in Reformer."""

Core = Callable[[Tensor, Tensor, Tensor], Tensor]


class ProjectedCore(nn.Module):
    """Attention function of a package, between projections like those of the zoo's layer.

    The function takes tensors of shape (batch, heads, length, head_dim).
    """

    def __init__(self, dim: int, heads: int, core: Core) -> None:
        super().__init__()
        self.heads, self.core = heads, core
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the outputs for tokens: input projections, then attention, then the output projection."""
        split = (each(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value))
        out: Tensor = self.out(self.core(*split).transpose(1, 2).flatten(2))
        return out


class ProjectedOutput(nn.Module):
    """Layer of the package transformers that lacks an output projection, with such a projection added. The layer gets the same
    masks as within its model."""

    def __init__(self, dim: int, inner: nn.Module, masks: Callable[[Tensor], dict[str, Any]]) -> None:
        super().__init__()
        self.inner, self.masks = inner, masks
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the first result of the inner layer, after the added output projection."""
        out: Tensor = self.out(self.inner(tokens, **self.masks(tokens))[0])
        return out


def longformer(dim: int, heads: int, value: int, length: int) -> nn.Module:
    """Return Longformer's layer with a window of ``value`` keys and without global tokens."""
    given = {"attention_window": [value - 1], "attention_probs_dropout_prob": 0.0}
    config = import_module("transformers").LongformerConfig(hidden_size=dim, num_attention_heads=heads, **given)
    module = import_module("transformers.models.longformer.modeling_longformer")
    return ProjectedOutput(dim, module.LongformerSelfAttention(config, layer_id=0), _no_padding)


def lsh(dim: int, heads: int, value: int, length: int) -> nn.Module:
    """Return Reformer's LSH layer with chunks of ``value`` tokens. The package chooses the number of buckets by the length."""
    import_module("transformers").logging.set_verbosity_error()  # its warning about the chosen buckets would break the progress bar
    config = import_module("transformers").ReformerConfig(
        hidden_size=dim,
        num_attention_heads=heads,
        attention_head_size=dim // heads,
        lsh_attn_chunk_length=value,
        num_hashes=HASHES,
        num_buckets=None,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=False,
        max_position_embeddings=length,
    )
    return ProjectedOutput(dim, import_module("transformers.models.reformer.modeling_reformer").LSHSelfAttention(config), _no_masks)


def bigbird(dim: int, heads: int, value: int, length: int) -> nn.Module:
    """Return BigBird's layer with blocks of ``value`` tokens."""
    given = {"block_size": value, "num_random_blocks": RANDOM_BLOCKS, "max_position_embeddings": length}
    config = import_module("transformers").BigBirdConfig(hidden_size=dim, num_attention_heads=heads, **given)
    module = import_module("transformers.models.big_bird.modeling_big_bird")
    masks = partial(_block_masks, module.BigBirdModel.create_masks_for_block_sparse_attn, value)
    return ProjectedOutput(dim, module.BigBirdBlockSparseAttention(config, seed=0), masks)


def linear_causal(dim: int, heads: int, value: int, length: int) -> nn.Module:
    """Return causal linear attention with the feature map elu(x) + 1, in flash-linear-attention's chunked form in plain PyTorch."""
    return ProjectedCore(dim, heads, partial(_elu_features, fla_naive("linear_attn").naive_chunk_linear_attn))


def entmax(dim: int, heads: int, value: int, length: int) -> nn.Module:
    """Return an attention layer with 1.5-entmax over all scores in place of softmax."""
    return ProjectedCore(dim, heads, partial(_normalised, import_module("entmax").entmax15))


def recurrence(dim: int, heads: int, value: int, length: int, *, name: str, package: str, module: str, function: str) -> nn.Module:
    """Return the zoo's causal mechanism, without projections, in which a package's function computes the chunked recurrence.

    Args:
        name: mechanism of the zoo.
        package: ``fla-core`` or ``transformers``.
        module: folder of flash-linear-attention's operator, or name of transformers' model.
        function: function of the module. Functions of transformers divide the queries by √head_dim. Our queries are divided
            already, so they are multiplied by √head_dim before such a function is called.
    """
    alone = build_module("mechanism", Subject(name, {}, causal=True), dim, heads, length)
    mechanism: Any = alone.mechanism
    scaled = package == "transformers"
    core = getattr(transformers_plain(module), function) if scaled else partial(getattr(fla_naive(module), function), scale=1.0)

    def read(state: Any, *inputs: Tensor, **streams: Tensor) -> tuple[Tensor, Any]:
        query, key, value, decay, beta = (x.transpose(1, 2) for x in mechanism.updates(*inputs, **streams)[:5])
        query = query * (dim // heads) ** 0.5 if scaled else query
        decay = decay[..., 0] if decay.shape[-1] == 1 else decay  # one number for each head
        return core(query, key, value, g=decay, beta=beta[..., 0])[0].transpose(1, 2), state

    mechanism.read = read
    return alone


@cache
def transformers_plain(model: str) -> ModuleType:
    """Return the module of a model of transformers with its functions in plain PyTorch, even if flash-linear-attention is
    installed.

    The module chooses its functions when it is imported, so it is imported anew while flash-linear-attention is hidden.
    """
    name = f"transformers.models.{model}.modeling_{model}"
    hidden = {each: sys.modules.pop(each) for each in list(sys.modules) if each == name or each.split(".")[0] == "fla"}
    sys.modules["fla"] = None  # type: ignore[assignment]  # Python's mark of a module that cannot be imported
    try:
        return import_module(name)
    finally:
        del sys.modules["fla"]
        sys.modules.update(hidden)


def fla_naive(folder: str) -> ModuleType:
    """Return the module with the plain PyTorch reference of one operator of flash-linear-attention.

    It is loaded from its own file, because importing the package needs Triton and a quarter of a minute.

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
    raise ImportError(
        f"the file ops/{folder}/naive.py of flash-linear-attention is needed, but is not installed. Install flash-linear-attention"
    )


def _no_masks(tokens: Tensor) -> dict[str, Any]:
    return {}


def _no_padding(tokens: Tensor) -> dict[str, Any]:
    no = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    masks = {"is_index_masked": no, "is_index_global_attn": no, "is_global_attn": False}
    return {"attention_mask": torch.zeros(tokens.shape[:2]), **masks}


def _block_masks(make: Callable[..., tuple[Tensor, ...]], block: int, tokens: Tensor) -> dict[str, Any]:
    blocked, band, rows, columns = make(tokens.new_ones(tokens.shape[:2]).detach(), block)
    blocks = {"from_blocked_mask": blocked, "to_blocked_mask": blocked}
    return {"band_mask": band, "from_mask": rows, "to_mask": columns, **blocks}


def _elu_features(core: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    features = (F.elu(query) + 1, F.elu(key) + 1, value)
    return core(*(x.transpose(1, 2) for x in features), scale=1.0, normalize=True).transpose(1, 2)


def _normalised(normalise: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return normalise((query * query.shape[-1] ** -0.5) @ key.mT, dim=-1) @ value
