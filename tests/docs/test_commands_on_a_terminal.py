"""Every command of the README and docs in a pseudo-terminal: no line too wide, no long silence before or between outputs.

Commands are read from the pages, so that new ones are included; slow ones are run with small sizes.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from extras import missing
from page_blocks import blocks
from pseudo_terminal import assert_fits, on_a_terminal
from shown_commands import shown_commands, small

from attn_zoo.analysis.text import default_text
from attn_zoo.cli.main import COMMANDS
from attn_zoo.records import Store

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
LEFT_OUT = {
    r"launch=slurm": "needs a cluster with Slurm",
    r"launcher\.init\.address=auto": "needs a running cluster of Ray",
    r"num_gpus=1": "needs a GPU",
}
"""Reason to skip a command, by a pattern of its text."""
EXTRAS = {
    r"minilm|analyze matrix|transplant": "minilm",
    r"transplant|experiment=models": "text",
    r"launch=(ray|submitit_local)": "sweeps",
}
"""Extra that a command needs, by a pattern of its text."""
VERDICTS = {
    r"records rerun": "another processor need not give the same bits",
    r"attn-zoo submit": "runs of ours are not accepted from outside",
}
"""Reason why a command may exit with status 1, by a pattern of its text."""
OWN = {"my_attention": "attention", "my_task": "task"}
"""Packages that the pages create, and the module of each that registers its entry."""
SMALL = {" ".join(words): words for words in map(small, shown_commands())}
"""Words of every distinct command in its small form, by its text."""


def subcommand(words: list[str]) -> str:
    """Return the subcommand, such as ``run``, of a command's words."""
    return words[1]


FIRST = [*{subcommand(words): words for words in reversed(SMALL.values())}.values()]
"""First command of each subcommand."""
STARTED = ("run", "measure", "analyze", "transplant")
"""Subcommands that import most: the first command of each starts a new process, as a user's does; other commands are forked."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """Folder with what the pages assume: records, weights, packages, a plugin file, texts."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("runs", "mine", "BEFORE", "AFTER", "equal_time"):
        shutil.copytree(RESULTS / "quickstart", folder / name)
    for record in Store(RESULTS / "family").load("listops", "linformer")[0]:
        Store(folder / "runs").add(record)
    (folder / "profile").symlink_to(RESULTS / "profile")
    sizes = "level=smoke budget.steps=3 budget.evaluate_every=3 model.dim=16 model.heads=2 report=false"
    for words in (
        f"run attention=linformer[projected_length=16] task=digits {sizes}",
        f"run attention=none task=digits {sizes} records=small",
        f"run attention=softmax task=listops {sizes} records=stages weights.after=[0,3]",
        "new my_attention --output packages/my_attention",
        "new my_task --task --output packages/my_task",
        "new mine --output packages/mine",
    ):
        assert_fits(on_a_terminal(words.split(), folder, forked=True))
    for name, step in (("BEFORE", 0), ("AFTER", 3)):
        (stage,) = (folder / "weights").glob(f"*-step{step}.safetensors")
        stage.rename(folder / "weights" / f"{name}.safetensors")
    shutil.copy(folder / "packages/mine/src/mine/attention.py", folder / "mine.py")
    tracker = re.search(
        r"cat > tracker.py <<'EOF'\n(.*?)^EOF", (ROOT / "docs" / "how-to" / "many-runs.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert tracker is not None
    (folder / "tracker.py").write_text(tracker[1])
    texts = made(folder / "texts")
    for at in range(3):
        (texts / f"{at}.txt").write_text(default_text()[0][10_000 * at : 10_000 * (at + 1)])
    with lzma.open(made(folder / "wikitext-2") / "test.txt.xz", "wt") as file:
        file.write(default_text()[0][:100_000])
    made(folder / "data")
    return folder


@pytest.fixture(scope="module")
def small_bert(prepared) -> None:
    """The small BERT that a page makes."""
    first = next(block for block in blocks((ROOT / "docs" / "how-to" / "transplant.md").read_text()) if block.language == "python")
    subprocess.run([sys.executable, "-P", "-c", first.content], cwd=prepared, check=True)


def made(folder: Path) -> Path:
    """Create a folder and return it."""
    folder.mkdir()
    return folder


@pytest.fixture
def folder(request, prepared, tmp_path) -> Path:
    """Folder with what the pages assume, for one command: ``runs`` is a copy, the rest are links."""
    if "small-bert" in request.node.name and missing("text") is None:
        request.getfixturevalue("small_bert")
    for child in prepared.iterdir():
        if child.name == "runs":
            shutil.copytree(child, tmp_path / "runs")
        else:
            (tmp_path / child.name).symlink_to(child)
    (tmp_path / "FOLDER").mkdir()
    return tmp_path


def program(words: list[str]) -> list[str]:
    """Return the command that runs these words with this environment's Python."""
    return [sys.executable, "-P", "-m", "attn_zoo.cli", *words[1:]]


def skip_unless_possible(command: str) -> None:
    """Skip a command that needs a cluster, a GPU, or an extra that is not installed."""
    for pattern, reason in LEFT_OUT.items():
        if re.search(pattern, command):
            pytest.skip(reason)
    for pattern, extra in EXTRAS.items():
        if re.search(pattern, command) and (absent := missing(extra)) is not None:
            pytest.skip(absent)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=text, marks=() if words in FIRST else pytest.mark.exhaustive) for text, words in SMALL.items()]
)
def test_a_command_fits(words, folder):
    skip_unless_possible(" ".join(words))
    own = [folder / f"packages/{name}/src/{name}/{kind}.py" for name, kind in OWN.items() if name in " ".join(words)]
    plugins = [] if "new" in words else [str(path) for path in own]
    environment = {"ATTN_ZOO_PLUGIN": os.pathsep.join(plugins), "ATTN_ZOO_DATA": str(folder / "data")}
    verdict = any(re.search(pattern, " ".join(words)) for pattern in VERDICTS)
    # Workers of a launcher keep running for minutes after the forked process has ended; joblib with one worker starts none.
    launched = any(word.startswith("launch=") for word in words) and "workers=1" not in words
    forked = not launched and (words not in FIRST or subcommand(words) not in STARTED)
    given = words[1:] if forked else program(words)
    assert_fits(on_a_terminal(given, folder, forked, **environment), 0, *([1] if verdict else []))


def test_every_subcommand_is_shown():
    shown = {subcommand(words) for words in SMALL.values()}
    assert set(COMMANDS) == shown
