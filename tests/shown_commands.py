"""Commands in code blocks of README and docs, and small versions of them that end in seconds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from page_blocks import blocks

from attn_zoo.bench.experiments import EXPERIMENTS
from attn_zoo.cli.main import parser
from attn_zoo.cli.measure import compose
from attn_zoo.cli.run import plan
from attn_zoo.cli.tune import read_request
from attn_zoo.rows import rows_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WRITTEN = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in ("generated", "_build"))
"""Pages of the site that are written by hand, not generated."""
PAGES = (ROOT / "README.md", *WRITTEN, ROOT / "results" / "README.md")
_PROMPT = re.compile(r"\s*attn-zoo ")

RUN = {
    "level": "smoke",
    "seed": "1",
    "budget.steps": "3",
    "budget.evaluate_every": "3",
    "model.dim": "16",
    "model.heads": "2",
    "model.depth": "2",
    "records": "runs",
}
TUNE = {"trials": "2", "seeds": "1"}
ONE_WORKER = [
    ("run", "quickstart", None),
    ("run", "quickstart", "launch=joblib"),
    ("run", "quickstart", "launch=ray"),
    ("run", None, "launch=joblib"),
    ("run", None, "launch=submitit_local"),
    ("tune", None, "launch=joblib"),
]
"""Subcommand, experiment and launcher of commands that run with one worker; starting two takes seconds."""
ROWS = {"attention": "linear,none", "task": "listops", "task.train": "100", "task.valid": "50", "task.test": "50"}
"""Rows and task in place of those that an experiment lists; an experiment's own numbers of examples take seconds to generate."""
SHORT = {
    "attention": "linear,none",
    "task.train": "200",
    "task.valid": "50",
    "task.test": "50",
    "task.length": "64",
}
TIMED = {**SHORT, "task.tokens": "5"}
OF_MANY_PARTS = {
    "capacity": {**SHORT, "task.pairs": "8", "task.most_pairs": "8"},
    "length_beyond": {**SHORT, "task.longer": "2"},
}
"""Rows and sizes of experiments whose test has a part for each number of pairs or each length."""
FIGURE3 = {
    "sweeps": "[]",
    "attention": "softmax,none",
    "task.files": "folder",
    "task.path": "texts",
    "task.tokens": "bytes",
    "task.vocabulary": "0",
    "task.length": "32",
}
"""Two rows of Figure 3, on bytes of three short files."""
MEASURE: Mapping[str, str] = {
    "lengths": "[32,64]",
    "dim": "16",
    "heads": "2",
    "rounds": "6",
    "repeat_seconds": "0.01",
    "tokens": "64",
    "image": "64",
    "length": "64",
    "depth": "1",
}
"""Sizes of a measurement; an experiment takes those keys that it has."""
MEASURED = {"attention": "softmax,linear"}
"""Rows of a measurement whose command names none, if the experiment takes several."""
ANALYZE = {"--length": "32", "--sentences": "1"}
TRANSPLANT = {"length": "72", "passages": "16", "tests": "8", "pair_count": "8", "distil_steps": "2", "tune_steps": "2"}
PUBLISHED_TEXT = ("train", "test", "pairs", "classify")
"""Keys of transplant with files of published text; without them it reads Python's language reference."""


def shown_commands() -> dict[str, str]:
    """Every shown command, without comment and pipe, and the name of the first page that shows it."""
    found: dict[str, str] = {}
    for page in PAGES:
        for line in lines(page.read_text(encoding="utf-8")):
            found.setdefault(line, str(page.relative_to(ROOT)))
    return found


def lines(text: str) -> Iterator[str]:
    """Yield the commands of a page's blocks, without comment and pipe."""
    for block in blocks(text):
        if block.language in ("bash", "text"):
            for line in block.content.replace("\\\n", " ").splitlines():
                if _PROMPT.match(line):
                    words = shlex.split(line, comments=True)
                    yield shlex.join(words[: words.index("|")] if "|" in words else words)


def wrong_command(line: str) -> str | None:
    """Return why attn-zoo would reject a command; None if it accepts the command."""
    program, *words = shlex.split(line, comments=True)
    if program != "attn-zoo":
        return "is no command of the zoo"
    try:
        if words[0] == "run":
            plan(words[1:])
        elif words[0] == "tune":
            read_request(words[1:])
        elif words[0] == "measure":
            name, given = compose(words[1:])
            EXPERIMENTS[name](**given)
        else:
            parser(words[0]).parse_args(words)
    except (Exception, SystemExit) as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return None


def small(command: str) -> list[str]:
    """Words of a command, with overrides that make it end in seconds."""
    words = shlex.split(command)
    return ["attn-zoo", *_small(words[1:])]


def _small(words: list[str]) -> list[str]:
    name = words[0]
    if name in ("run", "tune"):
        experiment = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), None)
        if experiment == "linformer_theorem1":
            return _with(words, {**FIGURE3, **{key: RUN[key] for key in RUN if key != "level"}, "weights.after": "[0,3]"})
        if experiment == "equal_time":
            return _with(words, {**TIMED, **{key: RUN[key] for key in RUN if key not in ("level", "seed")}, **TUNE})
        if experiment == "length":
            return _with(words, {"sweeps": "[]", **TIMED, **{key: RUN[key] for key in RUN if key != "level"}})
        if experiment in ("capacity", "length_beyond"):
            sizes = {key: RUN[key] for key in RUN if key not in ("level", "seed")}
            return _with(words, {**OF_MANY_PARTS[experiment], **sizes, **TUNE})
        if experiment == "equal_time_half_hour":
            return _with(words, {**TIMED, **{key: RUN[key] for key in RUN if key != "level"}})
        if experiment is not None and experiment.startswith("linformer_figure3"):
            return _with(words, {**FIGURE3, **{key: RUN[key] for key in RUN if key != "level"}})
        if str(experiment).startswith("language_"):
            sizes = {key: RUN[key] for key in RUN if key not in ("level", "seed")}
            return _with(words, {**{key: FIGURE3[key] for key in FIGURE3 if key != "sweeps"}, **sizes, **TUNE})
        if experiment == "linformer_table2_pretrained":
            pretrained = {"task": "masked_language", "budget.pretrain_steps": "3"}
            return _with(words, {**FIGURE3, **pretrained, **{key: RUN[key] for key in RUN if key != "level"}})
        sizes = {key: value for key, value in RUN.items() if not (key.startswith("model.") and "model.backbone=" in "".join(words))}
        if "model.backbone=" in "".join(words):  # a ViT, which takes minutes for CIFAR-10's test images
            words = [word for word in words if not word.startswith("task.patch=")]
            sizes["task"] = "digits"
        if any(word.startswith("weights.after=") for word in words):
            sizes["weights.after"] = "[0,3]"
        if any("*" in word for word in words):  # a hybrid whose pattern is longer than two layers
            sizes["model.depth"] = "4"
        if any(word.startswith("attention.projected_lengths=") for word in words):  # one length for each of four heads
            sizes["model.heads"] = "4"
        launcher = next((word for word in words if word.startswith("launch=")), None)
        if (name, experiment, launcher) in ONE_WORKER:
            sizes["workers"] = "1"
        if name == "tune":
            del sizes["seed"]
            sizes |= TUNE
            if str(experiment).startswith("profile3"):  # its search decides how many trials there are
                del sizes["trials"]
        return _with(words, {**(ROWS if experiment else {}), **sizes})
    if name == "measure":
        keys = {f.name: str(f.type) for f in fields(EXPERIMENTS[compose(words[1:])[0]])}
        named = {word.partition("=")[0] for word in words}
        several = {key: value for key, value in MEASURED.items() if keys[key].startswith("list") and key not in named}
        return _with(words, {**several, **{key: value for key, value in MEASURE.items() if key in keys}})
    if name == "analyze":
        if words[1] == "projections":  # projections are fitted on one sequence and measured on another
            return [*words, "--length", "16", "--sentences", "2", "--k", "4"]
        rows = ["linear" if word == "ROWS" else word for word in words]
        fixed = ["--length"] if any(word.startswith("timm/") for word in words) else []  # the size of its images sets it
        fixed += ["--sentences"] * (words[1] == "matrix")
        return rows + [word for key, value in ANALYZE.items() if key not in fixed for word in (key, value)]
    if name == "transplant":
        kept = [_with_three_rows(word) for word in words if word.partition("=")[0] not in PUBLISHED_TEXT]
        length = "32" if "model=small-bert" in words else TRANSPLANT["length"]
        return _with(kept, {**TRANSPLANT, "length": length, "seed": "1"})
    if name == "compare":  # whose runs are recorded there, as they train for a minute
        return ["compare", "uniform", "--records", "runs"]
    if name == "submit":  # whose records are trained for a minute; those of the quickstart are refused
        return ["submit", "runs", *words[2:]]
    if name == "check":  # uniform is proved in a third of the time
        return ["uniform" if word == "performer" else word for word in words] + ["--defaults"]
    if words[:2] == ["records", "rerun"]:
        return [*words, "--cells", "1", "--records", "small"]
    return words


def _with_three_rows(word: str) -> str:
    """``attention=ROWS`` with its first two rows and its last; every other word, and three rows or fewer, unchanged."""
    key, _, value = word.partition("=")
    if key != "attention" or len(rows := rows_of(value)) < 4:
        return word
    return f"attention={','.join(map(str, (*rows[:2], rows[-1])))}"


def _with(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Words of a command in which these values replace those of the same keys."""
    kept = [word for word in words if word.partition("=")[0] not in values]
    return [*kept, *(f"{key}={value}" for key, value in values.items())]
