"""Models for analyses: small networks as a run saves them, and a small language model as a user's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from attn_zoo.encoder import build_paired_model
from attn_zoo.encoder.weights import save_weights
from attn_zoo.records import ModelSpec, RunSpec
from attn_zoo.registry import build_task, card, task_card

WORDS = ["the", "attention", "of", "every", "head", "is", "a", "matrix", "and", "its", "rank", "low"]


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
    """Folder with a tiny BERT and a tokenizer of a few words, written by ``save_pretrained``."""
    transformers = pytest.importorskip("transformers", reason="the extra 'text' is not installed")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    place = tmp_path_factory.mktemp("models") / "tiny-bert"
    vocabulary = {word: at for at, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=24, **special).save_pretrained(place)
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, initializer_range=0.7, **sizes)
    transformers.BertModel(config).save_pretrained(place)
    return place


@pytest.fixture
def text(tmp_path) -> Path:
    """File of 150 random words."""
    path = tmp_path / "data" / "words.txt"
    path.parent.mkdir()
    generator = torch.Generator().manual_seed(0)
    path.write_text(" ".join(WORDS[at] for at in torch.randint(len(WORDS), (150,), generator=generator)), encoding="utf-8")
    return path
