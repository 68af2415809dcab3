"""``pytest --attn-zoo`` and ``parametrize_with_checks``: checks of the conformance kit as ordinary tests of pytest."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy.fft  # noqa: F401 (pytester forgets what is imported within, and this cannot be loaded twice)
import pytest
from mutants.card import Untold
from mutants.originals import ORIGINALS

from attn_zoo import registry, task_names
from attn_zoo.conformance import Violation, attention_checks, task_checks
from attn_zoo.conformance.pytest_support import parametrize_with_checks
from attn_zoo.contract import UnknownNameError

pytest_plugins = ["pytester"]

PLUGIN = "attn_zoo.pytest_plugin"
ROOT = Path(__file__).parents[1]

BROKEN = """
from dataclasses import dataclass

from attn_zoo import Attention, Capabilities, Cost, register_attention


@dataclass
class Options:
    pass


@register_attention(
    "plugin_broken", title="Broken", paper="", equation="y = v", options=Options, time="n d", memory="n d", reads=("value",),
    can=Capabilities(causal=False, key_padding=False, cross=False, any_length=True),
    cost=lambda geometry, options: Cost(flops=0, parameters=0),
)
class Broken(Attention):
    def attend(self, query, key, value, key_valid):
        raise RuntimeError("it was late")
"""


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """Register everything first: pytester forgets what is imported within, and a module that is imported again registers again."""
    registry.load_plugins()


@pytest.fixture
def zoo(pytester, monkeypatch):
    """Return a function that runs pytest here in an empty folder; the plugin is loaded by name, as is possible if installed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = dict(registry._ATTENTIONS)

    def run(*words: str) -> pytest.RunResult:
        monkeypatch.setattr(registry, "_ATTENTIONS", dict(known))  # as in a new process
        return pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:xdist", *words)

    return run


def test_each_check_and_variant_is_a_test_with_a_readable_name(zoo):
    result = zoo("--collect-only", "-q", "--attn-zoo", "linear", "--attn-zoo", "digits")
    expected = [case.id for case in (*attention_checks("linear"), *task_checks("digits"))]
    assert "linear[squared_relu]-eager-padding_has_no_influence" in expected
    assert [line.removeprefix("attn-zoo::") for line in result.outlines if line.startswith("attn-zoo::")] == expected


def test_checks_join_the_other_tests_and_are_chosen_like_them(zoo, pytester):
    (pytester.path / "test_mine.py").write_text("def test_card(): pass\ndef test_other(): pass\n", encoding="utf-8")
    result = zoo("-v", "--attn-zoo", "none", "--attn-zoo", "digits", "-k", "card")
    result.assert_outcomes(passed=4, deselected=len([*attention_checks("none"), *task_checks("digits")]) - 3 + 1)
    result.stdout.fnmatch_lines(["test_mine.py::test_card PASSED*", "attn-zoo::none[[]default]-eager-card_is_complete PASSED*"])


def test_a_check_without_anything_to_prove_is_skipped_with_its_reason(zoo):
    result = zoo("-rs", "--attn-zoo", "none", "-k", "dropout_acts")
    result.assert_outcomes(skipped=1, deselected=len([*attention_checks("none")]) - 1)
    result.stdout.fnmatch_lines(["SKIPPED*there is no dropout option"])


def test_a_failure_says_what_is_wrong_and_what_it_breaks(zoo, pytester):
    (pytester.path / "broken.py").write_text(BROKEN, encoding="utf-8")
    words = ["--attn-zoo", "broken.py", "-k", "card_is_complete or output_is_like or inherited"]
    result = zoo(*words)
    result.assert_outcomes(failed=2, passed=1, deselected=len([*attention_checks("plugin_broken")]) - 3)
    printed = result.stdout.str()
    assert "the card's paper is empty\ncard_is_complete: The card has all its texts" in printed
    assert "harness.py" not in printed.split("card_is_complete _")[1].split("____")[0], "where the kit says so tells nothing"
    assert 'raise RuntimeError("it was late")' in printed, "the author's own line is shown"
    assert "The output has the shape of the queries" in printed
    # Below the failures, pytest warns that this process has already loaded the plugin, which only this test causes.
    assert "_pytest" not in printed.partition("warnings summary")[0], "nor does how pytest came there"


def test_failed_checks_can_be_run_again_alone(zoo, pytester):
    (pytester.path / "broken.py").write_text(BROKEN, encoding="utf-8")
    assert zoo("--attn-zoo", "broken.py", "-k", "card_is_complete or inherited").ret == 1
    result = zoo("--attn-zoo", "broken.py", "--last-failed", "-v")
    result.stdout.fnmatch_lines(["attn-zoo::plugin_broken[[]default]-eager-card_is_complete FAILED*"])
    result.assert_outcomes(failed=1, deselected=len([*attention_checks("plugin_broken")]) - 1)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("listop", "--attn-zoo: no attention or task is called 'listop'; did you mean 'listops'"),
        ("lost.py", "--attn-zoo: the file lost.py does not exist"),
        ("attn_zoo.contract:Geometry", "is not a class with a card"),
    ],
)
def test_an_unknown_target_is_a_usage_error(target, message, zoo):
    result = zoo("--attn-zoo", target)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


STARTS = """
import sys
import pytest

class Look:
    def pytest_collection_finish(self, session):
        assert session.config.pluginmanager.get_plugin("attn_zoo.pytest_plugin")
        print("zoo:", *sorted(name for name in sys.modules if name.split(".")[0] in ("attn_zoo", "torch")))

sys.exit(pytest.main([*sys.argv[1:], "-q", "-p", "no:cacheprovider"], plugins=[Look()]))
"""


@pytest.mark.parametrize("words", [[], ["-p", PLUGIN]], ids=["installed", "named as well"])
def test_it_costs_nothing_where_it_is_not_used(words, tmp_path):
    """pytest finds the plugin by its entry point, even if ``-p`` names it too, and imports neither the zoo nor torch."""
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n", encoding="utf-8")
    command = [sys.executable, "-P", "-c", STARTS, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"zoo: attn_zoo {PLUGIN}\n" in done.stdout


def test_its_entry_point_has_the_name_of_its_module():
    """With different names, ``-p attn_zoo.pytest_plugin`` in an installed zoo would register it twice, which pytest refuses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def parameters(*targets, **others):
    return {given.id: given.values[0] for given in parametrize_with_checks(*targets, **others).args[1]}


def test_parametrizing_takes_one_or_many_of_either_kind():
    expected = {case.id for case in (*attention_checks("none"), *task_checks("digits"))}
    assert set(parameters(["none", "digits"])) == expected
    assert set(parameters("digits")) == {case.id for case in task_checks("digits")}
    assert set(parameters(ORIGINALS["linear"])) == {case.id for case in attention_checks(ORIGINALS["linear"])}
    assert "digits" in task_names()


def test_a_violation_is_told_with_the_sentence_that_it_breaks():
    with pytest.raises(Violation, match=r"equation is empty\ncard_is_complete: The card has all its texts"):
        parameters(Untold.card)[f"{Untold.card.name}[default]-eager-card_is_complete"]()


def test_expected_failures_are_strict():
    name = Untold.card.name
    waived = parameters(Untold.card, expected_failures={"card_is_complete": "known", "default-eager-eval_is_deterministic": "old"})
    with pytest.raises(pytest.xfail.Exception, match=r"known \(found: .*equation is empty"):
        waived[f"{name}[default]-eager-card_is_complete"]()
    with pytest.raises(pytest.fail.Exception, match=r"expected to fail \(old\), but default-eager-eval.* holds; remove it"):
        waived[f"{name}[default]-eager-eval_is_deterministic"]()
    stale = parameters(Untold.card, expected_failures={"compressing_first_agrees": "old"})
    with pytest.raises(pytest.fail.Exception, match="has nothing to check; remove it from expected_failures"):
        stale[f"{name}[default]-eager-compressing_first_agrees"]()
    with pytest.raises(UnknownNameError, match="did you mean 'card_is_complete'"):
        parametrize_with_checks(Untold.card, expected_failures={"card_is_complet": "typo"})
