"""Help, errors and long work in a pseudo-terminal; `docs/test_commands_on_a_terminal.py` has every command that pages show."""

from __future__ import annotations

import sys

import pytest
from pseudo_terminal import Shown, assert_fits, on_a_terminal

from attn_zoo.cli.main import COMMANDS

SMALL = "task=digits level=smoke budget.steps=200 budget.evaluate_every=50 model.dim=16 model.heads=2 report=false"


def shown(words: str, cwd) -> Shown:
    return on_a_terminal(words.split(), cwd, forked=True)


@pytest.mark.parametrize("words", ["--help", pytest.param("list longformer", marks=pytest.mark.process)])
def test_quick_commands_fit(words, tmp_path):
    assert_fits(on_a_terminal([sys.executable, "-P", "-m", "attn_zoo.cli", *words.split()], tmp_path))


@pytest.mark.process
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_help_of_a_command_fits(command, tmp_path):
    assert_fits(shown(f"{command} --help", tmp_path))


@pytest.mark.process
@pytest.mark.parametrize("words", ["run attention=linfomer", "leaderboard --tsk", "measure experiment=crosover"])
def test_an_error_fits(words, tmp_path):
    assert_fits(shown(words, tmp_path), 2)


@pytest.mark.process
def test_long_work_shows_a_bar_without_a_loss_that_is_no_number(tmp_path):
    found = shown(f"run attention=softmax {SMALL}", tmp_path)
    assert_fits(found)
    assert "/200" in found.text and "loss 2." in found.text and "nan" not in found.text


@pytest.mark.process
def test_reading_data_shows_a_bar(tmp_path):
    found = shown("run attention=none task=listops level=smoke budget.steps=2 model.dim=16 model.heads=2 report=false", tmp_path)
    assert_fits(found)
    assert found.lines[0].startswith("reading data ") and "0/1" in found.lines[0]
