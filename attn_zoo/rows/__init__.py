"""Names of rows, parsed and printed: ``NAME[:IMPLEMENTATION][[OPTION=VALUE,...]]``, as in ``linformer:sdpa[projected_length=64]``.

All commands and tables use these names. In a list, commas separate rows, and ``OPTION=A|B`` gives one row for each of the values.
Importing this package does not load PyTorch.

A hybrid uses several mechanisms in turn over the layers of a network: ``3*linformer[projected_length=64]+softmax`` is three layers
of Linformer and one of softmax, repeated up to the depth. The ``attention`` of a hybrid is the pattern of its layers,
``3*linformer+softmax``. Each option of a hybrid begins with the name of the mechanism that has it, as in
``linformer.projected_length``.
"""

from attn_zoo.rows.name import FORM, RowName, read_rows, row_of, split
from attn_zoo.rows.reading import (
    attention_version,
    convert_options,
    hyperparameters,
    only_row,
    option,
    row_of_arguments,
    rows_of,
    typed,
)

__all__ = [
    "FORM",
    "RowName",
    "attention_version",
    "convert_options",
    "hyperparameters",
    "only_row",
    "option",
    "read_rows",
    "row_of",
    "row_of_arguments",
    "rows_of",
    "split",
    "typed",
]
