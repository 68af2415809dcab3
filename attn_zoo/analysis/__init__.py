"""Analysis of the attention in models: attention matrices, their singular values, and errors of approximations."""

from attn_zoo.analysis.capture import attention_matrices
from attn_zoo.analysis.spectrum import Spectrum, cumulative_spectrum, spectrum_of
from attn_zoo.analysis.text import read_text

__all__ = ["Spectrum", "attention_matrices", "cumulative_spectrum", "read_text", "spectrum_of"]
