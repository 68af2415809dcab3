"""Commands and their arguments; each hands over to the part of the zoo that does the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from attn_zoo.cli.parsing import KEY_VALUE, Parser, add_plugin, refuse_other_form
from attn_zoo.escapes import terminal_lines
from attn_zoo.terminal import wrap


class Command(NamedTuple):
    """Command: its help, and the module of this folder with its ``add_arguments`` and its handler."""

    help: str
    module: str
    needs: tuple[str, str] = ("", "")
    """Package that the command requires, and the extra that installs it."""

    @property
    def said(self) -> str:
        """Help, with the extra where its package is missing."""
        package, extra = self.needs
        return self.help if not package or find_spec(package) else f"{self.help} (needs: pip install 'attn-zoo[{extra}]')"


COMMANDS = {
    "list": Command("the zoo: attentions, tasks and plugins as tables", "listing"),
    "run": Command("train and test: attn-zoo run attention=NAME task=NAME key=value ... (-m sweeps)", "run"),
    "compare": Command("my attention beside the quickstart's rows, which are not trained again: checks and rank", "compare"),
    "tune": Command("search settings by validation, then train the best: attn-zoo tune attention=NAME,... task=NAME", "tune"),
    "leaderboard": Command("tables of what is recorded: scores, ranks, costs, equal budgets", "leaderboard"),
    "findings": Command("what the records say, in sentences: good at, bad at, cost; what to take for five needs", "findings"),
    "show": Command("one row: status, score, seeds, data, code, machine, the command that does it again", "show"),
    "diff": Command("compare two folders of records; fails where B is worse beyond noise", "diff"),
    "new": Command("write an installable package with an attention, or a task, of your own", "new"),
    "check": Command("the conformance kit on attentions and tasks", "check"),
    "measure": Command("time and memory: growth with length, crossovers, the Linformer paper's Table 3, public peers", "measure"),
    "data": Command("data sets: which there are, fetching them, checking them", "data"),
    "records": Command("a folder of records: whether it can be believed, and whether runs come out the same again", "records"),
    "recommend": Command("which attention to take for a length, device and needs, with evidence and doubt", "recommend"),
    "analyze": Command(
        "look inside: how low-rank attention is, how far mechanisms are from softmax, what matrix they form", "analyze"
    ),
    "export": Command(
        "a layer as ONNX or torch.export file, compared with eager; --all: what can be exported", "export", ("onnx", "export")
    ),
    "gpu": Command("all that only a GPU can tell, in one call of ten minutes: kit, times, Linformer's kernels, Table 3", "gpu"),
    "transplant": Command(
        "another attention in a trained encoder: swap, distil, fine-tune, and what is kept",
        "transplant",
        ("transformers", "minilm"),
    ),
}
"""Commands by name, in the order of the help."""
_READ_BY_HYDRA = ("run", "tune")
"""Commands whose words Hydra parses."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``attn-zoo`` and return its exit status: 0 well, 1 a check or run failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        refuse_other_form("".join(arguments[:1]), arguments[1:])
        if arguments[:1] and arguments[0] in KEY_VALUE:
            _load([word.partition("=")[2] for word in arguments if word.startswith("plugin=")])
            arguments = [word for word in arguments if not word.startswith("plugin=")]
        if arguments[:1] == ["run"]:
            from attn_zoo.cli.run import run_command

            return run_command(arguments[1:])
        if arguments[:1] == ["tune"]:
            from attn_zoo.cli.tune import tune

            return tune(arguments[1:])
        parsed = parser(arguments[0] if arguments else "").parse_args(arguments)
        _load(getattr(parsed, "plugin", None) or [])
        return int(parsed.handler(parsed))
    except BrokenPipeError:  # the reader, head say, has seen enough; what Python would still flush at its end must go somewhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, LookupError, OSError) as error:
        if isinstance(error, KeyError | IndexError):  # our own mistake; an UnknownNameError is neither
            raise
        if _comes_of_an_interrupt(error):
            return _say_interrupted(arguments)
        said = terminal_lines(f"attn-zoo: {error}")
        print(wrap(said) if sys.stderr.isatty() else said, file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        return _say_interrupted(arguments, str(stop))


def _load(paths: Sequence[str]) -> None:
    """Load plugins that are files or folders."""
    if paths:
        from attn_zoo.registry import load_plugin  # here, as it needs torch

        for path in paths:
            load_plugin(Path(path))


def _comes_of_an_interrupt(error: BaseException) -> bool:
    """Tell whether an interrupt lies behind an error: libraries wrap what reaches them in the middle of their own work."""
    behind = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (behind is not None and _comes_of_an_interrupt(behind))


def _say_interrupted(arguments: Sequence[str], kept: str = "") -> int:
    if arguments[:1] in (["run"], ["tune"]):
        kept = "what was recorded is kept"
    print(f"attn-zoo: interrupted{f'; {kept}, and the same command goes on from there' if kept else ''}", file=sys.stderr)
    return 130


def parser(asked: str | None = None) -> Parser:
    """Parser of a command line.

    Args:
        asked: the command that it holds. The others are then only named, as their modules may take seconds to import.
    """
    made = Parser(prog="attn-zoo", description="Efficient attention, compared so that the table can be believed.")
    made.add_argument("--version", action="version", version=f"attn-zoo {version('attn-zoo')}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        below = commands.add_parser(name, help=command.said, add_help=name not in _READ_BY_HYDRA)
        if name not in _READ_BY_HYDRA and asked in (None, name):
            import_module(f"attn_zoo.cli.{command.module}").add_arguments(below)
            if name not in KEY_VALUE:
                add_plugin(below)
    return made
