"""Progress of long work, on a terminal and without one."""

from __future__ import annotations

import re
import time

import pytest

from attn_zoo.cli import progress
from attn_zoo.cli.progress import RunProgress, Work, tracked


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.05)
    monkeypatch.setattr(progress, "FIRST", 0.025)


def test_without_a_terminal_a_line_comes_now_and_then_and_none_for_quick_work(hasty, capsys):
    with Work("growth", 4, first=0.02) as work:
        work.update(note="softmax at 64")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 10
    assert all(re.fullmatch(r"growth: 1 of 4, softmax at 64, \d+ s, about \d+ s left", line) for line in lines)
    with Work("quick", 4) as work:
        work.update()
    assert not capsys.readouterr().err


def test_a_line_has_at_most_a_hundred_columns_and_no_loss_before_the_first_step(hasty, capsys):
    run = RunProgress()
    run.start("linformer on digits, seed 1", 600)
    time.sleep(0.15)
    assert "nan" not in (before := capsys.readouterr().err) and "loss" not in before and "of 600" in before
    run.advance(50, 1.25, 0.5)
    time.sleep(0.15)
    run.stop()
    assert "50 of 600, loss 1.250, valid 50.0 %" in capsys.readouterr().err
    assert len(Work("a" * 300).line()) == 100


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with Work("check", 2) as work:
        work.update(note="padding")
    printed = capsys.readouterr().err
    assert "check: padding" in printed and "1/2" in printed


def test_items_come_in_order(capsys):
    assert list(tracked(iter("abc"), "letters")) == ["a", "b", "c"]
