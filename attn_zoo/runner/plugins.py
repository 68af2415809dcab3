"""Sentences about settings of the process that plugins changed during a run."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.contract import AttentionCard, TaskCard
from attn_zoo.plugin_imports import tell
from attn_zoo.process_state import sentence
from attn_zoo.records import RunSpec
from attn_zoo.registry import card, changes_outside_runs, task_card
from attn_zoo.rows import row_of


def changes_by_plugins(spec: RunSpec, changed: Sequence[str]) -> tuple[str, ...]:
    """Return sentences about the settings of the process that a run's plugins changed, during their import or during the run.
    Settings that changed during the run (``changed``) also cause a warning."""
    entries: list[AttentionCard | TaskCard] = [*(card(part.attention) for part in row_of(spec).parts()), task_card(spec.task)]
    plugins = [entry for entry in entries if not entry.origin.startswith("attn_zoo.")]
    said = [words for entry in plugins for words in changes_outside_runs(entry)]
    if changed and plugins:
        said.append(sentence(" or ".join(entry.name for entry in plugins), "in a run", changed))
        tell(said[-1])
    return tuple(dict.fromkeys(said))
