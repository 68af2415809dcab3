"""Code inside sentences: every command, row and setting that a page or docstring shows is accepted.

Not run: calls inside sentences, which are signatures with placeholders such as ``layer.resize_length(n)``; commands that name their
subcommand only; and names of a reader's own plugins. Code blocks are run by ``test_code_blocks.py``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from markdown_it import MarkdownIt
from shown_commands import PAGES, ROOT, wrong_command

from attn_zoo import MultiHeadAttention, registry
from attn_zoo.bench.experiments import EXPERIMENTS
from attn_zoo.cli.main import COMMANDS
from attn_zoo.cli.run import plan
from attn_zoo.cli.transplant import Keys
from attn_zoo.contract import AttentionCard, Capabilities, Stream, TaskCard, TaskSpec
from attn_zoo.integrations.timm import TimmAttention
from attn_zoo.rows import rows_of

PLACES = {"COMMAND": "list", "ROW": "softmax", "NAME": "linformer", "N": "2", "<name>": "linformer"}
"""Words in capitals that stand for what a reader writes there."""
OWN = re.compile(r"\bmy_(task|attention)\b|mine(\.py|\b)")
"""Names of a reader's own plugin, which is not installed here; ``test_tutorials.py`` and ``test_new.py`` make them."""
ROW = re.compile(r"[a-z_0-9+*|:]+\[[^\[\]]+\]")
SETTING = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=\S+")
OF_OTHERS = {
    **dict.fromkeys(["dynamic_img_size", "gated"], "an argument of timm"),
    **dict.fromkeys(
        ["attention_dropout", "use_cache", "output_attentions", "trust_remote_code", "use_safetensors"], "of transformers"
    ),
    **dict.fromkeys(["create_graph", "dtype", "use_reentrant"], "of PyTorch"),
    **dict.fromkeys(["ddp_find_unused_parameters", "local_lock", "callback"], "of a launcher"),
    **dict.fromkeys(["plugin", "implementation", "experiment", "launch"], "of a command"),
}
"""Settings that belong to no dataclass of the zoo, and whose they are."""


def inline(page: Path) -> Iterator[str]:
    """Yield the code inside the sentences of a page."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        yield from (child.content for child in token.children or () if child.type == "code_inline")


def quoted() -> Iterator[tuple[str, str]]:
    """Yield every code inside a sentence, with the name of the page or module."""
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        yield from ((code.replace("\\|", "|"), page.name) for code in inline(page))
    for path in sorted((ROOT / "attn_zoo").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from ((code, path.name) for code in re.findall(r"(?<!`)``([^`]+)``(?!`)", node.value))


CODE = dict(sorted(quoted(), reverse=True))
COMMAND_LINES = [code for code in CODE if code.startswith("attn-zoo ") and len(code.split()) > 2 and not OWN.search(code)]
ROWS = [code for code in CODE if ROW.fullmatch(code) and code.partition("[")[0].partition(":")[0] in registry.attentions()]
SETTINGS = [code for code in CODE if SETTING.match(code) and not OWN.search(code) and CODE[code].endswith(".md")]


@cache
def known_settings() -> set[str]:
    """Names of all settings: of commands, networks, budgets, attentions, tasks, experiments, layers and cards."""
    (job,) = plan(["attention=softmax", "task=digits"]).jobs
    groups: dict[str, Any] = {"model": job.spec.model, "budget": job.spec.budget}
    names = {f"{group}.{field.name}" for group, part in groups.items() for field in fields(part)}
    names |= {f.name for part in groups.values() for f in fields(part)} | {f.name for f in fields(job.spec)}
    for group, entries in (
        ("attention", map(registry.card, registry.attentions())),
        ("task", map(registry.task_card, registry.task_names())),
    ):
        options = {field.name for card in entries for field in fields(card.options)}
        names |= options | {f"{group}.{name}" for name in options}
        names |= {f"attention.{name}.{option}" for name in registry.attentions() for option in options if group == "attention"}
    cards = (AttentionCard, Capabilities, Stream, TaskCard, TaskSpec)
    names |= {field.name for kind in (*EXPERIMENTS.values(), Keys, *cards) for field in fields(kind)}
    names |= set(inspect.signature(MultiHeadAttention).parameters) | set(inspect.signature(TimmAttention).parameters)
    return names | {"trials", "workers", "threads", "restarts", "records", "report", "data.root", "level", "output"}


def test_what_is_shown_is_found():
    assert len(COMMAND_LINES) > 20 and len(ROWS) > 3 and len(SETTINGS) > 50


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_in_a_sentence_is_accepted(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [PLACES.get(word, word) for word in line.replace("...", "").split()]
    assert words[1] in COMMANDS
    if words[1] in ("run", "measure") and not any("=" in word for word in words):
        pytest.skip("the sentence names the command only")
    if words[1] == "run" and "task=" not in line and "experiment=" not in line:
        words.append("task=digits")
    reason = wrong_command(" ".join(words)) if words[1] not in ("tune", "transplant") else None
    left_out = re.search(r"arguments are required|expected one argument|with --", capsys.readouterr().err)
    assert reason is None or reason == "SystemExit: 0" or left_out or "GPU" in reason, reason


@pytest.mark.parametrize("row", ROWS)
def test_a_row_in_a_sentence_can_be_built(row):
    for one in rows_of(row):
        with torch.device("meta"):
            layer = MultiHeadAttention(64, 4, one.attention, length=1024, implementation=one.implementation, **one.options)
        assert layer.mechanism.card.name == one.attention


@pytest.mark.parametrize("code", SETTINGS)
def test_a_setting_in_a_sentence_exists(code):
    known = known_settings() | OF_OTHERS.keys()
    for name in (found[1] for found in map(SETTING.fullmatch, code.split(" ")) if found):
        prefix = name.partition(".")[0]
        assert name in known or prefix in ("tuning", "launcher", "tracking", "weights", "checkpoint"), f"{CODE[code]}: {name}"
