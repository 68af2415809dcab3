"""``attn-zoo measure``: run an experiment that measures time and memory, print its table, and write the measured values as JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from attn_zoo.bench.experiment import Experiment
from attn_zoo.bench.experiments import EXPERIMENTS
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.session import Session
from attn_zoo.cli.parsing import InLines, check_output, describe_keys, read_keys
from attn_zoo.cli.progress import Work
from attn_zoo.contract import UnknownNameError
from attn_zoo.contract.options import typed_options
from attn_zoo.records import describe_environment
from attn_zoo.result_files import read_results
from attn_zoo.terminal import show, wrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo measure``."""
    parser.description = (
        "Measure time and memory of mechanisms, layers or models. Print a Markdown table and, with output=FILE, also write JSON."
    )
    parser.epilog = describe(EXPERIMENTS)
    parser.formatter_class = InLines
    default = f"default: experiment={next(iter(EXPERIMENTS))}"
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help=f"an experiment and its keys, which are listed below ({default})"
    )
    parser.set_defaults(handler=lambda parsed: measure(parsed.overrides))


def describe(experiments: Mapping[str, type[Experiment]]) -> str:
    """Return the text that ``--help`` prints: a description of every experiment and of its keys."""
    parts = ["Keys and values are written as for attn-zoo run. The values of a list are separated by commas: KEY=a,b.", ""]
    for name, kind in experiments.items():
        paragraphs = [" ".join(part.split()) for part in (kind.__doc__ or "").replace("``", "").split("\n\n")]
        parts += [f"experiment={name}", *(f"  {paragraph}" for paragraph in paragraphs), *describe_keys(kind), ""]
    return "\n".join(parts)


def run_experiment(name: str, kind: type[Experiment], words: Sequence[str]) -> int:
    """Run one experiment and return the exit status, which is 2 for bad input. Programs in ``benchmarks`` call this function.

    Args:
        words: KEY=VALUE words as for ``attn-zoo measure``, or ``--help``.
    """
    if "--help" in words:
        print(wrap(describe({name: kind})))
        return 0
    try:
        return measure([*words, f"experiment={name}"], {name: kind})
    except (ValueError, UnknownNameError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def measure(words: Sequence[str], experiments: Mapping[str, type[Experiment]] = EXPERIMENTS) -> int:
    """Run the experiment that the words select, print its table, and write the measured values to the file ``output`` if it is
    given.

    If this file contains an unfinished measurement with the same settings, the command continues it. It also measures the cases
    that an earlier command left out because of a time limit. A file with anything else is never overwritten.

    Returns:
        0. Failed cells do not change the exit status.

    Raises:
        UnknownNameError: no such experiment, key, mechanism or option.
        ValueError: a value is wrong, or something that the experiment needs is missing.
    """
    started = time.monotonic()
    name, given = compose(words, experiments)
    experiment = experiments[name](**given)
    output = None if experiment.output is None else Path(experiment.output)
    if experiment.read is None:
        limits = {key: getattr(experiment, key) for key in ("seconds", "time_limit") if hasattr(experiment, key)}
        settings, environment = {**experiment.identity(), **limits}, describe_environment(getattr(experiment, "device", "cpu"))
        found = Measurement(name, settings, experiment.protocol, environment, experiment.facts())
        if output is not None:
            _resume(experiment, found, output)
            check_output("output", output)
        ends = started + (getattr(experiment, "seconds", None) or math.inf)
        _run(experiment, found, output, ends, longest_first="lengths" in given)
    elif output is None:
        found = _read(Path(experiment.read), name)
    else:
        raise ValueError("read= and output= cannot be given together, because read= measures nothing. Leave one of them out")
    show(experiment.report(found, "terminal" if sys.stdout.isatty() else "github"))
    experiment.draw(found)
    return 0


def _read(file: Path, experiment: str) -> Measurement:
    """Return the measurement that a file holds.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no measurement of this experiment, or a damaged one.
    """
    held = read_results(file, experiment, "read")
    try:
        return Measurement.from_dict(held)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} must be a complete measurement, but is not ({type(error).__name__}: {error}). Measure again"
        ) from error


def _run(experiment: Experiment, found: Measurement, output: Path | None, ends: float, *, longest_first: bool) -> None:
    def save(found: Measurement) -> None:
        if output is not None:
            found.write(output)

    rounds = 0 if experiment.protocol is None else experiment.protocol.rounds
    try:
        with Work(found.experiment, sum(len(cells) + rounds for cells in experiment.groups())) as work:
            tell = partial(work.update, None)
            session = Session(experiment, found, save=save, tell=tell, ends=ends, longest_first=longest_first)
            if ends < math.inf:
                print(f"attn-zoo: {session.forecast()}", file=sys.stderr, flush=True)
            session.run()
    except KeyboardInterrupt:
        for child in psutil.Process().children():  # the fork server ignores interrupts, and keeps pipes open while it imports
            with suppress(psutil.Error):
                if any("multiprocessing.forkserver" in word for word in child.cmdline()):
                    child.kill()
        raise KeyboardInterrupt(f"results so far are in {output}" if output and found.cells else "") from None
    found.complete = True
    save(found)


def compose(words: Sequence[str], experiments: Mapping[str, type[Experiment]] = EXPERIMENTS) -> tuple[str, dict[str, Any]]:
    """Return the name of the experiment that the words select, and the values that the words give to its keys.

    Raises:
        UnknownNameError: no such experiment or key.
        ValueError: a word is not of the form KEY=VALUE, or a value has the wrong type.
    """
    name = next((word.partition("=")[2] for word in reversed(words) if word.startswith("experiment=")), next(iter(experiments)))
    if name not in experiments:
        raise UnknownNameError("experiment", name, experiments)
    kind, owner = experiments[name], f"experiment={name}"
    given = read_keys("measure", words, kind, more=["experiment"], owner=owner)
    given.pop("experiment", None)
    return name, typed_options(owner, kind, given)


def _resume(experiment: Experiment, found: Measurement, output: Path) -> None:
    """Take over the values of the measurement that ``output`` holds, if it is unfinished and has the same settings, code and kind
    of machine.

    Raises:
        ValueError: the file holds anything else, which would be lost.
    """
    if not output.is_file() or not output.stat().st_size:
        return
    held = "something else"
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        earlier = Measurement.from_dict(json.loads(output.read_text(encoding="utf-8")))
        same = _identity(experiment, earlier) == _identity(experiment, found)
        if same and not earlier.finished:
            found.take_over(earlier)
            rows = sum(1 for _ in found.rows())
            print(f"{output} holds {rows} rows of this measurement; going on from there", file=sys.stderr, flush=True)
            return
        held = "this measurement, which is finished" if same else "a measurement with other settings, code or machine"
    raise ValueError(
        f"output must be a new file or an unfinished file of this measurement, but {str(output)!r} holds {held}. Name another "
        "file, or delete this one"
    )


def _identity(experiment: Experiment, found: Measurement) -> str:
    names = ("cpu", "cores", "threads", "gpu", "torch", "commit", "plugins")
    machine = {name: found.environment.get(name) for name in names}
    settings = {name: found.settings.get(name) for name in experiment.identity()}
    protocol = found.protocol and found.protocol.to_dict()
    return json.dumps([found.experiment, settings, protocol, found.facts, machine], sort_keys=True)
