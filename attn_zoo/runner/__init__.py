"""What runs: one spec in, one record out."""

from attn_zoo.runner.execute import plain_options, resolve_spec, run
from attn_zoo.runner.train import Progress

__all__ = ["Progress", "plain_options", "resolve_spec", "run"]
