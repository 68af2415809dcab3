"""The zoo: one mechanism, one file. This list is the table of contents."""

from attn_zoo.attention import convolution as convolution
from attn_zoo.attention import cosformer as cosformer
from attn_zoo.attention import delta_rule as delta_rule
from attn_zoo.attention import entmax as entmax
from attn_zoo.attention import external as external
from attn_zoo.attention import fnet as fnet
from attn_zoo.attention import frozen_random as frozen_random
from attn_zoo.attention import gated_linear as gated_linear
from attn_zoo.attention import kernelized_linformer as kernelized_linformer
from attn_zoo.attention import linear as linear
from attn_zoo.attention import linformer as linformer
from attn_zoo.attention import linformer_causal as linformer_causal
from attn_zoo.attention import longformer as longformer
from attn_zoo.attention import luna as luna
from attn_zoo.attention import mega as mega
from attn_zoo.attention import none as none
from attn_zoo.attention import performer as performer
from attn_zoo.attention import pooling as pooling
from attn_zoo.attention import reformer as reformer
from attn_zoo.attention import softmax as softmax
from attn_zoo.attention import sparse_linformer as sparse_linformer
from attn_zoo.attention import synthesizer_dense as synthesizer_dense
from attn_zoo.attention import synthesizer_factorised as synthesizer_factorised
from attn_zoo.attention import synthesizer_random as synthesizer_random
from attn_zoo.attention import transformer_xl as transformer_xl
from attn_zoo.attention import uniform as uniform
