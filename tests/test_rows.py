"""Grammar of rows: rows are parsed, typed by the entry's options and printed again; errors name the faulty part."""

from __future__ import annotations

import subprocess
import sys

import pytest

from attn_zoo.contract import UnknownNameError
from attn_zoo.registry import attentions
from attn_zoo.rows import RowName, hyperparameters, read_rows, rows_of, split


@pytest.mark.parametrize(
    ("text", "attention", "implementation", "options"),
    [
        ("softmax", "softmax", "auto", {}),
        ("softmax:sdpa", "softmax", "sdpa", {}),
        ("linformer[projected_length=64]", "linformer", "auto", {"projected_length": 64}),
        ("linformer:sdpa[projected_length=64,frozen=true]", "linformer", "sdpa", {"projected_length": 64, "frozen": True}),
        ("linear[feature_map=squared_relu]", "linear", "auto", {"feature_map": "squared_relu"}),
        ("performer[features=16,orthogonal=false]", "performer", "auto", {"features": 16, "orthogonal": False}),
    ],
)
def test_a_row_is_read_typed_and_printed_as_it_was_written(text, attention, implementation, options):
    (row,) = rows_of(text)
    assert (row.attention, row.implementation, dict(row.options)) == (attention, implementation, options)
    assert [type(value) for value in row.options.values()] == [type(value) for value in options.values()]
    assert str(row) == text


HYBRIDS = {
    "linformer+softmax": ("linformer+softmax", {}, "auto"),
    "3*linformer[projected_length=64]+softmax": ("3*linformer+softmax", {"linformer.projected_length": 64}, "auto"),
    "softmax:eager+2*linformer:sdpa": ("softmax+2*linformer", {}, "eager+sdpa"),
    "linformer:eager+softmax:eager": ("linformer+softmax", {}, "eager"),
    "linformer+softmax+2*linformer": ("linformer+softmax+2*linformer", {}, "auto"),
}


@pytest.mark.parametrize("text", HYBRIDS)
def test_a_hybrid_is_read_typed_and_printed_as_it_was_written(text):
    (row,) = rows_of(text, hybrids=True)
    assert (row.attention, dict(row.options), row.implementation) == HYBRIDS[text]
    assert str(row) == text and row.is_hybrid
    assert [str(part) for part in row.parts()] == list(dict.fromkeys(str(layer) for layer in row.layers(8)))


def test_layers_take_the_mechanisms_of_a_hybrid_in_turn():
    (row,) = rows_of("2*linformer[projected_length=8]+softmax", hybrids=True)
    assert [layer.attention for layer in row.layers(5)] == ["linformer", "linformer", "softmax", "linformer", "linformer"]
    assert [dict(layer.options) for layer in row.layers(3)] == [{"projected_length": 8}] * 2 + [{}]
    assert [layer.attention for layer in RowName("linformer").layers(2)] == ["linformer"] * 2
    with pytest.raises(ValueError, match=r"needs at least 3 layers with weights of their own, but the network has 2"):
        row.layers(2)


def test_one_hybrid_has_one_name():
    same = [
        "2*linformer+softmax",
        "linformer+linformer+softmax",
        "1*linformer+ linformer + softmax",
        "2*linformer+softmax" + "+2*linformer+softmax",
    ]
    assert {str(row) for text in same for row in rows_of(text, hybrids=True)} == {same[0]}
    again = "linformer[projected_length=8]+softmax+2*linformer+softmax"
    assert str(rows_of(again, hybrids=True)[0]) == "linformer[projected_length=8]+softmax+2*linformer[projected_length=8]+softmax"
    several = rows_of("linformer[projected_length=8|16]+softmax,softmax", hybrids=True)
    assert [str(row) for row in several] == [
        "linformer[projected_length=8]+softmax",
        "linformer[projected_length=16]+softmax",
        "softmax",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linformer+softmaks", "no attention is called 'softmaks'; did you mean 'softmax'"),
        ("linformer[projected_lenght=8]+softmax", "no option of attention linformer is called 'projected_lenght'; did you mean"),
        ("linformer+linformer", "all layers of 'linformer\\+linformer' are linformer. Write linformer"),
        (
            "linformer[projected_length=8]+softmax+linformer[projected_length=9]",
            "linformer must have the same options in all layers",
        ),
        ("2*linformer", "a configuration must be written NAME, .* such as 3\\*linformer\\+softmax; got '2\\*linformer'"),
        ("0*linformer+softmax", "got '0\\*linformer'"),
        ("linformer+", "a configuration must be written NAME, "),
        ("linformer*2+softmax", "got 'linformer\\*2'"),
    ],
)
def test_what_is_no_hybrid_is_refused_by_name(text, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        rows_of(text, hybrids=True)


def test_commands_on_one_mechanism_refuse_a_hybrid():
    with pytest.raises(ValueError, match=r"linformer\+softmax is a hybrid. Name linformer and softmax separately"):
        rows_of("linformer+softmax")
    for options, implementation, message in [
        ({"projected_length": 8}, "auto", "no option of the hybrid linformer\\+softmax is called 'projected_length'"),
        ({}, "eager+eager+eager", "must have one implementation for all of its 2 mechanisms"),
    ]:
        with pytest.raises((ValueError, UnknownNameError), match=message):
            RowName("linformer+softmax", options, implementation).parts()


def test_spaces_and_quotes_are_no_part_of_a_row():
    (row,) = read_rows(" linformer : sdpa [ projected_length = 64 , projected_lengths = '64,32' ] ".replace(" [", "["))
    assert str(row) == 'linformer:sdpa[projected_length=64,projected_lengths="64,32"]'
    strange = RowName("a", {"text": 'it\'s "so" [1|2], a\\b'})
    assert read_rows(str(strange)) == [strange]


def test_every_mechanism_is_a_row_under_its_name():
    assert [str(row) for row in rows_of(attentions())] == list(attentions())


def test_a_list_holds_rows_between_commas_and_alternatives_within_one():
    rows = rows_of("softmax,linformer[projected_length=16|64],longformer[window=5|9,global_tokens=0]")
    assert [str(row) for row in rows] == [
        "softmax",
        "linformer[projected_length=16]",
        "linformer[projected_length=64]",
        "longformer[window=5,global_tokens=0]",
        "longformer[window=9,global_tokens=0]",
    ]
    assert rows == rows_of(map(str, rows))
    assert hyperparameters(rows) == [None, "projected_length", "projected_length", "window", "window"]


def test_a_curve_is_along_one_option_of_one_mechanism_and_implementation():
    assert hyperparameters(rows_of("linformer,linformer[projected_length=8]")) == ["projected_length"] * 2
    assert hyperparameters(rows_of("linformer:eager,linformer:sdpa")) == [None, None]
    assert hyperparameters(rows_of("linformer[projected_length=8|16,frozen=true|false]")) == [None] * 4


def test_parts_of_a_list_are_those_outside_brackets_and_quotes():
    assert split("") == [] and split("a") == ["a"]
    assert split("a[b=1,c=2], d['x,]'] ,e") == ["a[b=1,c=2]", "d['x,]']", "e"]
    assert split("1|'2|3'", "|") == ["1", "'2|3'"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linfromer", "no attention is called 'linfromer'; did you mean 'linformer'?"),
        ("linformer:spda", "no implementation of linformer is called 'spda'; did you mean 'sdpa'?"),
        ("linformer[projected_lenght=8]", "no option of attention linformer is called 'projected_lenght'; did you mean"),
        ("linformer[projected_length=many]", "attention linformer, option projected_length must be an integer; got 'many'"),
        (
            "linear[feature_map=sin]",
            "attention linear, option feature_map must be one of elu, relu, squared_relu, softmax; got 'sin'",
        ),
        ("longformer[window=4]", "Write 5 to see 2 positions on either side"),
        ("linformer[projected_length=8", "brackets and quotes must come in pairs; got 'linformer[projected_length=8'"),
        ("linformer]", "brackets and quotes must come in pairs"),
        ("linformer['a]", "brackets and quotes must come in pairs"),
        ("linformer[projected_length=8]x", "a configuration must be written NAME, NAME:IMPLEMENTATION or"),
        ("linformer:", "a configuration must be written NAME"),
        (":sdpa", "a configuration must be written NAME"),
        ("a,,b", "a configuration must be written NAME"),
        ("linformer[8]", "options in brackets must be written OPTION=VALUE, separated by commas; got '8' in 'linformer[8]'"),
        ("linformer[projected_length=]", "options in brackets must be written OPTION=VALUE"),
        ("linformer[projected_length=8,projected_length=9]", "projected_length is given twice"),
        ("linformer[projected_length=8|]", "there must be a value on both sides of each '|'"),
        ('linformer[projected_lengths="8\\x"]', "must be valid JSON"),
        ("softmax,softmax", "softmax is named twice"),
        ("linformer[projected_length=8,frozen=true],linformer[frozen=true,projected_length=8]", "is named twice"),
        ("", "at least one configuration must be named"),
    ],
)
def test_what_is_no_row_is_refused_by_name(text, message):
    with pytest.raises((ValueError, LookupError)) as refused:
        rows_of(text)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_command_of_plain_forms_takes_no_implementation():
    with pytest.raises(ValueError, match=r"linformer:sdpa: all are plain here. Leave out :sdpa"):
        rows_of("softmax,linformer:sdpa", plain="all are plain here")


def test_rows_are_printed_without_pytorch():
    code = "import sys, attn_zoo.rows as rows; print(*rows.read_rows('a:b[c=1|2]')); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "a:b[c=1] a:b[c=2]\n", done.stderr
