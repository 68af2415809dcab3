"""``attn-zoo transplant``: replace the attention of a trained encoder, and measure how similar the result is to the original."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attn_zoo.checks import check_seed
from attn_zoo.cli.parsing import InLines, check_output, describe_keys, read_keys
from attn_zoo.cli.progress import Work
from attn_zoo.contract import UnknownNameError
from attn_zoo.contract.options import typed_options
from attn_zoo.plotting.theme import check_plot
from attn_zoo.process_state import flushed_denormals, flushes_denormals
from attn_zoo.records import describe_environment
from attn_zoo.registry import build_task, card, stated_options, task_card
from attn_zoo.result_files import read_transplant, write_json
from attn_zoo.rows import RowName, hyperparameters, option, read_rows, rows_of, split
from attn_zoo.terminal import FORMATS, show
from attn_zoo.transplant import Bench, Candidate, Material, Setting, Start, Teacher, Trial, check, gather, load_teacher
from attn_zoo.transplant.plot import plot_transplant
from attn_zoo.transplant.record import begin, earlier, joined, key_of
from attn_zoo.transplant.table import classification_table, transplant_table
from attn_zoo.transplant.texts import labelled


@dataclass(frozen=True)
class Keys(Setting):
    """Keys of the command ``attn-zoo transplant``. The keys ``attention``, ``init`` and ``seed`` may have several values."""

    attention: str = option("", "mechanisms, separated by commas: NAME or NAME[OPTION=VALUE,...]; OPTION=A|B makes a curve")
    init: list[str] = option(
        ["stretches"],
        "initialisation of Linformer's projections E and F: stretches, spectrum, pooling or random, or several of them",
    )
    seed: list[int] = option([1], "seed of random mechanisms and of the order of passages, or several seeds")
    train: list[str] = option([], "files or folders of training text, with equally many passages from each")
    test: list[str] = option([], "files or folders of test text (default for train and test: Python's language reference)")
    pairs: str | None = option(None, "file with test pairs: JSON lines with sentence1, sentence2 and label")
    classify: str = option("", "tasks to fine-tune each student on: sst2, mrpc, imdb, qnli, qqp; NAME or NAME[OPTION=VALUE,...]")
    format: str = option("terminal", "format of the table: terminal or github")
    output: str | None = option(None, "JSON file for the record; a command with the same settings adds to it")
    plot: str | None = option(None, "also draw the curves into this .svg or .png file")
    read: list[str] = option([], "show only the results in these record files, in one table")


_TEXTS = ("attention", "classify")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo transplant``."""
    parser.description = (
        "Replace the attention of a trained encoder (the teacher) of the library transformers. Distil each layer of the result "
        "(the student), and fine-tune it as a whole. Print for each stage how well similarities of texts agree with those of the "
        "teacher, and what attention costs."
    )
    parser.epilog = "\n".join(["keys:", *describe_keys(Keys)])
    parser.formatter_class = InLines
    parser.add_argument(
        "words", nargs="*", metavar="KEY=VALUE", help="one of the keys below; attention, init and seed may have several values: a,b"
    )
    parser.set_defaults(handler=lambda parsed: transplant_command(parsed.words))


@flushed_denormals()  # before PyTorch starts its threads, which inherit it
def transplant_command(words: Sequence[str]) -> int:
    """Replace the attention of a trained encoder, or read earlier results from files, as the KEY=VALUE words ask. Print a table of
    the results. After an interrupt, finished trials are in the file that ``output=`` names.

    Returns:
        The exit status: 1 if a student (an encoder with new attention) failed, otherwise 0.

    Raises:
        UnknownNameError: no such key, mechanism, option or initialisation.
        ValueError, OSError: an input is wrong.
    """
    names = [word.partition("=")[0] for word in words]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]}= must be given once; got it twice. Leave one of them out")
    given = read_keys("transplant", words, Keys, texts=_TEXTS)
    keys = Keys(**typed_options("transplant", Keys, given))
    for seed in keys.seed:
        check_seed(seed)
    starts, seeds = list(dict.fromkeys(map(_start, keys.init))), list(dict.fromkeys(keys.seed))
    if not (starts and seeds):
        raise ValueError("init= and seed= must have at least one value each; got []. Leave them out for the defaults")
    rows = rows_of(keys.attention, plain="students run the implementation auto", hybrids=True) if keys.attention else []
    if keys.format not in FORMATS:
        raise UnknownNameError("format", keys.format, FORMATS)
    if keys.plot is not None:
        check_plot(Path(keys.plot))
    if keys.read:
        if rows or keys.output is not None:
            raise ValueError(
                "attention= and output= must not be given with read=, because read= only shows existing records. Leave them out"
            )
        return _show(joined([read_transplant(Path(file), "read=") for file in keys.read]), keys)
    if not rows:
        raise ValueError("attention= must name the mechanism to transplant, but is missing. Choose one from attn-zoo list")
    return _work(keys, rows, starts, seeds)


def _start(text: str) -> Start:
    if text not in (known := [member.value for member in Start]):
        raise UnknownNameError("init", text, known)
    return Start(text)


def _work(keys: Keys, rows: Sequence[RowName], starts: Sequence[Start], seeds: Sequence[int]) -> int:
    setting = Setting(**{key.name: getattr(keys, key.name) for key in fields(Setting)})

    def stated(part: RowName) -> RowName:
        return replace(part, options=stated_options(card(part.attention), part.options))

    candidates = [
        Candidate(row.attention, row.changed(stated).options, curve, str(row))
        for row, curve in zip(rows, hyperparameters(rows), strict=True)
    ]
    output, pairs = (None if given is None else Path(given) for given in (keys.output, keys.pairs))
    if output is not None:
        check_output("output", output)
    named_tasks = _tasks(keys.classify)
    train, test = ([Path(text) for text in texts] for texts in (keys.train, keys.test))
    for path in [*train, *test, *([pairs] if pairs else [])]:
        if not path.exists():
            raise FileNotFoundError(f"the file or folder {path} does not exist. Name an existing text file or folder")
    teacher = load_teacher(setting.model, setting.length)
    takes = check(teacher, candidates, starts, setting, padded=pairs is not None or bool(keys.classify))
    trials = [
        Trial(candidate, how, seed)
        for candidate, taking in zip(candidates, takes, strict=True)
        for how in (starts if taking else [None])
        for seed in seeds
    ]
    tasks = [
        labelled(name, task.data_title, task.rows("train"), task.rows("test"), teacher.tokenizer, setting)
        for name, task in named_tasks
    ]
    material = gather(setting, teacher.tokenizer, train, test, pairs, tasks)
    environment = {**describe_environment("cpu"), "denormals_flushed": flushes_denormals()}
    found = begin(setting, teacher, material, environment)
    found = found if output is None else earlier(output, found)
    done = {key_of(point) for point in found["points"] if point["failed"] is None}
    if left := [trial for trial in trials if trial.key not in done]:
        again = {trial.key for trial in left}
        found["points"] = [point for point in found["points"] if key_of(point) not in again]
        try:
            _do(found, output, setting, teacher, material, left)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"results so far are in {output}" if output and found["points"] else "") from None
    return _show(found, keys)


def _tasks(text: str) -> list[tuple[str, Any]]:
    """Return the tasks of ``classify`` with their names."""
    tasks = []
    for row in [row for part in split(text) for row in read_rows(part)]:
        kind = task_card(row.attention)
        named = replace(row, options={name: value for name, value in row.options.items() if name not in kind.locations})
        tasks.append((str(named), build_task(row.attention, **typed_options(f"task {row.attention}", kind.options, row.options))))
        if not hasattr(tasks[-1][1], "rows"):
            raise ValueError(
                f"classify= must name tasks of labelled texts, such as sst2, mrpc, imdb, qnli or qqp; got {row.attention}"
            )
    if len({name for name, _ in tasks}) < len(tasks):
        raise ValueError(f"classify= must name each task once; got {text}")
    return tasks


def _do(
    found: dict[str, Any], output: Path | None, setting: Setting, teacher: Teacher, material: Material, left: Sequence[Trial]
) -> None:
    """Execute the trials that are left; add a point for each to ``found``, and write it to ``output`` after each."""
    found["complete"] = False
    before = len(found["points"])
    with Work("transplant", len(left)) as work:
        bench = Bench(setting, teacher, material, left, lambda line: work.update(len(found["points"]) - before, line))
        found["reference"] = bench.exam.teacher
        for at, point in enumerate(bench.points(), 1):
            found["points"].append(point)
            found["complete"] = at == len(left)
            if output is not None:
                write_json(output, found)


def _show(found: Mapping[str, Any], keys: Keys) -> int:
    """Plot and print a record. Return 1 if one of its students failed and the record was not only read, otherwise 0."""
    if keys.plot is not None:  # first, as a reader of the table, such as head, may close the pipe
        plot_transplant(found, Path(keys.plot))
    table = transplant_table(found, keys.format)
    if "tasks" in found["data"]:
        table += "\n\n" + classification_table(found, keys.format)
    show(table, keys.format)
    return int(not keys.read and any(point["failed"] for point in found["points"]))
