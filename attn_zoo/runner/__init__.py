"""Execution of a run: one spec in, one record out."""

from attn_zoo.runner.execute import resolve_spec, run
from attn_zoo.runner.train import Progress

__all__ = ["Progress", "resolve_spec", "run"]
