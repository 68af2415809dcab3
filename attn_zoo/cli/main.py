"""Commands and their arguments; each hands over to the part of the zoo that does the work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from attn_zoo.contract import UnknownNameError


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``attn-zoo`` and return its exit status: 0 well, 1 a check or run failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["run"]:
            from attn_zoo.cli.run import run_command

            return run_command(arguments[1:])
        parsed = _parser().parse_args(arguments)
        return int(parsed.handler(parsed))
    except (ValueError, UnknownNameError, OSError) as error:
        print(f"attn-zoo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("attn-zoo: interrupted; what was recorded is kept, and the same command goes on from there", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attn-zoo", description="Efficient attention, compared so that the table can be believed."
    )
    parser.add_argument("--version", action="version", version=f"attn-zoo {version('attn-zoo')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the zoo: attentions, tasks and plugins as tables")
    listing.set_defaults(handler=_list)

    commands.add_parser(
        "run", help="train and test: attn-zoo run attention=NAME task=NAME key=value ... (-m sweeps)", add_help=False
    )

    board = commands.add_parser("leaderboard", help="tables of what is recorded")
    board.add_argument("--records", default="runs", help="folder of records (default: runs)")
    board.add_argument("--task", help="only this task")
    board.add_argument("--attention", help="only this attention")
    board.add_argument("--format", default="terminal", choices=("terminal", "github", "csv", "json", "latex"))
    board.set_defaults(handler=_leaderboard)

    check = commands.add_parser("check", help="the conformance kit on an attention or a task")
    check.add_argument("target", metavar="NAME | pkg.module:Class", help="a registered name, or a class with a card")
    check.set_defaults(handler=_check)

    measure = commands.add_parser("measure", help="time and memory over lengths, with the exponent of their growth")
    five = "softmax,linformer,performer,longformer,reformer"
    measure.add_argument("--attention", default=five, help=f"names, or NAME:IMPLEMENTATION, separated by commas (default: {five})")
    measure.add_argument(
        "--set", action="append", metavar="ATTENTION.OPTION=VALUE", help="an option of one of them; may be repeated"
    )
    measure.add_argument("--lengths", default="2048,4096,8192,16384", help="lengths, separated by commas")
    measure.add_argument("--dim", type=int, default=256, help="width of the layer (default: 256)")
    measure.add_argument("--heads", type=int, default=4, help="heads (default: 4)")
    measure.add_argument("--rounds", type=int, default=5, help="interleaved rounds of timing (default: 5)")
    measure.add_argument("--output", help="also write the figures to this JSON file")
    measure.set_defaults(handler=_measure)
    return parser


def _list(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.listing import listing

    print(listing())
    return 0


def _leaderboard(parsed: argparse.Namespace) -> int:
    from attn_zoo.leaderboard import leaderboard

    print(leaderboard(parsed.records, format=parsed.format, task=parsed.task, attention=parsed.attention))
    return 0


def _check(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.check import check

    return check(parsed.target)


def _measure(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.measure import measure

    return measure(parsed)
