"""Words KEY=VALUE: parsed once, with rows as values; and runs that are planned from them and one composition."""

from __future__ import annotations

import shlex
from typing import Any

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attn_zoo.cli import measure
from attn_zoo.cli.config import compose, in_words
from attn_zoo.cli.run import plan
from attn_zoo.cli.words import changed, read_run_words, read_word, unfolded
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.rows import RowName


@pytest.mark.parametrize(
    ("word", "rows"),
    [
        ("attention=softmax", ["softmax"]),
        ("attention=softmax,none", ["softmax", "none"]),
        ("attention=linformer:sdpa", ["linformer:sdpa"]),
        (
            "attention=linformer[projected_length=8|16],softmax",
            ["linformer[projected_length=8]", "linformer[projected_length=16]", "softmax"],
        ),
        ("attention=a[b=1,c=x],'d:e'", ["a[b=1,c=x]", "d:e"]),
        ("attention=choice(a,b[c=1])", ["a", "b[c=1]"]),
        ("attention=linear+linear+softmax,softmax", ["2*linear+softmax", "softmax"]),
        ("+attention=softmax", ["softmax"]),
    ],
)
def test_values_of_attention_are_rows(word, rows):
    read = read_word(word)
    assert read.key == "attention" and list(map(str, read.values())) == rows and read.swept == (len(rows) > 1)
    assert all(isinstance(row, RowName) for row in read.values())


def test_rows_in_brackets_are_a_list():
    (rows,) = read_word("attention=[softmax:sdpa,linformer[projected_length=16]]").values()
    assert list(map(str, rows)) == ["softmax:sdpa", "linformer[projected_length=16]"]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("lengths=[1,2]", [[1, 2]]),
        ("seed=range(1,6,2)", [1, 3, 5]),
        ("rate=choice(0.1,1e-3)", [0.1, 0.001]),
        ("names=[a,'b c'],[d]", [["a", "b c"], ["d"]]),
        ("space={a: 'choice(1,2)'}", [{"a": "choice(1,2)"}]),
        ("+model.dim=8", [8]),
    ],
)
def test_values_of_a_sweep_are_plain_data(word, values):
    assert read_word(word).values() == values


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("records=3.10", "3.10"),
        ("records=2026_11", "2026_11"),
        ("data.root=1e3", "1e3"),
        ("weights.folder=true", "true"),
        ("task.title=1.10", "1.10"),
        ("attention.name_of_option=007", "007"),
        ("dials.linformer.projected_length=8", "8"),
        ("task.path='a b'", "a b"),
        ("attention.projected_length=null", None),
        ("budget.steps=10", 10),
    ],
)
def test_a_value_that_is_text_or_is_converted_later_is_the_text_as_written(word, value):
    assert read_word(word).value == value


def test_a_folder_and_an_option_keep_the_text_that_was_typed(tmp_path):
    made = plan(["task=listops", "task.length=32", "records=3.10", "attention=linformer", "attention.projected_lengths=4"])
    assert made.settings.records == "3.10"
    (spec,) = made.specs
    assert spec.task_options["length"] == 32 and spec.options["projected_lengths"] == "4"
    assert plan(["task=listops", "seed=1,2", "seed=3"]).specs[0].seed == 3, "the last word with a key counts"
    (root,) = {job.locations["root"] for job in plan(["task=listops", "data.root=1_0"]).jobs}
    assert root == "1_0"
    assert measure.compose(["output=3.10", "dim=8"])[1] == {"output": "3.10", "dim": 8}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dim", "must be of the form KEY=VALUE, but cannot be read"),
        ("~dim", "must not remove a setting"),
        ("seed=range(1,6,0)", "the step of a range must not be 0"),
        ("rate=interval(0,1)", "infinitely many values"),
        ("task=glob(lin*)", r"without @ or \*\. Write every value"),
        ("attention=glob(lin*)", r"must be written NAME.*; got 'glob\(lin\*\)'"),
        ("model@here=3", "must be of the form KEY=VALUE, without @"),
    ],
)
def test_a_word_that_has_no_values_is_refused(word, message):
    with pytest.raises(ValueError, match=message):
        read_word(word).values()


def test_an_option_is_given_in_the_row_or_by_its_key():
    (spec,) = plan(["attention=linformer:sdpa[projected_length=8,frozen=true]", *SMALL]).specs
    assert (spec.implementation, spec.options["projected_length"], spec.options["frozen"]) == ("sdpa", 8, True)
    assert plan(["attention=linformer", "attention.projected_length=8", *SMALL]).specs[0].options["projected_length"] == 8
    with pytest.raises(ValueError, match=r"attention\.dropout must be given once; got .* \(softmax\[dropout=0\]\) and as a key"):
        plan(["attention=softmax[dropout=0]", "attention.dropout=0.1", *SMALL])


SMALL = ["task=digits", "model.dim=16", "model.heads=2", "model.depth=3", "device=cpu"]


def test_a_sweep_over_hybrids_is_planned_with_options_by_mechanism():
    words = ["-m", "attention=2*linformer[projected_length=4|8]+softmax:eager,softmax", *SMALL]
    specs = plan(words).specs
    assert [(spec.attention, spec.implementation) for spec in specs] == [("2*linformer+softmax", "auto+eager")] * 2 + [
        ("softmax", "auto")
    ]
    assert [spec.options.get("linformer.projected_length") for spec in specs] == [4, 8, None]
    beside = ["attention=2*linformer+softmax:eager", "attention.linformer.projected_length=4", *SMALL]
    through_dials = ["attention=2*linformer+softmax:eager", "dials.linformer.projected_length=4", *SMALL]
    assert plan(beside).specs == plan(through_dials).specs == specs[:1]
    again = shlex.split(command(specs[0]))
    assert plan(again[2:]).specs == specs[:1]


@pytest.mark.extras
def test_a_search_finds_the_options_of_every_mechanism_of_a_hybrid():
    planned = plan(["experiment=tune", "attention=linformer+linear", *SMALL])
    study = planned.study
    assert study is not None
    assert {"attention.linformer.projected_length", "attention.linear.feature_map"} <= set(study.space)
    found = study.run_with({"attention.linformer.projected_length": 8, "attention.linear.feature_map": "relu"})
    assert found.spec.options["linformer.projected_length"] == 8 and found.spec.options["linear.feature_map"] == "relu"
    with pytest.raises(
        ValueError, match=r"seed must be one value.* These keys can be searched: attention\.linformer\..*, attention\.linear\."
    ):
        plan(["experiment=tune", "attention=linformer+linear", *SMALL, "seed=1,2"])


SWEEP = ["-m", "experiment=quickstart", "task=digits,mqar", "attention=softmax,linformer[projected_length=4|8]", "seed=1,2"]


@pytest.fixture
def counts(monkeypatch) -> dict[str, int]:
    """Numbers of compositions and of parsed words."""
    counted = {"composed": 0, "parsed": 0}
    for owner, name, what in ((hydra, "compose", "composed"), (OverridesParser, "parse_override", "parsed")):
        original = getattr(owner, name)

        def count(*given: Any, _original: Any = original, _what: str = what, **named: Any) -> Any:
            counted[_what] += 1
            return _original(*given, **named)

        monkeypatch.setattr(owner, name, count)
    return counted


def test_a_sweep_is_composed_once_and_each_word_is_parsed_once(counts):
    assert len(plan(SWEEP).specs) == 2 * 3 * 2
    of_the_experiment, of_hydra = 3, 2  # its sweep; Hydra parses the name of the experiment and its own mode
    assert counts["composed"] == 1
    assert counts["parsed"] <= len(SWEEP) - 1 + of_the_experiment + of_hydra


def test_a_run_changes_no_other_run():
    composed = compose(read_run_words(["experiment=quickstart"]))
    before = OmegaConf.to_container(composed.config)
    one = changed(composed.config, unfolded(read_run_words(["attention=linformer[projected_length=7]", "budget.steps=3"])))
    other = changed(composed.config, unfolded(read_run_words(["attention=softmax", "seed=5"])))
    assert (one.attention, one.budget.steps) == ({"name": "linformer", "projected_length": "7"}, 3)
    assert (other.attention, other.budget.steps, other.seed) == ({"name": "softmax"}, composed.config.budget.steps, 5)
    assert OmegaConf.to_container(composed.config) == before


def test_options_of_an_experiment_stay_with_the_row(tmp_path):
    """An experiment's file may change options of the task, as Linformer's does."""
    (spec, *_) = plan(["experiment=linformer_figure3_cpu"]).specs
    assert spec.task == "masked_language"
    with pytest.raises(LookupError, match="no option of task digits is called 'files'"), in_words():
        plan(["experiment=linformer_figure3_cpu", "task=digits"])
