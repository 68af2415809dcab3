"""Progress of long work, on a terminal and without one."""

from __future__ import annotations

import re
import time
from contextlib import redirect_stderr
from io import StringIO

import pytest
from patience import HANG

from attn_zoo.cli import progress
from attn_zoo.cli.job import Watched
from attn_zoo.cli.progress import Work
from attn_zoo.records import RunSpec


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.05)
    monkeypatch.setattr(progress, "FIRST", 0.025)


def until_printed(capsys, words: str, times: int = 1) -> str:
    """Errors printed until they hold the words so many times."""
    printed, until = "", time.monotonic() + HANG
    while printed.count(words) < times:
        assert time.monotonic() < until, printed
        time.sleep(0.01)
        printed += capsys.readouterr().err
    return printed


def test_without_a_terminal_a_line_comes_now_and_then_and_none_for_quick_work(hasty, capsys):
    begun = time.monotonic()
    with Work("growth", 4, first=0.02) as work:
        work.update(note="softmax at 64")
        printed = until_printed(capsys, "\n", times=2)
    lines = printed.splitlines()
    assert 2 <= len(lines) <= (time.monotonic() - begun) / progress.EVERY + 2
    assert all(re.fullmatch(r"growth: 1 of 4, softmax at 64, \d+ s, about \d+ s left", line) for line in lines)
    with Work("quick", 4) as work:
        work.update()
    assert not capsys.readouterr().err


def test_a_line_has_at_most_a_hundred_columns_and_no_loss_before_the_first_step(hasty, capsys):
    run = Watched(None, RunSpec("linformer", "digits"), "id")
    run.start("linformer on digits, seed 1", 600)
    assert "nan" not in (before := until_printed(capsys, "of 600")) and "loss" not in before
    run.advance(50, 1.25, 0.5)
    assert until_printed(capsys, "50 of 600, loss 1.250, valid 50.0 %")
    run.stop()
    assert len(Work("a" * 300).line()) == 100


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with Work("check", 2) as work:
        work.update(note="padding")
    printed = capsys.readouterr().err
    assert "check: padding" in printed and "1/2" in printed


def test_parts_that_are_not_even_are_counted_without_an_estimate(monkeypatch, capsys):
    uneven = Work("check", 4, even=False)
    uneven.update(note="padding")
    assert uneven.line() == "check: 1 of 4, padding, 0 s"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with Work("check", 2, even=False) as work:
        work.update(note="padding")
    printed = capsys.readouterr().err
    assert "1/2" in printed and "--:--" not in printed


def test_progress_is_not_mixed_with_what_the_work_prints(capsys):
    """The conformance tests redirect standard error to see whether a call prints; lines of progress must not count as its own."""
    with Work("check", 2, first=0.01), redirect_stderr(StringIO()) as printed:
        until_printed(capsys, "check: 0 of 2")
    assert printed.getvalue() == ""
