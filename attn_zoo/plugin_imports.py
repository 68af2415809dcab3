"""Import of a plugin, protected against what a plugin may do: raise any error, end the process, hang, or change settings."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attn_zoo import deaths
from attn_zoo.escapes import error_text, terminal
from attn_zoo.outside import Outside
from attn_zoo.process_state import kept, sentence

SLOW = 15.0
"""Seconds after which a warning names a plugin that is still being imported."""


class PluginWarning(UserWarning):
    """Warning that a plugin was left out, is slow, or has changed settings of the process."""


def tell(words: str) -> None:
    """Issue a ``PluginWarning`` with the given text."""
    warnings.warn(terminal(words), PluginWarning, stacklevel=2)


@contextmanager
def apart(who: str, when: str) -> Iterator[list[str]]:
    """Return a context. When the context ends, changed settings of the process are restored, and a warning names them.

    The names of these settings are also added to the list that the context yields.

    Args:
        who: name of the plugin or task, for the warning.
        when: words that say when the settings changed, such as ``when it was imported``, for the warning.
    """
    with kept() as changed:
        yield changed
    if changed:
        tell(sentence(who, when, changed))


def in_words(error: BaseException) -> str:
    """Return the class and message of an error that a plugin raised, and the file and line where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error_text(error)} ({where.filename}:{where.lineno})"


def imported(name: str, place: str, load: Callable[[], object]) -> str | None:
    """Import a plugin by calling ``load``, and restore the settings of the process that the import changed.

    Args:
        name: name of the plugin in messages.
        place: module or path of the plugin, which identifies it.

    Returns:
        A sentence on what the import changed, or None if it changed nothing.

    Raises:
        ValueError: an earlier process of this command died while it imported the plugin.
        BaseException: whatever the plugin raises.
    """
    what = f"{deaths.IMPORT}{place}"
    if ends := deaths.reasons(what):
        raise ValueError(f"{place} cannot be loaded, because the process that imported it {ends[-1]}")
    who, when = f"plugin {name}", "when it was imported"
    with _named_if_slow(name), deaths.during(what), apart(who, when) as changed:
        _interrupted_by_signals_alone(load)
    return sentence(who, when, changed) if changed else None


def _interrupted_by_signals_alone(load: Callable[[], object]) -> None:
    """Import a plugin. If it raises KeyboardInterrupt without a signal, raise a RuntimeError instead.

    Raises:
        RuntimeError: it raised KeyboardInterrupt.
    """
    with Outside() as outside:
        try:
            load()
        except BaseException as error:
            in_words(error)  # here, because reading its message may end the process, too
            outside.pass_on(error)
            if isinstance(error, KeyboardInterrupt):
                raise RuntimeError("it raised KeyboardInterrupt").with_traceback(error.__traceback__) from error
            raise


@contextmanager
def _named_if_slow(name: str) -> Iterator[None]:
    """Return a context that prints a warning if the import of a plugin takes longer than ``SLOW`` seconds."""
    waiting = threading.Timer(SLOW, tell, [f"plugin {name} is still being imported after {SLOW:g} seconds; Ctrl-C ends the wait"])
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
