"""Fixtures with a small BERT of sharp attention and its own tokenizer, saved in a folder like a user's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attn_zoo.analysis.text import default_text
from attn_zoo.transplant import Material, Setting, Teacher, gather, load_teacher

SMALL: dict[str, Any] = {
    "length": 24,
    "passages": 32,
    "tests": 16,
    "pair_count": 8,
    "batch": 8,
    "distil_steps": 12,
    "tune_steps": 6,
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("models") / "small-bert"
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator([default_text()[0]], trainers.WordLevelTrainer(vocab_size=800, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **named).save_pretrained(place)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer.get_vocab()), max_position_embeddings=64, initializer_range=0.25, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(place)
    return place


@pytest.fixture(scope="session")
def teacher(folder: Path) -> Teacher:
    return load_teacher(str(folder), SMALL["length"])


@pytest.fixture(scope="session")
def setting(folder: Path) -> Setting:
    return Setting(model=str(folder), **SMALL)


@pytest.fixture(scope="session")
def material(setting: Setting, teacher: Teacher) -> Material:
    return gather(setting, teacher.tokenizer, [], [], None)
