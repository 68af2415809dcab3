"""The page of an attention, from its card, its docstrings and what was measured of it."""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attn_zoo.bench.tables import binary, decimal
from attn_zoo.contract import AttentionCard, Capabilities, Cost, Geometry
from attn_zoo.count import activation_bytes
from attn_zoo.leaderboard.metrics import estimated, figure, score, unit
from attn_zoo.recommend.text import rule
from attn_zoo.registry import attention_options, attentions, card
from zoo_pages.families import families
from zoo_pages.findings import spent, told
from zoo_pages.papers import cited
from zoo_pages.results import Results, shown_sets
from zoo_pages.templating import render
from zoo_pages.texts import docstring, field_docs, options, prose, table

LENGTHS = (512, 1024, 4096, 16384)
HEADS, HEAD_DIM = 4, 64

_IMPLEMENTATIONS = {
    "eager": "plain PyTorch; runs everywhere",
    "tiled": "plain PyTorch in blocks that fit the caches of a CPU; needs a CPU",
    "sdpa": "PyTorch's `scaled_dot_product_attention`, whose fused kernels store no attention weights; runs everywhere",
    "flex": "PyTorch's FlexAttention, compiled for the pattern; needs a GPU",
    "xformers": "the kernels of the package xformers; need a GPU and the package",
    "fla": "Triton kernels of flash-linear-attention, in bfloat16; need a GPU and the extra `gpu`",
    "triton": "our own Triton kernels, in `attn_zoo/kernels`; need a GPU and Triton",
}
_CLAIM_NAMES = {
    "causal": "causal",
    "key_padding": "padding",
    "cross": "cross-attention",
    "any_length": "any length",
    "shorter": "shorter inputs",
    "exact": "exact",
    "random_at_build": "random when built",
    "shares_query_key": "shared queries and keys",
    "stepwise": "stepwise",
    "mixes_heads": "mixes heads",
}
_REFUSABLE = frozenset(["causal", "key_padding", "cross", "any_length", "stepwise"])
"""Claims to which there is a request that fails without them."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Place of a method ``definition``."""

    file: str
    """Relative to the folder of the page."""
    name: str
    """Qualified by its class."""


@dataclass(frozen=True, slots=True)
class Use:
    """Commands that concern an attention, and Python that builds it."""

    commands: tuple[tuple[str, str], ...]
    """With what each does."""
    python: str


def attention_page(name_: str, results: Results, folder: Path) -> str:
    """Markdown of one attention's page.

    Args:
        folder: where the page will lie, to reach the source file from.
    """
    entry = card(name_)
    module = sys.modules[entry.build.__module__]
    lead = " ".join((module.__doc__ or "").split())
    own_limit = entry.softmax_limit is not None and entry.softmax_limit.__doc__
    return render(
        "attention.md.j2",
        card=entry,
        lead=lead,
        paper=prose(entry.paper),
        cited=cited(entry.paper),
        equation=prose(entry.equation),
        doc=docstring(entry.build),
        definition=_definition(entry, folder),
        options=options(entry.options),
        claims=_claims(entry),
        abilities=told(results.abilities, name_, causal=entry.can.causal) if _ran(results, name_) else [],
        rule=rule(),
        spent=spent(name_, results.abilities),
        cost=_cost_tables(entry),
        states_cost=" ".join((entry.cost.__doc__ or "").split()),
        heads=HEADS,
        head_dim=HEAD_DIM,
        implementations=[(i, _IMPLEMENTATIONS[i]) for i in entry.implementations],
        limit=prose(" ".join(str(entry.softmax_limit.__doc__).split())) if own_limit else "",
        variants=dict(entry.variants),
        crossover=results.crossover(name_),
        peers=results.peers(name_),
        speeds=results.speeds(name_),
        errors={inputs: results.errors(name_, inputs) for inputs in ("error", "error_random")},
        scores=_scores(name_, results),
        sets=shown_sets(),
        use=use(entry),
        module=entry.build.__module__,
        qualname=entry.build.__qualname__,
        source=os.path.relpath(str(module.__file__), folder),
        source_name=entry.build.__module__.replace(".", "/") + ".py",
    )


def _ran(results: Results, name: str) -> bool:
    """Tell whether the profile has a row of a mechanism."""
    return any(name in ability.rows for ability in results.abilities)


def _definition(entry: AttentionCard, folder: Path) -> Definition | None:
    """Place of the method ``definition``, which a base class may hold; None where there is none."""
    found = entry.build.definition
    if found is None:
        return None
    found = inspect.unwrap(found)
    return Definition(os.path.relpath(inspect.getfile(found), folder), found.__qualname__)


def attention_index(results: Results) -> str:
    """Markdown of the page that lists the attentions."""
    return render(
        "attentions.md.j2",
        names=attentions(),
        families=families(),
        crossover=results.crossover(),
        crossover_picture=results.picture("crossover.svg") is not None,
        error_picture=results.picture("error.svg") is not None,
    )


def use(entry: AttentionCard) -> Use:
    """Return commands for an attention, which ask for no more than its card claims."""
    beside = ",".join(dict.fromkeys(("softmax", entry.name)))
    commands = [
        (f"attn-zoo run attention={entry.name} task=digits seed=1", "train it, test it and print the leaderboard"),
        (f"attn-zoo check {entry.name}", "test every capability on its card"),
        (f"attn-zoo measure experiment=growth attention={beside}", "time and memory at several lengths on this machine"),
    ]
    if entry.name != "softmax":
        commands.append((f"attn-zoo analyze error --attention {entry.name}", "distance of the untrained mechanism to softmax"))
    causal = ", causal=True" if entry.can.causal else ""
    lines = ["import torch", "from attn_zoo import MultiHeadAttention", ""]
    lines += [f'layer = MultiHeadAttention(64, 4, "{entry.name}", length=512{causal})', "tokens = torch.randn(2, 512, 64)"]
    if entry.can.key_padding:
        lines += ["key_valid = torch.ones(2, 512, dtype=torch.bool)", "key_valid[1, 400:] = False  # padding has no influence"]
        lines += ["assert layer(tokens, key_valid=key_valid).shape == tokens.shape"]
    else:
        lines += ["assert layer(tokens).shape == tokens.shape"]
    return Use(tuple(commands), "\n".join(lines))


def _claims(entry: AttentionCard) -> str:
    words = field_docs(Capabilities)
    rows = []
    for field, title in _CLAIM_NAMES.items():
        claimed = getattr(entry.can, field)
        rows.append([title, "yes" if claimed else "unsupported" if field in _REFUSABLE else "no", words[field]])
    return table(["capability", "here", "meaning"], rows)


def _cost_tables(entry: AttentionCard) -> list[tuple[str, str]]:
    """A title and a table for each direction in time that the card claims, then the doubts at these sizes."""
    made = [("Bidirectional", _cost_table(entry, False))]
    if entry.can.causal:
        made.append(("Causal", _cost_table(entry, True)))
    return made


def _cost_table(entry: AttentionCard, causal: bool) -> str:
    rows, told = [], []
    for length in LENGTHS:
        geometry = Geometry(HEADS, HEAD_DIM, length, length, causal)
        own, whole = _cost(entry, geometry), _cost(_yardstick(), geometry)
        kept, kept_whole = _kept(entry, geometry), _kept_by_yardstick(geometry)
        line = [f"{length:,}", decimal(own.flops), _share(own.flops, whole.flops)]
        line += ["-" if own.backward_flops is None else decimal(own.backward_flops), decimal(own.parameters)]
        line += ["-" if kept is None else binary(kept), _share(kept, kept_whole or 0)]
        line += ["-" if own.state_bytes is None else binary(own.state_bytes)] if causal else []
        rows.append(line)
        told += [
            f"- at {length:,}: {prose(doubt)}" for doubt in entry.build.warnings(geometry, attention_options(entry, geometry, {}))
        ]
    head = [
        "n",
        "FLOPs forward",
        "forward, of softmax's",
        "FLOPs backward",
        "parameters",
        "saved for backward",
        "saved, of softmax's",
    ]
    head += ["state"] if causal else []
    return "\n\n".join([table(head, rows, right=head), *(["\n".join(told)] if told else [])])


@cache
def _yardstick() -> AttentionCard:
    return card("softmax")


def _kept(entry: AttentionCard, geometry: Geometry) -> int | None:
    return activation_bytes(entry, geometry, attention_options(entry, geometry, {}))


@cache
def _kept_by_yardstick(geometry: Geometry) -> int | None:
    return _kept(_yardstick(), geometry)


def _cost(entry: AttentionCard, geometry: Geometry) -> Cost:
    return entry.cost(geometry, attention_options(entry, geometry, {}))


def _share(own: int | None, whole: int) -> str:
    if own is None:
        return "-"
    return f"{100 * own / whole:,.0f} %" if own >= whole else f"{100 * own / whole:.3g} %"


def _scores(attention: str, results: Results) -> str:
    """Rows of the committed boards, each beside softmax and the best control of the same table."""
    head = ["records", "task", "row", "score", "softmax", "best control", "chance", "verdict", "seeds"]
    body = []
    for folder, board, row in results.rows_of(attention):
        baseline = next((r for r in board.rows if r.attention == "softmax" and r.test is not None), None)
        control = "-" if board.best_control is None else f"{figure(board.best_control, board)} ({board.control})"
        body.append(
            [
                f"`{folder}`",
                f"[{board.task['title']}](../task/{board.task['name']}.md){unit(board)}",
                row.name,
                score(row, board),
                "-" if baseline is None else estimated(baseline.test, board),
                control,
                "-" if board.chance is None else figure(board.chance, board),
                row.verdict or "-",
                str(len(row.seeds)),
            ]
        )
    return table(head, body, right=head[3:]) if body else ""
