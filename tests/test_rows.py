"""The grammar of rows: what is read is printed again, typed by the entry's options, and errors name the thing."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
        ("linformer[projected_length=many]", "attention linformer, option projected_length: Value 'many'"),
        ("linear[feature_map=sin]", "attention linear, option feature_map: Invalid value 'sin'"),
        ("longformer[window=4]", "write 5 for 2 on either side"),
        ("linformer[projected_length=8", "brackets and quotes of a row stand in pairs; got 'linformer[projected_length=8'"),
        ("linformer]", "brackets and quotes of a row stand in pairs"),
        ("linformer['a]", "brackets and quotes of a row stand in pairs"),
        ("linformer[projected_length=8]x", "a row is NAME, NAME:IMPLEMENTATION or"),
        ("linformer:", "a row is NAME"),
        (":sdpa", "a row is NAME"),
        ("a,,b", "a row is NAME"),
        ("linformer[8]", "options of a row are OPTION=VALUE with commas between them; got '8' in 'linformer[8]'"),
        ("linformer[projected_length=]", "options of a row are OPTION=VALUE"),
        ("linformer[projected_length=8,projected_length=9]", "option projected_length is given twice"),
        ("linformer[projected_length=8|]", "a value is missing between '|'"),
        ('linformer[projected_lengths="8\\x"]', "written as in JSON"),
        ("softmax,softmax", "softmax is named twice"),
        ("", "name at least one row"),
    ],
)
def test_what_is_no_row_is_refused_by_name(text, message):
    with pytest.raises((ValueError, LookupError)) as refused:
        rows_of(text)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_command_of_plain_forms_takes_no_implementation():
    with pytest.raises(ValueError, match="linformer:sdpa: all are plain here; leave :sdpa away"):
        rows_of("softmax,linformer:sdpa", plain="all are plain here")


def test_rows_are_printed_without_pytorch():
    code = "import sys, attn_zoo.rows as rows; print(*rows.read_rows('a:b[c=1|2]')); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "a:b[c=1] a:b[c=2]\n", done.stderr
