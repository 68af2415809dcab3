"""Rows among Hydra's words: quoted so that its grammar takes them, and unfolded into overrides of a run."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from attn_zoo.cli.overrides import quote_rows, unfold_row
from attn_zoo.cli.renamed import refuse_old_spelling


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
    with pytest.raises(ValueError, match=r"attention\.dropout is given twice, in the row softmax\[dropout=0\] and beside it"):
        unfold_row(["attention='softmax[dropout=0]'", "attention.dropout=0.1"])


@pytest.mark.parametrize(
    ("words", "new"),
    [
        ("measure set.linformer.projected_length=16", "attentions=[linformer[projected_length=16]]"),
        ("analyze error --attention performer --dial performer.features=8,16", "--attention performer[features=8|16]"),
        ("analyze matrix --attention nystrom --set nystrom.landmarks=8", "--attention nystrom[landmarks=8]"),
        ("measure experiment=peers sizes.linformer=8", "mechanisms=[linformer[projected_length=8]]"),
        ("transplant dials.linformer.projected_length=8,16", "attention=linformer[projected_length=8|16]"),
        ("transplant attention=linformer attention.projected_length=8", "attention=linformer[projected_length=8]"),
        ("export linformer projected_length=8 --length 32", "attn-zoo export linformer[projected_length=8]"),
        ("run launch=slurm hydra.launcher.partition=gpu", "launcher.partition=gpu is written now"),
        ("run -m hydra/launcher=joblib", "launch=joblib is written now"),
        ("tune hydra.sweeper.n_trials=4", "tuning.trials=4 is written now"),
    ],
)
def test_an_earlier_spelling_is_refused_with_the_one_that_is_written_now(words, new):
    with pytest.raises(ValueError) as refused:
        refuse_old_spelling(words.split())
    assert new in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("words", ["", "list", "run attention=linformer attention.projected_length=8 dials.performer.features=8"])
def test_what_is_written_now_is_left_alone(words):
    refuse_old_spelling(words.split())
