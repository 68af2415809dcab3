"""Defaults that depend on the length: the papers' numbers at the papers' lengths, in layers, runs, records and lists."""

import pytest
from run_helpers import Quiet

from attn_zoo import Geometry, MultiHeadAttention, build_attention, card
from attn_zoo.cli.main import main
from attn_zoo.contract import UnknownNameError
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.registry import attention_options, stated_options
from attn_zoo.runner import resolve_spec, run


@pytest.mark.parametrize(
    ("name", "option", "length", "number"),
    [
        ("linformer", "projected_length", 512, 128),
        ("linformer", "projected_length", 4096, 256),
        ("longformer", "window", 4096, 513),
        ("bigbird", "block", 4096, 64),
        ("nystrom", "landmarks", 4096, 64),
        ("reformer", "chunk", 4096, 64),
        ("performer", "features", 4096, 272),
        ("mega", "chunk", 4096, 128),
        ("luna", "packed_length", 4096, 256),
    ],
)
def test_the_numbers_of_the_papers_stand_at_their_lengths(name, option, length, number):
    options = attention_options(card(name), Geometry(8, 64, length, length), {})
    assert getattr(options, option) == number


def test_a_given_number_goes_before_the_rule():
    assert build_attention("linformer", Geometry(2, 8, 64, 64)).options.projected_length == 16
    assert build_attention("linformer", Geometry(2, 8, 64, 64), projected_length=5).options.projected_length == 5
    assert MultiHeadAttention(16, 2, "longformer", length=64).mechanism.options.window == 17
    assert MultiHeadAttention(16, 2, "longformer", length=64, window=3).mechanism.options.window == 3


def test_cross_attention_counts_the_keys():
    assert build_attention("linformer", Geometry(2, 8, 10, 400)).options.projected_length == 100


def test_without_a_geometry_only_what_is_known_is_stated():
    assert stated_options(card("longformer"), {}) == {"dilation": 1, "global_tokens": 1, "dropout": 0.0}
    assert stated_options(card("longformer"), {"window": 9})["window"] == 9
    with pytest.raises(UnknownNameError, match="widow"):
        stated_options(card("longformer"), {"widow": 9})
    with pytest.raises(ValueError, match="odd"):
        stated_options(card("longformer"), {"window": 8})


def test_a_run_is_known_by_the_number_and_its_record_tells_the_rule():
    spec = RunSpec("linformer", "digits", model=ModelSpec(dim=16, heads=2, depth=1), budget=Budget(steps=2, batch_size=8))
    resolved = resolve_spec(spec)
    assert resolved.options["projected_length"] == 17 // 4
    assert resolve_spec(resolved) == resolved
    record = run(resolved, Quiet())
    assert record.spec.options["projected_length"] == 17 // 4
    assert record.attention_card["length_rules"] == {"projected_length": "min(256, n/4)"}


def test_the_list_shows_rule_and_numbers(capsys):
    assert main(["list", "linformer"]) == 0
    (line,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("projected_length ")]
    assert line == ["projected_length", "min(256,", "n/4)", "16", "256", "256"]
    assert main(["list", "linfromer"]) != 0
    assert "did you mean 'linformer'" in capsys.readouterr().err
