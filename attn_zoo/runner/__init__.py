"""Execution of runs. A run takes a spec and gives a record."""

from attn_zoo.runner.execute import resolve_spec, run
from attn_zoo.runner.train import Progress

__all__ = ["Progress", "resolve_spec", "run"]
