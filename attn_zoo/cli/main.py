"""Entry point of ``attn-zoo``, and its commands. Functions import what they need, so an interrupt or a lack of memory always ends
with a one-line message."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes ten milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from attn_zoo.cli.parsing import Parser

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
_READ_BY_HYDRA = ("run", "tune")
"""Commands whose modules have a function ``run_command``, which parses the words of the command line with Hydra."""
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
        return _run(list(sys.argv[1:] if argv is None else argv))
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


def _run(arguments: list[str]) -> int:
    """Run the command that the arguments name. Return its exit status (see ``main``)."""
    import warnings

    from attn_zoo.cli.parsing import KEY_VALUE

    asked = arguments[0] if arguments else ""
    kept = "recorded runs are kept" if asked in _READ_BY_HYDRA else ""
    usual = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *place: Any) -> None:
        """Print a warning of a plugin as a line of the command, and other warnings as Python does."""
        if category.__name__ == "PluginWarning":
            _say(message)
        else:
            usual(message, category, *place)

    warnings.showwarning = shown  # type: ignore[assignment]
    try:
        if asked in KEY_VALUE:
            from attn_zoo.cli.words import as_keys

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
        import os

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
    from importlib import import_module

    return import_module(f"attn_zoo.cli.{'listing' if name == 'list' else name}")


def _say(words: object) -> None:
    """Print an error or a warning of the command. On a terminal, its lines fit the width."""
    from attn_zoo.escapes import terminal
    from attn_zoo.terminal import wrap

    said = terminal(f"attn-zoo: {words}")
    print(wrap(said) if sys.stderr.isatty() else said, file=sys.stderr)


def _load(paths: Sequence[str]) -> None:
    """Load plugins that are files or folders."""
    if paths:
        from pathlib import Path

        from attn_zoo.registry import load_plugin

        for path in paths:
            load_plugin(Path(path))


def parser(asked: str | None = None) -> Parser:
    """Return the parser of the command line.

    Args:
        asked: name of the command whose arguments are parsed. Only the module of this command is imported, because imports may take
            seconds. None adds the arguments of all commands.
    """
    from importlib.metadata import version

    from attn_zoo.cli.parsing import KEY_VALUE, Parser, add_plugin

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
