"""A progress bar with the remaining time, on a terminal only."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class RichProgress:
    """Shows a run's steps, last loss and last validation score; silent where nobody watches.

    Args:
        by_time: a time ends the run, so that its number of steps is not known.
    """

    def __init__(self, by_time: bool = False) -> None:
        self._by_time = by_time
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  valid {task.fields[valid]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None

    def start(self, label: str, steps: int) -> None:
        """Show the bar."""
        self._bar.start()
        self._task = self._bar.add_task(label, total=None if self._by_time else steps, loss=float("nan"), valid="-")

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """Move the bar."""
        if self._task is None:
            return
        if valid is None:
            self._bar.update(self._task, completed=step, loss=loss)
        else:
            self._bar.update(self._task, completed=step, loss=loss, valid=f"{100 * valid:.1f} %")

    def stop(self) -> None:
        """Take the bar away."""
        self._bar.stop()
