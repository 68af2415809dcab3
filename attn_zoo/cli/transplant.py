"""``attn-zoo transplant``: give a trained encoder another attention, and see what of it is kept at each stage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attn_zoo.cli.analyze.choices import choices_of
from attn_zoo.cli.run import explain
from attn_zoo.contract import UnknownNameError
from attn_zoo.records import describe_environment
from attn_zoo.transplant import Bench, Candidate, Material, Setting, Start, Teacher, Trial, check, gather, load_teacher
from attn_zoo.transplant.plot import check_plot, plot_transplant
from attn_zoo.transplant.record import begin, earlier, joined, read_record, write_record
from attn_zoo.transplant.table import transplant_table
from attn_zoo.transplant.training import Trains

E = TypeVar("E", bound=Enum)

_STYLES = {"terminal": "simple", "github": "github"}


def _help(words: str) -> dict[str, str]:
    return {"help": words}


@dataclass
class Keys:
    """What the command can be told beside mechanisms and their options."""

    model: str = field(default="minilm", metadata=_help("minilm, or a folder of transformers with an encoder of text"))
    weights: str = field(default="auto", metadata=_help("auto fetches none; pretrained may, from the hub; random"))
    length: int = field(default=256, metadata=_help("tokens of a passage"))
    train: list[str] = field(default_factory=list, metadata=_help("text to learn from, files or folders, as many passages of each"))
    test: list[str] = field(default_factory=list, metadata=_help("text to test on (default of both: Python's language reference)"))
    pairs: str | None = field(default=None, metadata=_help("pairs to test on: JSON lines with sentence1, sentence2, perhaps label"))
    passages: int = field(default=384, metadata=_help("passages to learn from"))
    tests: int = field(default=128, metadata=_help("passages to test on, two by two from one place"))
    pair_count: int = field(default=256, metadata=_help("pairs to test on"))
    short: float = field(default=0.25, metadata=_help("share of the passages to learn from that are cut short and padded"))
    init: str = field(default="stretches", metadata=_help("of E and F: stretches, spectrum, pooling or random; may be swept"))
    trains: str = field(default="attention", metadata=_help("what distillation trains: attention, or mechanism only"))
    distil_steps: int = field(default=120, metadata=_help("of every layer on the teacher's inputs"))
    tune_steps: int = field(default=48, metadata=_help("of the whole on the teacher's embeddings"))
    batch: int = field(default=8, metadata=_help("passages of a step"))
    distil_rate: float = field(default=1e-3, metadata=_help("peak learning rate of distillation"))
    tune_rate: float = field(default=3e-5, metadata=_help("peak learning rate of fine-tuning"))
    mechanism_factor: float = field(default=5.0, metadata=_help("rate of a mechanism's own parameters over these"))
    seed: int = field(default=1, metadata=_help("of what mechanisms draw and of the order of passages; may be swept"))
    format: str = field(default="terminal", metadata=_help("terminal or github"))
    output: str | None = field(default=None, metadata=_help("JSON file for the record, to which the same setting adds"))
    plot: str | None = field(default=None, metadata=_help("also draw the curves, into a file .svg or .png"))
    read: list[str] = field(default_factory=list, metadata=_help("only show these records, together"))


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.description = (
        "Replace the attention of a trained encoder of transformers, distil it by layer, fine-tune the whole, and "
        "print how well the teacher's similarities of real text are kept at each stage, against what attention costs."
    )
    parser.epilog = _describe()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="keys; mechanisms, options, init and seed may be swept: a,b")
    parser.set_defaults(handler=transplant_command)


def _describe() -> str:
    lines = [
        "attention=NAME               the mechanism; NAME,NAME for several",
        "attention.OPTION=V           an option of the one mechanism; V,V sweeps it",
        "dials.NAME.OPTION=V          an option of one of several",
    ]
    defaults = Keys()
    for key in fields(Keys):
        value = getattr(defaults, key.name)
        lines.append(f"{key.name:28} {key.metadata['help']}" + ("" if value in (None, []) else f" ({value})"))
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
        if asked.names or keys.output is not None:
            raise ValueError("read shows records as they are; leave attention and output away")
        _show(joined([read_record(Path(file)) for file in keys.read]), keys.format, plot)
        return 0
    if not asked.names:
        raise ValueError("attention=NAME says which mechanism is transplanted; attn-zoo list shows them")
    return _work(asked, plot)


@dataclass(frozen=True)
class Asked:
    """The words, read."""

    keys: Keys
    names: list[str]
    settings: list[str]
    """``NAME.OPTION=VALUE``."""
    dials: list[str]
    """``NAME.OPTION=V1,V2``."""
    starts: list[str]
    seeds: list[int]


def read_words(words: Sequence[str]) -> Asked:
    """Take the words apart.

    Raises:
        UnknownNameError: no such key.
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
    names = [name.strip() for name in given.pop("attention", "").split(",") if name.strip()]
    options = {key: given.pop(key) for key in list(given) if key.startswith(("attention.", "dials."))}
    texts = [f"{_owner(key, names)}={value}" for key, value in options.items()]
    starts = given.pop("init", Keys.init).split(",")
    seeds = [_seed(text) for text in given.pop("seed", str(Keys.seed)).split(",")]
    if len(set(starts)) < len(starts) or len(set(seeds)) < len(seeds):
        raise ValueError("init and seed take different values with commas between them")
    return Asked(
        keys=_typed(given),
        names=names,
        settings=[text for text in texts if "," not in text],
        dials=[text for text in texts if "," in text],
        starts=starts,
        seeds=seeds,
    )


def _owner(key: str, names: Sequence[str]) -> str:
    """``NAME.OPTION`` for ``attention.OPTION`` or ``dials.NAME.OPTION``."""
    group, _, rest = key.partition(".")
    if group == "dials":
        return rest
    if len(names) != 1:
        raise ValueError(f"{key} is an option of one attention, and {len(names)} are named; write dials.NAME.{rest} for each")
    return f"{names[0]}.{rest}"


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
                raise ValueError(f"options, init and seed are swept, {override.key_or_group} is not; got {override.input_line!r}")
        values = {override.key_or_group: override.value() for override in overrides}
        keys = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Keys), values))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error)) from error
    assert isinstance(keys, Keys)
    return keys


def _work(asked: Asked, plot: Path | None) -> int:
    keys = asked.keys
    starts = [_named(Start, "init", text) for text in asked.starts]
    setting = Setting(**_shared(keys), trains=_named(Trains, "trains", keys.trains))
    choices = choices_of(asked.names, asked.settings, asked.dials)
    candidates = [Candidate(c.attention, c.options, c.dial, c.label) for c in choices]
    output, pairs = _path(keys.output), _path(keys.pairs)
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise ValueError(f"output must be a file in a folder that exists; got {keys.output!r}")
    train, test = ([Path(text) for text in texts] for texts in (keys.train, keys.test))
    for path in [*train, *test, *([] if pairs is None else [pairs])]:
        if not path.exists():
            raise FileNotFoundError(f"no text at {path}: it is neither a file nor a folder")
    teacher = load_teacher(setting.model, setting.length, weights=setting.weights)
    takes = check(teacher, candidates, starts, setting, pairs is not None)
    trials = [
        Trial(candidate, how, seed)
        for candidate, taking in zip(candidates, takes, strict=True)
        for how in (starts if taking else [None])
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
    bench = Bench(setting, teacher, material, left, _tell)
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


def _shared(keys: Keys) -> dict[str, Any]:
    """What the keys and the setting call alike."""
    names = {field.name for field in fields(Setting)} - {"trains"}
    return {name: getattr(keys, name) for name in names}


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)


def _named(kind: type[E], what: str, value: str) -> E:
    if value not in (known := [member.value for member in kind]):
        raise UnknownNameError(what, value, known)
    return kind(value)


def _tell(line: str) -> None:
    print(f"attn-zoo: {line}", file=sys.stderr, flush=True)
