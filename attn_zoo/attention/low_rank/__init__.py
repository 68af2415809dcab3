"""Low-rank attention: keys and values are compressed along the length by projections (Linformer), landmarks or memories."""

from attn_zoo.attention.low_rank import _window_maps as _window_maps
from attn_zoo.attention.low_rank import agent as agent
from attn_zoo.attention.low_rank import external as external
from attn_zoo.attention.low_rank import kernelized_linformer as kernelized_linformer
from attn_zoo.attention.low_rank import length_compression as length_compression
from attn_zoo.attention.low_rank import linformer as linformer
from attn_zoo.attention.low_rank import linformer_causal as linformer_causal
from attn_zoo.attention.low_rank import linformer_lsh as linformer_lsh
from attn_zoo.attention.low_rank import linformer_window as linformer_window
from attn_zoo.attention.low_rank import long_short as long_short
from attn_zoo.attention.low_rank import luna as luna
from attn_zoo.attention.low_rank import nystrom as nystrom
from attn_zoo.attention.low_rank import sparse_compression as sparse_compression
from attn_zoo.attention.low_rank import sparse_linformer as sparse_linformer
