"""The page of the command line: the help of every command, as the commands themselves print it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from attn_zoo.cli.main import parser
from attn_zoo.cli.run import run_help
from attn_zoo.cli.tune import USAGE
from attn_zoo.terminal import wrap
from zoo_pages.templating import render

_COLUMNS = "96"


def command_page() -> str:
    """Markdown of the page of commands."""
    with _width():
        helps = [(part.prog, part.format_help().rstrip()) for part in _all(parser()) if part.add_help]
        own = [("attn-zoo run", run_help()), ("attn-zoo tune", wrap(USAGE))]
    return render("command_line.md.j2", helps=[helps[0], *own, *helps[1:]])


def _all(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and all beneath it, in their order."""
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from _all(below)


@contextmanager
def _width() -> Iterator[None]:
    """Lines of one width, whatever terminal the site is built in."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
