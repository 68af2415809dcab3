"""Our Triton kernels of Linformer on a GPU: are they right, and how far from the floor and from PyTorch's own kernels."""
