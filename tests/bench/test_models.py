"""Whole models are timed before and after a mechanism is put in, in pairs, and reported by their quotients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_zoo.bench import session
from attn_zoo.bench.experiments.models import build_model
from attn_zoo.cli import main
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.rows import RowName

TINY = ["image=32", "length=24", "depth=1", "tokens=20", "rounds=2"]


class InProcess:
    """A worker whose object lives in this process, for speed."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, bounded: bool) -> None:
        self.served = make(*arguments)

    def ask(self, method: str, *arguments: Any, limit: float | None) -> Any:
        return getattr(self.served, method)(*arguments)

    def stop(self) -> None: ...


def measured(tmp_path: Path, *words: str) -> tuple[int, list[dict]]:  # type: ignore[type-arg]
    file = tmp_path / "models.json"
    status = main(["measure", "experiment=models", "device=cpu", *TINY, *words, f"output={file}"])
    return status, json.loads(file.read_text(encoding="utf-8"))["rows"]


def test_a_vit_is_timed_before_and_after_in_one_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(session, "Worker", InProcess)
    status, rows = measured(tmp_path, "models=[vit]")
    assert status == 0 and [row["cell"] for row in rows] == [0, 0, 1, 1] and all(row["value"] > 0 for row in rows)
    assert "| ViT-tiny of timm |        5 | softmax → linformer |" in capsys.readouterr().out


@pytest.mark.extras
def test_models_of_transformers_are_timed(tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed (extra: text)")
    monkeypatch.setattr(session, "Worker", InProcess)
    status, rows = measured(tmp_path, "models=[bert,generation]")
    assert status == 0 and len(rows) == 10 and all(row["value"] > 0 for row in rows)
    said = capsys.readouterr().out
    assert "| BERT-base of transformers" in said and "linear, recomputed → linear, recurrent state" in said
    assert "softmax, cached keys → linear, recurrent state" in said


def test_after_has_the_mechanism_and_before_has_none():
    row = RowName("linformer")
    before, after = (build_model("vit", role, row, 1, 32, 5) for role in ("before", "after"))
    counts = [sum(isinstance(part, MultiHeadAttention) for part in model.modules()) for model in (before, after)]
    assert counts == [0, 12]


@pytest.mark.extras
def test_generation_writes_equal_tokens_by_recomputing_and_from_the_state():
    pytest.importorskip("transformers", reason="transformers is not installed (extra: text)")
    torch.manual_seed(0)
    before = build_model("generation", "before", RowName("linear"), 1, 32, 24).double().eval()
    after = build_model("generation", "after", RowName("linear"), 1, 32, 24).double().eval()
    softmax = build_model("generation", "softmax", RowName("linear"), 1, 32, 24)
    assert [model.cached for model in (before, softmax, after)] == [False, True, True]
    assert not any(isinstance(part, MultiHeadAttention) for part in softmax.modules())
    after.load_state_dict(before.state_dict())
    ids = torch.randint(1, 1000, (1, 16))
    found, expected = after(ids), before(ids)
    assert found.shape == (1, 24) and torch.equal(found, expected)
