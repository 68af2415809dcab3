"""Linformer on NVIDIA GPUs: the projection Y = E X along the length, and softmax(Q Kᵀ / √d) V over the projected keys.

Layouts: tensors are indexed (batch, heads, length, head_dim) and may have any strides in memory. Views of (batch, length, heads ·
    head_dim) are read in place, and outputs and gradients are views of this kind.
Saved for the backward pass: Q, K and V. If keys do not fit on the chip (see ``table``), the output and one number per query are
    saved, too. The projection saves the tokens only for the gradient of E, and E only for the gradient of the tokens. Weights are
    never stored.
Numerics: matrix products multiply in the dtype of the inputs and sum in float32. The softmax is in float32. float32 inputs are
    multiplied as three tf32 products, or as one if PyTorch's own products may use tf32 (``torch.backends.cuda.matmul``). Results
    are the same on every run. Their last bits depend on the number of multiprocessors, because sums are split between them.
Limits: head_dim is at most 128. There is no causal form, because E mixes all positions. The only attention mask is ``key_valid``.
    There are no second derivatives.
Tests: Triton's interpreter against float64, and compilation for sm_90. Nothing was measured on a GPU.
"""

from attn_zoo.kernels.linformer.functions import linformer_attention, project_heads, project_sequence

__all__ = ["linformer_attention", "project_heads", "project_sequence"]
