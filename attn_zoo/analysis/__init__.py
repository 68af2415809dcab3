"""Analysis of the attention in models: attention matrices, their singular values, and errors of approximations."""

from attn_zoo.analysis.capture import attention_matrices
from attn_zoo.analysis.spectrum import Spectrum, SpectrumAverage, cumulative_spectrum, default_index
from attn_zoo.analysis.text import read_text

__all__ = [
    "Spectrum",
    "SpectrumAverage",
    "attention_matrices",
    "cumulative_spectrum",
    "default_index",
    "read_text",
]
