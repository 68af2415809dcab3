"""``attn-zoo analyze``: looking inside models and mechanisms."""

from __future__ import annotations

from typing import Any

from attn_zoo.cli.analyze import error, matrix, spectrum
from attn_zoo.cli.analyze.error import error_table as error_table
from attn_zoo.cli.analyze.spectrum import spectrum_table as spectrum_table


def add_to(commands: Any) -> None:
    """Add the command to the others."""
    analyze = commands.add_parser(
        "analyze", help="look inside: how low-rank attention is, how far mechanisms are from softmax, what matrix they form"
    )
    analyses = analyze.add_subparsers(required=True, metavar="ANALYSIS")
    for part in (spectrum, error, matrix):
        part.add_to(analyses)
