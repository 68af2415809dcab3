"""Tables and lines that fit the terminal."""

import shlex

import pytest

from attn_zoo.terminal import COLUMNS, columns, fit, shell, table, wrap

HEAD = ["attention", "claims", "seconds", "paper"]
ROWS = [["linformer", "padding, any length and more words than there is room for in a cell", 1.5, "Wang et al. 2020"]] * 2


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_without_a_terminal_there_are_a_hundred_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert columns() == COLUMNS == 100
    monkeypatch.setenv("COLUMNS", "72")
    assert columns() == 72


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_table_fits_and_keeps_every_word(width):
    text = fit(ROWS, HEAD, right=["seconds"], width=width)
    assert widest(text) <= width
    assert {word for row in ROWS for cell in row for word in str(cell).split()} <= set(text.split())


def test_optional_columns_go_first_and_are_named():
    text = fit(ROWS, HEAD, optional=["paper", "claims"], right=["seconds"], width=50)
    assert widest(text) <= 50 and "paper" not in text.splitlines()[0] and "claims" in text.splitlines()[0]
    assert text.endswith("left out: paper (--wide shows all)")
    whole = fit(ROWS, HEAD, optional=["paper"], wide=True, width=50)
    assert "left out" not in whole and "Wang et al. 2020" in whole and len(whole.splitlines()) == 4


def test_what_is_whole_is_not_broken_while_other_text_can_be():
    text = fit(
        [["O(n k d + n w d)", "many words that can be broken at any of their spaces"]], ["time", "notes"], whole=["time"], width=40
    )
    assert widest(text) <= 40 and "O(n k d + n w d)" in text


def test_a_word_longer_than_its_column_is_broken_rather_than_the_line():
    assert widest(fit([["a" * 70, "b" * 70]], ["one", "two"], width=80)) <= 80


def test_facts_need_no_head_and_false_stays_false():
    assert fit([["dirty", "False"], ["threads", 1]], width=80) == "dirty    False\nthreads  1"
    assert fit([], ["one", "two"], width=80).split() == ["one", "two", "---", "---"]


def test_notes_are_wrapped_beneath_their_words():
    note = "- " + "a note of many words " * 5
    lines = wrap(f"{note}\nshort", 40).splitlines()
    assert widest("\n".join(lines)) <= 40 and lines[-1] == "short"
    assert all(line.startswith("  ") for line in lines[1:-1])


def test_a_meaning_is_wrapped_beneath_itself():
    lines = wrap("  key=1   a meaning of many words, too many for the line", 30).splitlines()
    assert len(lines) > 1 and all(line.startswith(" " * 10) for line in lines[1:])


def test_a_command_of_a_shell_is_broken_between_its_words_and_stays_the_same():
    words = ["run", "a=" + "b" * 20, "c='d e f'", "g=[1,2]", "h"]
    text = shell(shlex.join(words), width=30)
    assert text.count("\n") > 1 and all(line.endswith("\\") for line in text.splitlines()[:-1])
    assert shlex.split(text.replace("\\\n", " ")) == words
    assert max(map(len, text.splitlines())) <= 30


TIMES = ["layer", "forward at 4,096 tokens (s)", "backward at 4,096 tokens (s)"]
SECONDS = [["softmax", "1.17 ± 0.00", "7.04 ± 0.01"], ["linformer", "0.41 ± 0.00", "-"]]


@pytest.mark.parametrize("width", [40, 100])
def test_a_table_of_figures_fits_with_its_figures_whole_and_on_the_right(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = table(TIMES, SECONDS)
    assert widest(text) <= width
    assert {"1.17 ± 0.00", "7.04 ± 0.01", "0.41 ± 0.00"} <= {cell.strip() for cell in text.replace("\n", "  ").split("  ")}
    assert text.splitlines()[-1].startswith("linformer ") and text.splitlines()[-1].endswith("    -")


def test_a_table_of_figures_for_a_file_is_markdown_however_wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    head, rule, *rows = table(TIMES, SECONDS, "github").splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")] == TIMES and set(rule) == set("|-")
    assert len(rows) == 2 and rows[1].endswith(" - |")


def test_a_table_too_wide_for_its_words_is_divided_with_its_first_columns_repeated(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    head = ["layer", "direction", *(f"figure {at}" for at in range(9))]
    text = table(head, [["softmax[a=1]", "forward", *["1,234.5 ± 6.7"] * 9]] * 2, left=(0, 1))
    assert widest(text) <= 60 and text.count("1,234.5 ± 6.7") == 18 and text.count("figure") == 9
    parts = text.split("\n\n")
    assert len(parts) > 1 and all(part.startswith("layer") and part.count("softmax[a=1]  forward") == 2 for part in parts)


def test_a_table_with_numbers_breaks_no_word_and_is_divided_only_if_it_must_be():
    """Numbers are wrapped at spaces first; columns in ``whole`` are not."""
    head, row = ["layer", *(f"figure {at}" for at in range(3))], ["negative_eigenvalues", *["1,234.5 ± 6.7"] * 3]
    wrapped = fit([row], head, right=head[1:], width=50)
    assert widest(wrapped) <= 50 and "\n\n" not in wrapped and "negative_eigenvalues" in wrapped
    for divided in (fit([row], head, right=head[1:], width=30), fit([row], head, right=head[1:], whole=head[1:], width=50)):
        parts = divided.split("\n\n")
        assert widest(divided) <= 50 and len(parts) > 1 and all("negative_eigenvalues  " in part for part in parts)


def test_a_table_whose_numbers_were_all_left_out_is_one_part():
    text = fit([["word " * 12, "1,234.5"]], ["text", "figure"], right=["figure"], optional=["figure"], width=20)
    assert "left out: figure" in text and "word" in text and "1,234.5" not in text
