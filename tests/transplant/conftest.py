"""Fixtures with a small BERT as the teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_bert import save_small_bert

from attn_zoo.transplant import Material, Setting, Teacher, gather, load_teacher

SMALL: dict[str, Any] = {"length": 24, "passages": 32, "tests": 16, "pair_count": 8, "distil_steps": 12, "tune_steps": 6}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_bert(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture(scope="session")
def teacher(folder: Path) -> Teacher:
    return load_teacher(str(folder), SMALL["length"])


@pytest.fixture(scope="session")
def setting(folder: Path) -> Setting:
    return Setting(model=str(folder), **SMALL)


@pytest.fixture(scope="session")
def material(setting: Setting, teacher: Teacher) -> Material:
    return gather(setting, teacher.tokenizer, [], [], None)
