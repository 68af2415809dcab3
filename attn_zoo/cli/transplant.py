"""``attn-zoo transplant``: give a trained encoder another attention, and see what of it is kept at each stage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from attn_zoo.cli.progress import Work
from attn_zoo.contract import UnknownNameError
from attn_zoo.plotting.theme import check_plot
from attn_zoo.records import describe_environment
from attn_zoo.registry import card, stated_options
from attn_zoo.rows import RowName, hyperparameters, rows_of, typed_options
from attn_zoo.transplant import Bench, Candidate, Material, Setting, Start, Teacher, Trial, check, gather, load_teacher
from attn_zoo.transplant.plot import plot_transplant
from attn_zoo.transplant.record import begin, earlier, joined, read_record, write_record
from attn_zoo.transplant.table import transplant_table

_STYLES = {"terminal": "simple", "github": "github"}


def _help(words: str) -> dict[str, str]:
    return {"help": words}


@dataclass(frozen=True)
class Keys(Setting):
    """What the command can be told beside rows: the setting, where data and results lie, and what is swept."""

    train: list[str] = field(default_factory=list, metadata=_help("text to learn from, files or folders, as many passages of each"))
    test: list[str] = field(default_factory=list, metadata=_help("text to test on (default of both: Python's language reference)"))
    pairs: str | None = field(default=None, metadata=_help("pairs to test on: JSON lines with sentence1, sentence2, perhaps label"))
    init: str = field(default="stretches", metadata=_help("of E and F: stretches, spectrum, pooling or random; may be swept"))
    seed: int = field(default=1, metadata=_help("of what mechanisms draw and of the order of passages; may be swept"))
    format: str = field(default="terminal", metadata=_help("terminal or github"))
    output: str | None = field(default=None, metadata=_help("JSON file for the record, to which the same setting adds"))
    plot: str | None = field(default=None, metadata=_help("also draw the curves, into a file .svg or .png"))
    read: list[str] = field(default_factory=list, metadata=_help("only show these records, together"))


_DEFAULTS = Keys()


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.description = (
        "Replace the attention of a trained encoder of transformers, distil it by layer, fine-tune the whole, and "
        "print how well the teacher's similarities of real text are kept at each stage, against what attention costs."
    )
    parser.epilog = _describe()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="keys; attention, init and seed take several: a,b")
    parser.set_defaults(handler=transplant_command)


def _describe() -> str:
    lines = ["attention=ROW,ROW            NAME or NAME[OPTION=VALUE,...]; OPTION=A|B is a row with each value, which make a curve"]
    for key in fields(Keys):
        value = getattr(_DEFAULTS, key.name)
        shown = "" if value in (None, []) else f" ({getattr(value, 'value', value)})"
        lines.append(f"{key.name:28} {key.metadata['help']}{shown}")
    return "keys:\n" + "\n".join(f"  {line}" for line in lines)


def transplant_command(parsed: argparse.Namespace) -> int:
    """Do what the words ask for; print the table.

    Returns:
        0; 1 where a student failed; 130 where it was interrupted, and then what was done is in the output.

    Raises:
        UnknownNameError: no such key, attention, option or start.
        ValueError, OSError: bad input, said before the work.
    """
    asked = read_words(parsed.words)
    keys = asked.keys
    if keys.format not in _STYLES:
        raise UnknownNameError("format", keys.format, _STYLES)
    plot = None if keys.plot is None else Path(keys.plot)
    if plot is not None:
        check_plot(plot)
    if keys.read:
        if asked.rows or keys.output is not None:
            raise ValueError("read shows records as they are; leave attention and output away")
        _show(joined([read_record(Path(file)) for file in keys.read]), keys.format, plot)
        return 0
    if not asked.rows:
        raise ValueError("attention=NAME says which mechanism is transplanted; attn-zoo list shows them")
    return _work(asked, plot)


@dataclass(frozen=True)
class Asked:
    """The words, read."""

    keys: Keys
    rows: list[RowName]
    starts: list[Start]
    seeds: list[int]


def read_words(words: Sequence[str]) -> Asked:
    """Take the words apart.

    Raises:
        UnknownNameError: no such key, attention, option or start.
        ValueError: a word is no KEY=VALUE, something is said twice, or a value has the wrong type.
    """
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key and value):
            raise ValueError(f"transplant takes KEY=VALUE; got {word!r}")
        if key in given:
            raise ValueError(f"{key} is given twice")
        given[key] = value
    attention = given.pop("attention", None)
    starts = [_start(text) for text in given.pop("init", _DEFAULTS.init).split(",")]
    seeds = [_seed(text) for text in given.pop("seed", str(_DEFAULTS.seed)).split(",")]
    if len(set(starts)) < len(starts) or len(set(seeds)) < len(seeds):
        raise ValueError("init and seed take different values with commas between them")
    keys = _typed(given)
    return Asked(keys, [] if attention is None else rows_of(attention, plain="a student's mechanisms take auto"), starts, seeds)


def _start(text: str) -> Start:
    if text not in (known := [member.value for member in Start]):
        raise UnknownNameError("init", text, known)
    return Start(text)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"seed is whole numbers from 0, commas between them; got {text!r}")
    return int(text)


def _typed(given: Mapping[str, str]) -> Keys:
    known = ["attention", *(key.name for key in fields(Keys))]
    for key in given:
        if key not in known:
            raise UnknownNameError("key of transplant", key, known)
    try:
        overrides = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in given.items()])
        for override in overrides:
            if override.is_sweep_override():
                raise ValueError(f"attention, init and seed are swept, {override.key_or_group} is not; got {override.input_line!r}")
        values = {override.key_or_group: override.value() for override in overrides}
    except HydraException as error:
        raise ValueError(str(error)) from error
    return Keys(**typed_options("transplant", Keys, values))


def _work(asked: Asked, plot: Path | None) -> int:
    keys = asked.keys
    setting = Setting(**{key.name: getattr(keys, key.name) for key in fields(Setting)})
    curves = hyperparameters(asked.rows)
    candidates = [
        Candidate(row.attention, stated_options(card(row.attention), row.options), curve, str(row))
        for row, curve in zip(asked.rows, curves, strict=True)
    ]
    output, pairs = _path(keys.output), _path(keys.pairs)
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise ValueError(f"output must be a file in a folder that exists; got {keys.output!r}")
    train, test = ([Path(text) for text in texts] for texts in (keys.train, keys.test))
    for path in [*train, *test, *([] if pairs is None else [pairs])]:
        if not path.exists():
            raise FileNotFoundError(f"no text at {path}: it is neither a file nor a folder")
    teacher = load_teacher(setting.model, setting.length, weights=setting.weights)
    takes = check(teacher, candidates, asked.starts, setting, pairs is not None)
    trials = [
        Trial(candidate, how, seed)
        for candidate, taking in zip(candidates, takes, strict=True)
        for how in (asked.starts if taking else [None])
        for seed in asked.seeds
    ]
    material = gather(setting, teacher.tokenizer, train, test, pairs)
    found = begin(setting, teacher, material, describe_environment("cpu"))
    found = found if output is None else earlier(output, found)
    done = {(point["label"], point["init"], point["seed"]) for point in found["points"]}
    left = [trial for trial in trials if trial.key not in done]
    if left:
        try:
            _do(found, output, setting, teacher, material, left)
        except KeyboardInterrupt:
            kept = f"; what was done is in {output}, and the same command goes on from there" if output and found["points"] else ""
            print(f"attn-zoo: interrupted{kept}", file=sys.stderr)
            return 130
    _show(found, keys.format, plot)
    return 1 if any(point["failed"] for point in found["points"]) else 0


def _do(
    found: dict[str, Any], output: Path | None, setting: Setting, teacher: Teacher, material: Material, left: Sequence[Trial]
) -> None:
    """Add a point a trial to what was found, and write it after each."""
    found["complete"] = False
    before = len(found["points"])
    with Work("transplant", len(left)) as work:
        bench = Bench(setting, teacher, material, left, lambda line: work.update(len(found["points"]) - before, line))
        found["reference"] = asdict(bench.reference)
        for at, point in enumerate(bench.points(), 1):
            found["points"].append(point)
            found["complete"] = at == len(left)
            if output is not None:
                write_record(found, output)


def _show(found: Mapping[str, Any], format: str, plot: Path | None) -> None:
    if plot is not None:  # first, as a reader of the table, head say, may have seen enough
        plot_transplant(found, plot)
    print(transplant_table(found, _STYLES[format]))


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)
