"""Commands and their arguments; each hands over to the part of the zoo that does the work."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from attn_zoo.cli.experiments import EXPERIMENTS, describe


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``attn-zoo`` and return its exit status: 0 well, 1 a check or run failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["run"]:
            from attn_zoo.cli.run import run_command

            return run_command(arguments[1:])
        if arguments[:1] == ["tune"]:
            from attn_zoo.cli.tune import tune

            return tune(arguments[1:])
        parsed = _parser().parse_args(arguments)
        return int(parsed.handler(parsed))
    except BrokenPipeError:  # the reader, head say, has seen enough; what Python would still flush at its end must go somewhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, LookupError, OSError) as error:
        if isinstance(error, KeyError | IndexError):  # our own mistake; an UnknownNameError is neither
            raise
        if _comes_of_an_interrupt(error):
            return _say_interrupted(arguments)
        print(f"attn-zoo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _say_interrupted(arguments)


def _comes_of_an_interrupt(error: BaseException) -> bool:
    """Whether an interrupt lies behind an error: libraries wrap what reaches them in the middle of their own work."""
    behind = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (behind is not None and _comes_of_an_interrupt(behind))


def _say_interrupted(arguments: Sequence[str]) -> int:
    kept = "; what was recorded is kept, and the same command goes on from there" if arguments[:1] in (["run"], ["tune"]) else ""
    print(f"attn-zoo: interrupted{kept}", file=sys.stderr)
    return 130


def _parser() -> argparse.ArgumentParser:
    from attn_zoo.cli.analyze import add_to as add_analyze
    from attn_zoo.cli.diff import add_to as add_diff
    from attn_zoo.cli.export import add_to as add_export
    from attn_zoo.cli.leaderboard import add_to as add_leaderboard
    from attn_zoo.cli.new import add_to as add_new
    from attn_zoo.cli.recommend import add_to as add_recommend
    from attn_zoo.cli.records import add_to as add_records
    from attn_zoo.cli.show import add_to as add_show
    from attn_zoo.cli.transplant import add_to as add_transplant

    parser = argparse.ArgumentParser(
        prog="attn-zoo", description="Efficient attention, compared so that the table can be believed."
    )
    parser.add_argument("--version", action="version", version=f"attn-zoo {version('attn-zoo')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the zoo: attentions, tasks and plugins as tables")
    listing.add_argument("--task", metavar="NAME", help="all about one task: source, options, levels and how they differ")
    listing.set_defaults(handler=_list)

    commands.add_parser(
        "run", help="train and test: attn-zoo run attention=NAME task=NAME key=value ... (-m sweeps)", add_help=False
    )
    tuning = "search settings by validation, then train the best: attn-zoo tune attention=NAME,... task=NAME"
    commands.add_parser("tune", help=tuning, add_help=False)

    add_leaderboard(commands)
    add_show(commands)
    add_diff(commands)

    add_new(commands)
    check = commands.add_parser("check", help="the conformance kit on attentions and tasks")
    target = "a registered name, a class with a card, or a file that registers one"
    check.add_argument("targets", nargs="+", metavar="NAME | pkg.module:Class | FILE.py[:Class]", help=target)
    check.set_defaults(handler=_check)

    measure = commands.add_parser(
        "measure",
        help="time and memory: growth with length, the Linformer paper's Table 3, a public peer",
        description="An experiment on time and memory of layers, as a Markdown table and, with output=FILE, as JSON.",
        epilog=describe(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = f"experiment={next(iter(EXPERIMENTS))} unless said"
    measure.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"experiment=NAME and its keys ({default})")
    measure.set_defaults(handler=_measure)

    _add_data(commands.add_parser("data", help="data sets: which there are, fetching them, checking them"))
    add_records(commands)
    add_recommend(commands)

    add_analyze(commands)
    add_export(commands)
    add_transplant(commands)
    return parser


def _add_data(data: argparse.ArgumentParser) -> None:
    actions = data.add_subparsers(required=True, metavar="ACTION")
    for action, said, count in (
        ("list", "every data set that a task reads, and whether it is there", None),
        ("prepare", "fetch the named ones that can be fetched, and read them through", "+"),
        ("verify", "read data through, file by file; without names all that is there", "*"),
    ):
        parser = actions.add_parser(action, help=said)
        parser.add_argument("--root", default="", metavar="FOLDER", help="data folder (default: $ATTN_ZOO_DATA, else data)")
        if count:
            parser.add_argument("names", nargs=count, metavar="NAME")
        parser.set_defaults(handler=_data, action=action)


def _list(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.listing import describe_task, listing

    print(describe_task(parsed.task) if parsed.task else listing())
    return 0


def _data(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.data import data_list, data_prepare, data_verify

    if parsed.action == "list":
        return data_list(parsed.root)
    return (data_prepare if parsed.action == "prepare" else data_verify)(parsed.names, parsed.root)


def _check(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.check import check

    return check(parsed.targets)


def _measure(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.measure import measure

    return measure(parsed.overrides)
