"""Rows among Hydra's words: quoted so that its grammar takes them, and unfolded into overrides of a run."""

from __future__ import annotations

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from attn_zoo.cli.config import in_words, store_groups
from attn_zoo.cli.overrides import quote_rows, unfold_row
from attn_zoo.cli.plan import plan
from attn_zoo.contract import UnknownNameError
from attn_zoo.leaderboard.reproduce import command


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("attention=softmax", ["softmax"]),
        ("attention=softmax,none", ["softmax", "none"]),
        ("attention=linformer:sdpa", ["linformer:sdpa"]),
        (
            "attention=linformer[projected_length=8|16],softmax",
            ["linformer[projected_length=8]", "linformer[projected_length=16]", "softmax"],
        ),
        ("attention=a[b=1,c=x],'d:e'", ["a[b=1,c=x]", "d:e"]),
        ("attentions=[softmax:sdpa,linformer[projected_length=16]]", [["softmax:sdpa", "linformer[projected_length=16]"]]),
        ("attention=choice(a,b)", ["a", "b"]),
        ("attention=linear+linear+softmax,softmax", ["2*linear+softmax", "softmax"]),
        ("lengths=[1,2]", [[1, 2]]),
    ],
)
def test_hydra_reads_rows_that_are_quoted_for_it(word, values):
    override = OverridesParser.create().parse_override(quote_rows(word))
    if override.is_sweep_override():
        texts = [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]
        found = [OverridesParser.create().parse_override(text).value() for text in texts]
    else:
        found = [override.value()]
    assert found == values


def test_a_row_is_unfolded_into_overrides_of_its_run():
    job = ["seed=1", "attention='linformer:sdpa[projected_length=8,frozen=true]'", "task=digits"]
    assert unfold_row(job) == [
        "seed=1",
        "attention=linformer",
        "attention.projected_length='8'",
        "attention.frozen='true'",
        "implementation=sdpa",
        "task=digits",
    ]
    assert unfold_row(["attention=softmax", "attention.dropout=0.1"]) == ["attention=softmax", "attention.dropout=0.1"]
    with pytest.raises(ValueError, match=r"attention\.dropout is given twice, in the row softmax\[dropout=0\] and as a key"):
        unfold_row(["attention='softmax[dropout=0]'", "attention.dropout=0.1"])


SMALL = ["task=digits", "model.dim=16", "model.heads=2", "model.depth=3", "device=cpu"]


@pytest.fixture(scope="module", autouse=True)
def groups():
    store_groups()


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


def test_a_search_finds_the_options_of_every_mechanism_of_a_hybrid():
    planned = plan(["experiment=tune", "attention=linformer+linear", *SMALL])
    study = planned.study
    assert study is not None
    assert {"attention.linformer.projected_length", "attention.linear.feature_map"} <= set(study.space)
    found = study.spec({"attention.linformer.projected_length": 8, "attention.linear.feature_map": "relu"})
    assert found.options["linformer.projected_length"] == 8 and found.options["linear.feature_map"] == "relu"
    with pytest.raises(
        ValueError, match=r"seed takes one value.* These keys can be searched: attention\.linformer\..*, attention\.linear\."
    ):
        plan(["experiment=tune", "attention=linformer+linear", *SMALL, "seed=1,2"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention=linformer+softmaks"], "no attention is called 'softmaks'"),
        (["attention=2*linformer+softmax", "model.depth=2"], "takes at least 3 layers"),
        (["attention=linear+softmax", "model.shared_weights=true"], "each with weights of its own, but the network has 1"),
        (["attention=linear+softmax", "attention.projected_length=4"], "projected_length"),
        (["attention=linear+softmax", "implementation=sdpa"], "no implementation of linear is called 'sdpa'"),
    ],
)
def test_a_hybrid_that_cannot_run_is_refused_before_work(words, message):
    with pytest.raises((ValueError, UnknownNameError), match=message), in_words():
        plan([*(word for word in SMALL if word != "model.depth=3" or "model.depth=2" not in words), *words])
