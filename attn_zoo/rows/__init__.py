"""Rows by name: ``NAME[:IMPLEMENTATION][[OPTION=VALUE,...]]``, such as ``linformer:sdpa[projected_length=64]``, read and printed.

Every command names a mechanism, its hyperparameters and its implementation this way, and tables print the same words. In a list,
rows stand between commas, and ``OPTION=A|B`` stands for a row with each of the values. Loads without PyTorch.

A hybrid holds several mechanisms, which the layers of a network take in turn: ``3*linformer[projected_length=64]+softmax`` is
three layers of Linformer and one of softmax, repeated up to the depth. It is a row whose ``attention`` is the turn,
``3*linformer+softmax``, and whose options carry the name of their mechanism, ``linformer.projected_length``.
"""

from attn_zoo.rows.name import RowName
from attn_zoo.rows.reading import (
    FORM,
    convert_options,
    hyperparameters,
    read_rows,
    row_of_arguments,
    rows_of,
    split,
    typed,
    typed_options,
)

__all__ = [
    "FORM",
    "RowName",
    "convert_options",
    "hyperparameters",
    "read_rows",
    "row_of_arguments",
    "rows_of",
    "split",
    "typed",
    "typed_options",
]
