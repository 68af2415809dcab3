"""The commands of ``attn-zoo`` and their arguments."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attn_zoo.cli.main import comes_of_an_interrupt, say_interrupted
from attn_zoo.cli.parsing import KEY_VALUE, Parser, add_plugin
from attn_zoo.escapes import terminal
from attn_zoo.terminal import wrap

COMMANDS = {
    "list": "list mechanisms, tasks and plugins as tables",
    "run": "train and test mechanisms on tasks: attn-zoo run attention=NAME task=NAME [KEY=VALUE ...]",
    "compare": "train and check your mechanism, and compare it with the recorded results of the quickstart",
    "tune": "search the best settings, then train with them: attn-zoo tune attention=NAME,... task=NAME",
    "leaderboard": "print tables of recorded runs: scores, verdicts, costs, scores at equal budgets",
    "show": "print one configuration or run: score, seeds, data, machine, the command that repeats it",
    "diff": "compare two folders of records, A and B, and fail if B is significantly worse",
    "new": "write an installable package with a mechanism or a task of your own",
    "check": "run the conformance tests on mechanisms and tasks",
    "measure": "measure time and memory: growth with length, crossovers with softmax, largest batches, whole models",
    "data": "list data sets, fetch them and check their files",
    "records": "check, pack or unpack a folder of records, or repeat some of its runs and compare scores",
    "submit": "check your records, and write a pull request that adds them to the results of the community",
    "recommend": "recommend a mechanism for a length, a device and other requirements, with the evidence",
    "analyze": "analyze attention: singular values, errors of approximations, effective matrices, projections",
    "transplant": "replace the attention of a trained encoder: swap, distil, fine-tune, and measure the similarity to the "
    "original; needs pip install 'attn-zoo[minilm]'",
}
"""Help text of each command, in the order of the help. The module of this folder with the name of the command, or ``listing``,
implements it."""
_PYTHONS = warnings.showwarning
_READ_BY_HYDRA = ("run", "tune")
"""Commands whose modules have a function ``run_command``, which parses the words of the command line with Hydra."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv``, by default the arguments of the process. Return its exit status (see ``main``)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    asked = arguments[0] if arguments else ""
    warnings.showwarning = _shown  # type: ignore[assignment]
    kept = "recorded runs are kept" if asked in _READ_BY_HYDRA else ""
    try:
        if asked in KEY_VALUE:
            from attn_zoo.cli.words import as_keys  # here, as it needs torch

            arguments = [asked, *as_keys(arguments[1:])]
            _load([word.partition("=")[2] for word in arguments if word.startswith("plugin=")])
            arguments = [word for word in arguments if not word.startswith("plugin=")]
        if asked in _READ_BY_HYDRA:
            return int(_module(asked).run_command(arguments[1:]))
        parsed = parser(asked).parse_args(arguments)
        parsed.command = arguments
        _load(getattr(parsed, "plugin", None) or [])
        return int(parsed.handler(parsed))
    except BrokenPipeError:  # the reader, such as head, has closed the pipe; Python still flushes stdout when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, LookupError, OSError) as error:
        if isinstance(error, KeyError | IndexError):  # a bug of the zoo; an UnknownNameError is neither
            raise
        if comes_of_an_interrupt(error):
            return say_interrupted(kept)
        _say(error)
        return 2
    except KeyboardInterrupt as stop:
        return say_interrupted(kept or str(stop))


def _module(name: str) -> Any:
    return import_module(f"attn_zoo.cli.{'listing' if name == 'list' else name}")


def _shown(message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning of a plugin as a line of the command, and other warnings as Python does."""
    if category.__name__ == "PluginWarning":
        _say(message)
    else:
        _PYTHONS(message, category, *place)


def _say(words: object) -> None:
    """Print an error or a warning of the command. On a terminal, its lines fit the width."""
    said = terminal(f"attn-zoo: {words}")
    print(wrap(said) if sys.stderr.isatty() else said, file=sys.stderr)


def _load(paths: Sequence[str]) -> None:
    """Load plugins that are files or folders."""
    if paths:
        from attn_zoo.registry import load_plugin  # here, as it needs torch

        for path in paths:
            load_plugin(Path(path))


def parser(asked: str | None = None) -> Parser:
    """Return the parser of the command line.

    Args:
        asked: name of the command whose arguments are parsed. Only the module of this command is imported, because imports may take
            seconds. None adds the arguments of all commands.
    """
    made = Parser(prog="attn-zoo", description="Compare efficient attention mechanisms fairly.")
    made.add_argument("--version", action="version", version=f"attn-zoo {version('attn-zoo')}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for name, words in COMMANDS.items():
        below = commands.add_parser(name, help=words, add_help=name not in _READ_BY_HYDRA)
        if name not in _READ_BY_HYDRA and asked in (None, name):
            _module(name).add_arguments(below)
            if name not in KEY_VALUE:
                add_plugin(below)
    return made
