"""Tables of ``docs/reports/linformers-heirs.md``: Linformer beside later mechanisms that compress along the length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from committed import profile_boards
from tabulate import tabulate

from attn_zoo.bench.tables import binary
from attn_zoo.contract import AttentionCard, Cost, Geometry, length_rules
from attn_zoo.leaderboard import Row, Table
from attn_zoo.leaderboard.metrics import score, unit
from attn_zoo.leaderboard.table import shown_rows, titles
from attn_zoo.registry import attention_options, card

LENGTHS = (512, 4096, 16384)
HEADS, HEAD_DIM = 4, 64


@dataclass(frozen=True, slots=True)
class Compression:
    """How a mechanism compresses; tests hold every statement to the mechanism."""

    made: str
    """Content of a compressed row."""
    by_order: bool
    """True if the order of the tokens decides which row they enter, or with which weight."""
    by_content: bool
    """True if the weights of values in a row depend on queries, keys or the streams of the keys."""
    seen: str
    """Tokens that a query sees if it may see all."""
    seen_causally: str = "no causal form"


_ROWS = "rows whose tokens are all past, and a window of tokens up to itself"
HEIRS: Mapping[str, Compression] = {
    "linformer": Compression("k weighted sums of all tokens, whose weights are learned per position", True, False, "all k rows"),
    "linformer_causal": Compression(
        "k weighted sums of each block of c tokens, with the same learned weights for every block",
        True,
        False,
        "the tokens of its block, and the rows of the other blocks",
        "the tokens of its block up to itself, and the rows of earlier blocks",
    ),
    "luna": Compression(
        "l sums of all tokens, weighted by their scores with l learned queries",
        False,
        True,
        "all l rows",
        "all l rows, of the tokens up to itself",
    ),
    "nystrom": Compression(
        "m averages of the values, weighted by the scores of the keys with means of m segments of the queries",
        True,
        True,
        "all m rows, through means of m segments of the keys",
    ),
    "length_compression": Compression(
        "one average of each m tokens, weighted per channel by a map of the keys and by the place among the m",
        True,
        True,
        "all rows, and a window of tokens around itself",
        f"the {_ROWS}",
    ),
    "sparse_compression": Compression(
        "one average of 2 m tokens, every m tokens, weighted as in `length_compression`",
        True,
        True,
        "the k rows that a scorer ranks first, and a window of tokens around itself",
        f"the k that a scorer ranks first among the {_ROWS}",
    ),
}


def heirs_compression() -> str:
    """Return the table of what each mechanism compresses, by what, and who may see what."""
    rows = []
    for name, how in HEIRS.items():
        by = " and ".join(["positions"] * how.by_order + ["content"] * how.by_content)
        rows.append([_titled(card(name)), how.made, by, how.seen, how.seen_causally])
    return _table(["mechanism", "a compressed row", "compressed by", "a query sees", "causally it sees"], rows)


def heirs_cost() -> str:
    """FLOPs as shares of softmax's and bytes of the state, by the cards' formulas, at the default options for each length."""
    rows = []
    for entry in map(card, ("softmax", *HEIRS)):
        both = [_cost(entry, n, False).flops / _cost(card("softmax"), n, False).flops for n in LENGTHS]
        line = [f"`{entry.name}`", _sizes(entry), *(f"{100 * share:.3g} %" for share in both)]
        if entry.can.causal:
            past = [_cost(entry, n, True).flops / _cost(card("softmax"), n, True).flops for n in LENGTHS]
            line += [f"{100 * past[-1]:.3g} %", *(binary(_cost(entry, n, True).state_bytes or 0) for n in LENGTHS)]
        rows.append([*line, *["-"] * (3 + 2 * len(LENGTHS) - len(line))])
    head = ["mechanism", f"sizes at {LENGTHS[-1]:,}", *(f"FLOPs at {n:,}" for n in LENGTHS)]
    head += [f"causal FLOPs at {LENGTHS[-1]:,}", *(f"state at {n:,}" for n in LENGTHS)]
    return _table(head, rows, ["left", "left", *["right"] * (len(head) - 2)])


def heirs_profile() -> str:
    """Test scores of the committed profile, each row's best hyperparameters by validation."""
    made = profile_boards()
    shown = [shown_rows(table) for table in made]
    names = ["softmax", *HEIRS]
    rows = [
        [title + unit(table), *(_cell(name, rows_of, table) for name in names)]
        for title, rows_of, table in zip(titles(made), shown, made, strict=True)
    ]
    return _table(["task", *(f"`{name}`" for name in names)], rows, ["left", *["right"] * len(names)])


def _cell(name: str, rows: Mapping[str, Row], table: Table) -> str:
    if name in rows:
        return score(rows[name], table)
    return "no causal form" if table.task.get("causal") and not card(name).can.causal else "not run"


def _titled(entry: AttentionCard) -> str:
    return f"`{entry.name}` ({entry.paper.partition(',')[0].removeprefix('after ')})"


def _sizes(entry: AttentionCard) -> str:
    """Values of the options that follow the length."""
    n = LENGTHS[-1]
    options = attention_options(entry, Geometry(HEADS, HEAD_DIM, n, n), {})
    return ", ".join(f"`{name}={getattr(options, name)}`" for name in length_rules(entry.options)) or "-"


def _cost(entry: AttentionCard, n: int, causal: bool) -> Cost:
    geometry = Geometry(HEADS, HEAD_DIM, n, n, causal)
    return entry.cost(geometry, attention_options(entry, geometry, {}))


def _table(head: list[str], rows: list[list[str]], align: list[str] | None = None) -> str:
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)
