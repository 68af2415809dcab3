"""The command ``attn-zoo``: what people type."""

from attn_zoo.cli.main import main

__all__ = ["main"]
