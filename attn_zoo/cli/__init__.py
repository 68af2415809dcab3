"""The command-line interface ``attn-zoo``."""

from attn_zoo.cli.main import main

__all__ = ["main"]
