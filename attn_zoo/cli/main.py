"""Entry point of ``attn-zoo``. It imports as little as possible, so an interrupt or a lack of memory always ends with a one-line
message."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes ten milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't allocate memory", "can't start new thread")
"""Phrases of libraries' error messages which show that memory did not suffice for an import."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``attn-zoo`` and return its exit status: 0 for success, 1 if a check or a run failed, 2 for bad input, and 130 after an
    interrupt.

    If ``argv`` is None, the arguments are those of the shell, and the command runs in a child process.
    """
    if argv is not None:
        return _guarded(argv)
    try:
        from attn_zoo.cli.supervised import supervised

        return supervised(lambda: _guarded(None))
    except KeyboardInterrupt:
        return say_interrupted()


def _guarded(argv: Sequence[str] | None) -> int:
    """Run a command; an interrupt or a lack of memory while it starts ends it with one line."""
    try:
        from attn_zoo.cli.commands import run

        return run(argv)
    except KeyboardInterrupt:
        return say_interrupted()
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        if comes_of_an_interrupt(error):
            return say_interrupted()
        if not isinstance(error, MemoryError) and not any(words in str(error).lower() for words in _NO_MEMORY):
            raise
        said = str(error).strip() or type(error).__name__
        print(f"attn-zoo: not enough memory ({said}); raise the limit (ulimit -v) or end other programs", file=sys.stderr)
        return 1


def comes_of_an_interrupt(error: BaseException) -> bool:
    """Return True if the error is a ``KeyboardInterrupt`` or was caused by it. An interrupted library may raise a different
    error."""
    behind = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (behind is not None and comes_of_an_interrupt(behind))


def say_interrupted(kept: str = "") -> int:
    """Print that the command was interrupted, and return the exit status 130.

    Args:
        kept: note on what is saved, to be printed; may be empty.
    """
    print(f"attn-zoo: interrupted{f'; {kept}; run the same command again to resume' if kept else ''}", file=sys.stderr)
    return 130
