"""Figures of the literature: as printed, with means that follow from them, and with differences of settings named."""

from __future__ import annotations

import statistics
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from linformer_tables import printed_rows

from attn_zoo import published, registry
from attn_zoo.leaderboard.literature import phrases, protocol_difference
from attn_zoo.published import SCORE, figures, published_for

LRA_TASKS = ("listops", "text", "retrieval", "pixels", "pathfinder")


def score(source: str, task: str, attention: str) -> str:
    (found,) = [figure.printed for figure in published_for(task, attention) if figure.source.name == source]
    return found


@pytest.mark.parametrize(
    ("source", "attention", "printed"),
    [
        ("lra", "softmax", "36.37 64.27 57.46 42.44 71.40"),
        ("nystromformer", "linformer", "37.25 55.91 79.37 37.84 67.60"),
        ("xformers", "performer", "19.56 62.76 81.1 36.09 67.23"),
    ],
)
def test_scores_of_long_range_arena_are_those_printed(source, attention, printed):
    assert [score(source, task, attention) for task in LRA_TASKS] == printed.split()


@pytest.mark.parametrize(
    ("source", "attention", "printed"),
    [
        ("mad", "delta_rule", "35.7 100 52.8 100"),
        ("lin_attn_bench", "softmax", "56.5 90.5 78.8 99.8"),
    ],
)
def test_scores_of_mad_are_those_printed(source, attention, printed):
    assert [score(source, task, attention) for task in ("fuzzy_recall", "mqar", "memorise", "copying")] == printed.split()


def test_other_tables_are_whole():
    count = Counter(figure.source.name for figure in figures())
    assert count == {
        "linformer": 12 * 4 + 2 * 34,
        "lra": 11 * 5,
        "nystromformer": 5 * 5,
        "xformers": 8 * 5,
        "mad": 6 * 6,
        "lin_attn_bench": 3 * 6,
        "reformer_fastai": 3 * 4,
        "longformer": 6 * 2 - 2,
        "transformer_xl": 5,
        "retnet": 5 * 5,
        "zeta": 5,
        "ms_ssm": 4 * 5 - 3,
    }
    by_cell = {(f.source.name, f.where, f.model, f.column): f.printed for f in figures()}
    assert len(by_cell) == len(figures()), "two figures of one cell"
    assert by_cell["linformer", "Table 2", "Linformer, 256, shared kv, shared layer", "QNLI"] == "91.2"
    assert by_cell["linformer", "Table 3, right", "n = 65536", "128"] == "60"


def test_names_are_those_of_the_registry():
    tasks, attentions = registry.task_names(), registry.attentions()
    for figure in figures():
        assert figure.task is None or figure.task in tasks, figure
        assert figure.attention is None or figure.attention in attentions, figure
        if figure.attention:
            options = registry.stated_options(registry.card(figure.attention), figure.options)
            chosen = {name: options[name] for name in figure.options}
            assert chosen == dict(figure.options), "options are written as records write them"


def test_printed_means_follow_from_the_scores_but_for_those_that_are_printed_wrongly():
    rows = [row for file in Path(published.__path__[0], "data").iterdir() for row in printed_rows(file.name) if "average" in row]
    wrong = {}
    for row in rows:
        mean, printed = statistics.mean(map(Decimal, row["figures"].split())), Decimal(row["average"])
        if abs(mean - printed) > Decimal("0.5").scaleb(-len(row["average"].partition(".")[2])):
            wrong[row["model"]] = (str(mean)[:6], row["average"])
    assert wrong == {"Sinkhorn Transformer": ("51.476", "51.39"), "DeltaNet": ("69.633", "69.7")}
    assert len(rows) == 11 + 5 + 8 + 12 + 6 + 3 + 1


def facts(**changed) -> dict[str, object]:
    """Return the facts of LRA's ListOps as the source gives them, unless changed."""
    told = {"data": "LRA ListOps", "length": 2000, "depth": 6, "dim": 512, "heads": 8, "ffn": 2048, "steps": 5000}
    told |= {"batch_size": 32, "optimiser": "Adam", "learning_rate": 0.05, "warmup_steps": 1000, "weight_decay": 0.1}
    return {"metric": SCORE, "seeds": 1, **told, **changed}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"length": 256}, "length 2,000 there, 256 here"),
        ({"data": "generated"}, "data LRA ListOps there, generated here"),
        ({"depth": 2}, "depth 6 there, 2 here"),
        ({"dim": 64}, "width 512 there, 64 here"),
        ({"ffn": 128}, "feed-forward width 2,048 there, 128 here"),
        ({"steps": 600}, "steps 5,000 there, 600 here"),
        ({"batch_size": 64}, "batch 32 there, 64 here"),
        ({"learning_rate": 0.002}, "learning rate 0.05 there, 0.002 here"),
        ({"seeds": 3}, "seeds 1 there, 3 here"),
        ({"metric": "f1"}, "metric accuracy there, f1 here"),
        ({"options": {"projected_length": 64}}, "projected_length 16 there, 64 here"),
        ({"dropout": 0.0}, "not given there: dropout"),
    ],
)
def test_each_fact_that_differs_is_a_sentence_and_no_other(changed, sentence):
    (figure,) = [f for f in published_for("listops", "linformer") if f.source.name == "lra"]
    assert protocol_difference(figure, facts(options={"projected_length": 16})) == ()
    assert phrases(protocol_difference(figure, facts(**{"options": {"projected_length": 16}, **changed}))) == (sentence,)


def test_the_split_that_chose_the_weights_is_told():
    for source in ("lra", "nystromformer", "xformers"):
        (figure,) = [f for f in published_for("text", "softmax") if f.source.name == source]
        told = phrases(protocol_difference(figure, {"metric": SCORE, "seeds": 1, "chosen_on": "a validation split"}))
        assert told == ("weights chosen on the test split there, a validation split here",)


def test_settings_of_one_attention_go_before_those_of_the_task():
    images = {f.attention: f.protocol for f in figures(task="pixels", metric=SCORE) if f.source.name == "lra"}
    assert (images["softmax"].dim, images["performer"].dim, images["longformer"].depth) == (32, 128, 4)
    fourth = {
        f.task: f.options["projected_length"] for f in figures(attention="linformer", metric=SCORE) if f.source.name == "xformers"
    }
    assert fourth == {"listops": 512, "text": 1024, "retrieval": 1024, "pixels": 256, "pathfinder": 256}
