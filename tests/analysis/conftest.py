"""Models for analyses: small networks as a run saves them, and a small language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from small_bert import save_small_bert

from attn_zoo.analysis.text import default_text
from attn_zoo.encoder import build_paired_model
from attn_zoo.encoder.weights import save_weights
from attn_zoo.records import ModelSpec, RunSpec
from attn_zoo.registry import build_task, card, task_card


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Callable[[str], Path]:
    """Function from the name of a task to a file with the initial weights of a softmax network for it."""
    place = tmp_path_factory.mktemp("saved")

    def file(name: str) -> Path:
        task, version = build_task(name), card("softmax").version
        spec = RunSpec("softmax", name, model=ModelSpec(dim=16, depth=2, heads=2, mlp_ratio=2.0), attention_version=version)
        model = build_paired_model(task.spec, seed=1, attention="softmax", options={}, **asdict(spec.model))
        facts = {"spec": spec.to_dict(), "task_version": task_card(name).version, "step": 0}
        save_weights(model, place / f"{name}.safetensors", facts)
        return place / f"{name}.safetensors"

    return file


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("transformers", reason="the extra 'text' is not installed")
    return save_small_bert(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture
def text(tmp_path) -> Path:
    """File with a few sentences."""
    path = tmp_path / "data" / "words.txt"
    path.parent.mkdir()
    path.write_text(default_text()[0][:800], encoding="utf-8")
    return path
