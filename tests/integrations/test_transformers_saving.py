"""Saved and loaded: what the folder says, what is refused, and training with transformers' own Trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_transformers as tiny
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from attn_zoo import UnsupportedError
from attn_zoo.analysis.sources import load_subject
from attn_zoo.integrations.transformers import from_pretrained, replace_attention, zoo_layers
from attn_zoo.transplant.encoder import load_teacher


def classifier(**options: Any) -> Any:
    torch.manual_seed(0)
    config = tiny.build("bert", **options).config
    return transformers.BertForSequenceClassification(config).eval()


def saved(model: Any, folder: Path) -> dict[str, Any]:
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def rewrite(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["attn_zoo"]["replacements"][0].update(changes)
    file.write_text(json.dumps(config), encoding="utf-8")


def test_the_configuration_says_what_was_replaced(tmp_path):
    model = replace_attention(classifier(), "linformer", projected_length=4, sharing="layerwise")
    config = saved(replace_attention(model, "luna", layers=[1], packed_length=3), tmp_path)
    first, second = config["attn_zoo"]["replacements"]
    assert first["attention"] == "linformer" and first["options"] == {"projected_length": 4, "sharing": "layerwise"}
    assert second["layers"] == [1] and second["length"] == 24 and config["architectures"] == ["BertForSequenceClassification"]
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}


def test_numbers_that_a_rule_of_length_gave_are_saved(tmp_path):
    config = saved(replace_attention(classifier(), "linformer"), tmp_path)
    assert config["attn_zoo"]["replacements"][0]["options"] == {"projected_length": 6}  # a quarter of 24 tokens


@pytest.mark.parametrize("kind", [transformers.AutoModelForSequenceClassification, transformers.BertForSequenceClassification])
def test_a_loaded_model_is_the_saved_one(kind, tmp_path):
    model = replace_attention(classifier(), "linformer", projected_length=4, sharing="layerwise")
    replace_attention(model, "luna", layers=[1], packed_length=3)
    nn.init.normal_(tiny.mechanisms(model)[1].packed_query)
    before, batch = saved(model, tmp_path / "once"), tiny.inputs("bert", "right")
    loaded = from_pretrained(kind, tmp_path / "once")
    assert type(loaded) is transformers.BertForSequenceClassification and not loaded.training
    assert [layer.card.name for layer in zoo_layers(loaded)] == ["linformer", "luna"]
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert saved(loaded, tmp_path / "twice") == before and before["attn_implementation"] == "attn_zoo"
    again = from_pretrained(kind, tmp_path / "twice")
    assert torch.equal(again(**batch).logits, model(**batch).logits)


def test_the_encoder_of_a_saved_classifier_loads_alone(tmp_path):
    model = replace_attention(classifier(), "performer", features=8)
    model.save_pretrained(tmp_path)
    encoder, batch = from_pretrained(transformers.AutoModel, tmp_path), tiny.inputs("bert")
    assert torch.equal(encoder(**batch)[0], model.bert(**batch)[0])


def test_the_type_and_the_shards_are_transformers_own_affair(tmp_path):
    model = replace_attention(classifier(), "linformer", projected_length=4)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    half = from_pretrained(transformers.AutoModel, tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert torch.isfinite(half(**tiny.inputs("bert"))[0]).all()


def test_a_tied_decoder_comes_back(tmp_path):
    model, batch = replace_attention(tiny.build("gpt2"), "longformer"), tiny.inputs("gpt2")
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(transformers.AutoModelForCausalLM, tmp_path)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight and loaded.generation_config.use_cache is False
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_a_plugin_that_is_missing_is_named(tmp_path):
    saved(replace_attention(classifier(), "linear"), tmp_path)
    rewrite(tmp_path, attention="lineal", origin="shiny_attention.core:Lineal")
    with pytest.raises(UnsupportedError, match=r"'lineal' of shiny_attention, which is not installed.*did you mean 'linear'"):
        from_pretrained(transformers.AutoModel, tmp_path)


def test_another_version_of_a_mechanism_is_refused(tmp_path):
    config = saved(replace_attention(classifier(), "linear"), tmp_path)
    assert config["attn_zoo"]["replacements"][0]["attention_version"] == 1
    rewrite(tmp_path, attention_version=7)
    with pytest.raises(UnsupportedError, match=r"needs version 7 of linear, but this attn-zoo has version 1. .* that saved it"):
        from_pretrained(transformers.AutoModel, tmp_path)


def counted(mechanism: Any) -> int:
    """Return the number of training calls since the mechanism last drew its features."""
    calls: int = mechanism.training_calls.item()
    return calls


def test_the_counter_of_redraws_is_saved_and_loaded(tmp_path):
    model = replace_attention(classifier(), "performer", redraw=3)
    model.train()(**tiny.inputs("bert"))
    saved(model, tmp_path)
    assert [counted(layer) for layer in zoo_layers(from_pretrained(transformers.AutoModel, tmp_path))] == [1, 1]


def test_what_does_not_fit_is_refused(tmp_path):
    plain, odd, other, cut = (tmp_path / name for name in ("plain", "odd", "other", "cut"))
    classifier().save_pretrained(plain)
    with pytest.raises(UnsupportedError, match="must describe a replaced attention"):
        from_pretrained(transformers.AutoModel, plain)
    saved(replace_attention(classifier(), "luna"), odd)
    rewrite(odd, colour="red")
    with pytest.raises(UnsupportedError, match=r"cannot be read: .*colour"):
        from_pretrained(transformers.AutoModel, odd)
    config = saved(replace_attention(classifier(), "luna"), other)
    (other / "config.json").write_text(json.dumps({**config, "attn_zoo": {**config["attn_zoo"], "version": 7}}), encoding="utf-8")
    with pytest.raises(UnsupportedError, match=r"must have version 1; got 7"):
        from_pretrained(transformers.AutoModel, other)
    saved(replace_attention(classifier(), "luna"), cut)
    weights = load_file(cut / "model.safetensors")
    del weights["bert.encoder.layer.1.attention.self.zoo.mechanism.packed_query"]
    save_file(weights, cut / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedError, match=r"missing .*1.attention.self.zoo.mechanism.packed_query"):
        from_pretrained(transformers.AutoModel, cut)


def with_code(folder: Path) -> Path:
    """Add code to a folder of a model, which writes a file where it runs, and name it in every configuration."""
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\nraise SystemExit\n")
    for name in ("config.json", "tokenizer_config.json"):
        file = folder / name
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        kinds = ("AutoConfig", "AutoModel", "AutoTokenizer", "AutoModelForSequenceClassification")
        config |= {
            "model_type": "evil",
            "auto_map": {kind: ["evil.Evil", None] if "Token" in kind else "evil.Evil" for kind in kinds},
        }
        file.write_text(json.dumps(config), encoding="utf-8")
    return folder


READERS: dict[str, Callable[[Path], Any]] = {
    "from_pretrained": lambda folder: from_pretrained(transformers.AutoModel, folder),
    "from_pretrained with None": lambda folder: from_pretrained(transformers.AutoModel, folder, trust_remote_code=None),
    "analyze": lambda folder: load_subject(str(folder), 1, 8),
    "transplant": lambda folder: load_teacher(str(folder), 8),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_code_in_a_folder_never_runs_and_nobody_is_asked(tmp_path, monkeypatch, read):
    def ask(*_: object) -> str:
        raise AssertionError("a question was asked")

    monkeypatch.setattr("builtins.input", ask)
    saved(replace_attention(classifier(), "luna"), tmp_path)
    with pytest.raises(ValueError, match="custom code"):
        read(with_code(tmp_path))
    assert not (tmp_path / "ran").exists()


OPTIONS = {
    "code": ({"trust_remote_code": True}, "is never run. Leave it out"),
    "no safetensors": ({"use_safetensors": False}, "format safetensors, .* Leave use_safetensors out"),
    "0 for safetensors": ({"use_safetensors": 0}, "format safetensors"),
    "another format": ({"gguf_file": "x.gguf"}, "format safetensors, .* Leave gguf_file out"),
}


@pytest.mark.parametrize(("options", "words"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_ask_for_code_are_refused(tmp_path, options, words):
    saved(replace_attention(classifier(), "luna"), tmp_path)
    with pytest.raises(UnsupportedError, match=words):
        from_pretrained(transformers.AutoModel, tmp_path, **options)


@pytest.mark.parametrize("options", [{}, {"use_safetensors": None}, {"use_safetensors": True}], ids=str)
def test_weights_are_read_from_safetensors_alone(tmp_path, monkeypatch, options):
    model = replace_attention(classifier(), "luna")
    saved(model, tmp_path)
    assert from_pretrained(type(model), tmp_path, **options) is not None
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    with pytest.raises(OSError, match="safetensors"):
        from_pretrained(type(model), tmp_path, **options)


def test_transformers_alone_never_runs_softmax_in_its_place(tmp_path, monkeypatch):
    replace_attention(classifier(), "uniform").save_pretrained(tmp_path)
    plainly = transformers.AutoModel.from_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="needs a model whose attention attn-zoo replaced"):
        plainly(**tiny.inputs("bert"))
    monkeypatch.delitem(transformers.AttentionInterface._global_mapping, "attn_zoo")  # as in a process without attn_zoo
    with pytest.raises(ValueError, match='attn_implementation="attn_zoo"` is not supported'):
        transformers.AutoModel.from_pretrained(tmp_path)


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    """Sentences of random tokens, labelled with the parity of the first token."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> dict[str, Any]:
        ids = torch.randint(3, 30, (6 + at % 4,), generator=torch.Generator().manual_seed(at))
        ids = torch.cat([ids, ids.new_zeros(10 - len(ids))])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": int(ids[0]) % 2}


def test_the_trainer_trains_saves_and_resumes(tmp_path):
    model = replace_attention(classifier(), "linformer", projected_length=4)
    before = tiny.mechanisms(model)[0].own_maps[0].weight.detach().clone()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, save_steps=2, report_to="none", use_cpu=True,
        disable_tqdm=True, logging_steps=1, dataloader_num_workers=0,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences())
    assert trainer.train().global_step == 3
    assert not torch.equal(tiny.mechanisms(model)[0].own_maps[0].weight, before)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    fresh = replace_attention(classifier(), "linformer", projected_length=4)
    resumed = transformers.Trainer(model=fresh, args=arguments, train_dataset=Sentences())
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert losses[-1] == resumed.state.log_history[-2]["loss"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name
    loaded = from_pretrained(transformers.AutoModelForSequenceClassification, tmp_path / "checkpoint-3")
    batch = tiny.inputs("bert")
    assert torch.equal(loaded(**batch).logits, model.eval()(**batch).logits)


def test_models_of_one_configuration_are_replaced_independently(tmp_path):
    config = transformers.BertConfig(**tiny.build("bert").config.to_diff_dict())
    own, first, second = (transformers.BertModel(config).eval() for _ in range(3))
    replace_attention(first, "linear")
    replace_attention(second, "linear", layers=[0])
    batch = tiny.inputs("bert", "right")
    assert config._attn_implementation == "sdpa" and not hasattr(config, "attn_zoo")
    own(**batch)  # keeps its own attention
    for at, model in enumerate((first, second)):
        saved(model, tmp_path / str(at))
        loaded = from_pretrained(transformers.BertModel, tmp_path / str(at))
        assert [layer.card.name for layer in zoo_layers(loaded)] == [layer.card.name for layer in zoo_layers(model)]
        assert torch.equal(loaded(**batch)[0], model(**batch)[0])


def test_a_model_built_from_the_configuration_of_a_replaced_one_is_described_anew(tmp_path):
    config = replace_attention(classifier(), "linear").config
    model = replace_attention(transformers.BertForSequenceClassification(config), "linear", layers=[0])
    assert [one["layers"] for one in saved(model, tmp_path)["attn_zoo"]["replacements"]] == [[0]]
