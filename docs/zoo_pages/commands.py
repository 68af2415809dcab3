"""The page of the command line: the help of every command, as the commands themselves print it."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from attn_zoo.cli.main import parser
from zoo_pages.templating import render

_COLUMNS = "96"
_PROGRAM = "import sys; from attn_zoo.cli.main import main; sys.exit(main(['run', '--help']))"


def ask_for_help_of_run() -> subprocess.Popen[str]:
    """Hydra writes the help of ``run`` to the output of its process, which takes seconds: it is begun before the other pages."""
    return subprocess.Popen([sys.executable, "-P", "-c", _PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command_page(run: subprocess.Popen[str]) -> str:
    """Markdown of the page of commands.

    Raises:
        RuntimeError: the help of ``run`` could not be had.
    """
    with _width():
        helps = [(part.prog, part.format_help().rstrip()) for part in _all(parser()) if part.add_help]
    told, errors = run.communicate(timeout=300)
    if run.returncode:
        raise RuntimeError(f"attn-zoo run --help failed with status {run.returncode}: {errors}")
    # The dials of every attention would be most of it, and stand on the attentions' pages.
    told = re.sub(r"^dials:\n(?:  .*\n)*", "dials:\n  ...\n", told.strip(), flags=re.MULTILINE)
    return render("command_line.md.j2", helps=[helps[0], ("attn-zoo run", told), *helps[1:]])


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
