"""Linformer on NVIDIA GPUs: Y = E X along the sequence, and softmax(Q Kᵀ / √d) V over the projected keys.

Layouts: tensors are indexed (batch, heads, length, head_dim) and may have any strides in memory; views of
    (batch, length, heads · head_dim) are read in place, and outputs and gradients are such views.
Saved for the backward: Q, K and V; if keys do not fit on chip (see ``table``) also the output and one number per query.
    The projection saves the tokens, or E, as the requested gradients need. Weights are never stored.
Numerics: matmuls multiply in the dtype of the inputs and sum in float32, the softmax is in float32. float32 inputs are
    multiplied as three tf32 products, or as one where PyTorch's own matmuls are allowed to
    (``torch.backends.cuda.matmul``). Results are the same on every run, but depend in their last bits on the number of
    multiprocessors, since sums are split between them.
Limits: head_dim up to 128; no causal form, since E mixes all positions; no attention mask other than ``key_valid``; gradients
    once, not twice.
Tests: Triton's interpreter against float64, and compilation for sm_90. Nothing was measured on a GPU.
"""

from attn_zoo.kernels.linformer.functions import linformer_attention, project_heads, project_sequence

__all__ = ["linformer_attention", "project_heads", "project_sequence"]
