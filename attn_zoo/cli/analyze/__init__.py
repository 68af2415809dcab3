"""``attn-zoo analyze``: analyses of the attention of models and mechanisms."""

from __future__ import annotations

import argparse

from attn_zoo.cli.analyze import error, matrix, projections, spectrum
from attn_zoo.cli.analyze.error import error_table as error_table
from attn_zoo.cli.analyze.projections import projections_table as projections_table
from attn_zoo.cli.analyze.spectrum import spectrum_table as spectrum_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of ``attn-zoo analyze``."""
    parser.description = "Analyze the attention of models, and how closely mechanisms approximate softmax attention."
    analyses = parser.add_subparsers(required=True, metavar="ANALYSIS")
    for part in (spectrum, projections, error, matrix):
        part.add_to(analyses)
