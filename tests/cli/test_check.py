"""What ``attn-zoo check`` takes: names, classes and files, of attentions and of tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from run_helpers import leave_few_checks

from attn_zoo.cli import check, main
from attn_zoo.conformance import Case, Report, Result
from attn_zoo.conformance.attention_suite import NO_DEFINITION
from attn_zoo.conformance.targets import entries

MINE = """
from dataclasses import dataclass

from attn_zoo import Attention, Capabilities, Cost, register_attention


@dataclass
class Options:
    pass


def put(name, **card):
    facts = dict(
        title=name, paper="nobody 2026", equation="y = v", options=Options, time="n d", memory="n d", reads=("value",),
        can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
        cost=lambda geometry, options: Cost(flops=0, parameters=0),
    )
    return register_attention(name, **{**facts, **card})


@put("check_first")
class First(Attention):
    def attend(self, query, key, value, key_valid):
        return value.clone()


@put("check_second", paper="")
class Second(Attention):
    def attend(self, query, key, value, key_valid):
        raise RuntimeError("it was late")
"""


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(*targets: str) -> list[str]:
    return [card.name for card in entries(targets)]


def test_names_and_classes_of_attentions_and_tasks():
    assert names("softmax", "digits") == ["softmax", "digits"]
    assert names("attn_zoo.attention.dense.softmax:Softmax", "softmax", "attn_zoo.tasks.digits:Digits") == ["softmax", "digits"]


def test_a_file_is_all_that_it_registers_or_one_class(home):
    put(home / "check_mine.py", MINE)
    assert names("check_mine.py") == names(str(home / "check_mine.py")) == ["check_first", "check_second"]
    assert names("check_mine.py:Second") == ["check_second"]


def test_a_file_of_a_package_is_imported_as_part_of_it(home):
    put(home / "src" / "check_package" / "__init__.py", "")
    put(home / "src" / "check_package" / "parts" / "__init__.py", MINE)
    put(home / "src" / "check_package" / "attention.py", "from .parts import First as Other, Attention, put\n\n\n" + OWN)
    assert names("src/check_package/attention.py") == ["check_own"]
    assert sys.modules["check_package.attention"].Own.card.origin == "check_package.attention:Own"
    assert names("src/check_package/parts/__init__.py") == ["check_first", "check_second"]


OWN = """@put("check_own")
class Own(Attention):
    def attend(self, query, key, value, key_valid):
        return value.clone()
"""


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("listop", "no attention or task is called 'listop'; did you mean 'listops'"),
        ("linformr", "did you mean 'linformer'"),
        ("lost.py", "the file lost.py does not exist"),
        ("there/", "there must be a Python file, a package, or a folder that attn-zoo new wrote"),
        ("attn_zoo.attention.dense.softmax:Softmix", "has no attribute 'Softmix'"),
        ("check_mine.py:Third", "has no attribute 'Third'"),
        ("check_empty.py", "registers none. Decorate a class"),
        ("check_broken.py", "check_broken.py cannot be imported: RuntimeError: it was late (check_broken.py:2)"),
        ("check_wrong.py", "(check_wrong.py:1)"),
        ("check_twice.py", "attention 'uniform' must be registered once"),
        ("check_twice.py", "(check_twice.py:"),
        ("json.py", "cannot be imported as module 'json', because another file has this name"),
    ],
)
def test_what_is_not_there_is_said_in_words_before_any_check_runs(target, message, home, capsys):
    put(home / "there" / "file.txt", "")
    put(home / "check_mine.py", MINE)
    put(home / "check_empty.py", "x = 1\n")
    put(home / "check_broken.py", "x = 1\nraise RuntimeError('it was late')\n")
    put(home / "check_wrong.py", "def (\n")
    put(home / "check_twice.py", MINE.replace("check_first", "uniform"))
    put(home / "json.py", MINE)
    assert main(["check", "digits", target]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert not said.out, "nothing is checked where one of the targets is wrong"


def test_each_target_has_its_report_and_one_failure_fails(home, monkeypatch, capsys):
    leave_few_checks(monkeypatch)
    put(home / "check_mine.py", MINE)
    assert main(["check", "check_mine.py:Second", "check_mine.py:First"]) == 1
    second, first = capsys.readouterr().out.split("check_first: ")
    assert "failed" not in first and "passed" in first
    assert "the card's paper is empty" in second
    assert "RuntimeError: it was late (check_mine.py:" in " ".join(second.split())


@pytest.mark.parametrize(("unknown", "words", "status"), [("", [], 0), (NO_DEFINITION, [], 0), (NO_DEFINITION, ["--strict"], 1)])
def test_strict_also_fails_without_a_definition(unknown, words, status, monkeypatch, capsys):
    passed = Result(Case("uniform", "a", "Says so.", lambda: None), "passed", "", 0.1)
    monkeypatch.setattr(check, "prove", lambda card, device, defaults: Report(card.name, (passed,), unknown=unknown))
    assert main(["check", "uniform", *words]) == status
    first, *remedy = capsys.readouterr().out.splitlines()
    assert first == "uniform: 1 passed in 0.1 s" + (f"; {unknown}" if unknown else "")
    assert ("as a method `definition`" in " ".join(remedy)) == bool(unknown)
