"""Transplant on a small model: softmax changes nothing, effects of distillation and tuning, test text apart from training text."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from attn_zoo.analysis.text import default_text
from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.transformers import zoo_layers
from attn_zoo.transplant import Bench, Candidate, Start, Trial, check, gather, load_teacher, swap
from attn_zoo.transplant.encoder import answers_of, embed
from attn_zoo.transplant.setting import Trains
from attn_zoo.transplant.texts import TELLING, read_in, shorten
from attn_zoo.transplant.training import distil, layer_errors, tune

LINFORMER = Candidate("linformer", {"projected_length": 6}, None, "linformer projected_length=6")
PERFORMER = Candidate("performer", {"features": 16}, None, "performer features=16")
SOFTMAX = Candidate("softmax", {}, None, "softmax")


def quiet(line: str) -> None:
    pass


def points_of(setting, teacher, material, *trials):
    return list(Bench(setting, teacher, material, trials, quiet).points())


@pytest.fixture(scope="module")
def points(setting, teacher, material):
    return points_of(setting, teacher, material, Trial(LINFORMER, Start.stretches, 1), Trial(PERFORMER, None, 1))


def test_softmax_changes_nothing(setting, teacher, material):
    still = replace(setting, distil_steps=0, tune_steps=0)
    (point,) = points_of(still, teacher, material, Trial(SOFTMAX, None, 1))
    for stage in ("swap", "distilled", "tuned"):
        assert point["stages"][stage]["spearman"] > 1 - 1e-6 and point["stages"][stage]["pearson"] > 1 - 1e-9
        assert point["stages"][stage]["cosine"] == pytest.approx(1, abs=1e-5)
        assert max(point["layer_errors"][stage]) < 2e-3, "float16 of what the teacher answered"
    cost = point["cost"]
    assert cost["attention_flops"] == cost["softmax_flops"] and cost["encoder_flops"] == cost["teacher_flops"]


def test_distillation_reduces_every_layers_error_and_raises_similarity(points):
    for point in points:
        swapped, distilled = (point["layer_errors"][stage] for stage in ("swap", "distilled"))
        assert len(swapped) == 2
        assert all(after < 0.95 * before for before, after in zip(swapped, distilled, strict=True)), point["label"]
        assert point["stages"]["distilled"]["cosine"] > point["stages"]["swap"]["cosine"]
        assert point["failed"] is None and set(point["seconds"]) == {"distilled", "tuned"}


def test_costs_of_cards_and_counter_agree(points, setting):
    linformer = points[0]["cost"]
    assert linformer["attention_flops"] / linformer["softmax_flops"] == pytest.approx(2 * 6 / setting.length)
    assert linformer["parameters"] == 2 * 2 * 6 * setting.length
    for point in points:
        cost = point["cost"]
        assert cost["teacher_flops"] - cost["softmax_flops"] == cost["encoder_flops"] - cost["attention_flops"]


def test_the_same_seed_gives_the_same_student_and_another_another(points, setting, teacher, material):
    same, other = points_of(setting, teacher, material, Trial(LINFORMER, Start.stretches, 1), Trial(LINFORMER, Start.stretches, 2))
    assert same["stages"] == points[0]["stages"] and same["layer_errors"] == points[0]["layer_errors"]
    assert other["stages"]["swap"] == same["stages"]["swap"], "stretches do not depend on the seed"
    assert other["stages"]["tuned"] != same["stages"]["tuned"]


def learned(setting, teacher, material, candidate, trains):
    student = swap(teacher, candidate, setting.length, seed=0)
    before = {name: p.detach().clone() for name, p in student.named_parameters()}
    answers = answers_of(teacher.model, material.learn)
    errors = [layer_errors(student, answers, material.learn)]
    few = replace(setting, distil_steps=8, trains=trains)
    distil(student, answers, material.learn, few, torch.Generator().manual_seed(0))
    errors.append(layer_errors(student, answers, material.learn))
    return student, {name for name, p in student.named_parameters() if not torch.equal(p, before[name])}, errors


def test_distillation_trains_what_it_says(setting, teacher, material):
    student, changed, (before, after) = learned(setting, teacher, material, LINFORMER, Trains.mechanism)
    assert changed == {f"encoder.layer.{at}.attention.self.zoo.mechanism.own_maps.0.weight" for at in range(2)}
    assert all(b < a for a, b in zip(before, after, strict=True))
    assert not student.training and not any(mechanism.training for mechanism in zoo_layers(student))
    _, changed, _ = learned(setting, teacher, material, LINFORMER, Trains.attention)
    assert {name.rpartition("self.")[2].partition(".")[0] for name in changed} == {"query", "key", "value", "zoo"}
    _, changed, (before, after) = learned(setting, teacher, material, PERFORMER, Trains.mechanism)
    assert not changed and before == after, "FAVOR+ has nothing of its own to train"


def test_distillation_trains_an_indexer_by_its_own_loss(setting, teacher, material):
    indexer = Candidate("indexer", {"kept": 3}, None, "indexer kept=3")
    _, changed, _ = learned(setting, teacher, material, indexer, Trains.mechanism)
    assert {name.rpartition(".")[2] for name in changed} == {"index_query", "index_key", "index_weight"}


def directions(student) -> torch.Tensor:
    return zoo_layers(student)[0].get_buffer("directions")


def test_features_are_drawn_anew_in_training_where_asked(setting, teacher, material):
    redrawn = Candidate("performer", {"features": 16, "redraw": 1}, None, "performer redrawn")
    for candidate, moves in ((redrawn, True), (PERFORMER, False)):
        student, _, _ = learned(setting, teacher, material, candidate, Trains.attention)
        fresh = swap(teacher, candidate, setting.length, seed=0)
        same = torch.equal(directions(student), directions(fresh))
        assert same is not moves


def test_tuning_moves_the_embedding_to_the_teachers_and_leaves_tables_and_teacher(setting, teacher, material):
    student = swap(teacher, LINFORMER, setting.length, seed=0)
    before = {name: p.detach().clone() for name, p in student.named_parameters()}
    of_teacher = {name: p.detach().clone() for name, p in teacher.model.named_parameters()}
    targets = embed(teacher.model, material.learn, trim=True)

    def gap():
        return float((1 - (embed(student, material.learn, trim=True) * targets).sum(dim=-1)).mean())

    first = gap()
    tune(student, targets, material.learn, replace(setting, tune_steps=12, tune_rate=1e-3), torch.Generator().manual_seed(0))
    assert gap() < 0.8 * first
    still = {name for name, p in student.named_parameters() if torch.equal(p, before[name])}
    assert {name for name in still if "embeddings" in name and "LayerNorm" not in name} == {
        f"embeddings.{table}_embeddings.weight" for table in ("word", "position", "token_type")
    }
    assert not any("encoder" in name and "key.bias" not in name for name in still)
    assert all(torch.equal(p, of_teacher[name]) for name, p in teacher.model.named_parameters())


def test_a_loss_that_is_no_number_is_a_point_with_its_reason(setting, teacher, material):
    wild = replace(setting, distil_rate=1e30)
    (point,) = points_of(wild, teacher, material, Trial(LINFORMER, Start.stretches, 1))
    assert "Use lower learning rates" in point["failed"] and set(point["stages"]) == {"swap"}


def test_what_is_padding_does_not_matter_and_trimming_it_changes_nothing(teacher, setting, material):
    passages = shorten(material.test, 0.5, teacher.tokenizer, torch.Generator().manual_seed(1))
    lengths = passages.valid.sum(dim=1)
    assert int((lengths < setting.length).sum()) == len(passages) // 2
    ends = passages.ids[torch.arange(len(passages)), lengths - 1]
    assert set(ends.tolist()) == {teacher.tokenizer.sep_token_id}, "a shortened passage ends as a text does"
    student = swap(teacher, LINFORMER, setting.length, seed=0)
    for model in (teacher.model, student):
        whole, trimmed = (embed(model, passages, trim=trim) for trim in (False, True))
        assert torch.allclose(whole, trimmed, atol=1e-5)
        noisy = passages.ids.masked_fill(~passages.valid, 17)
        assert torch.allclose(embed(model, replace(passages, ids=noisy), trim=False), whole, atol=1e-5)


def test_sentences_are_read_in_whole(teacher):
    passages = read_in(["a b", "if the object is a class " * 20], teacher.tokenizer, 12)
    assert passages.valid.sum(dim=1).tolist() == [4, 12] and passages.ids.shape == (2, 12)


def test_what_is_tested_on_is_not_learned_from(tmp_path, setting, teacher):
    lines = [line for line in default_text()[0].split("\n") if len(line.strip()) >= 2 * TELLING]
    tested, own = lines[:300], lines[300:1400]
    leaked = [line.upper() + " " for line in tested[::3]]
    (tmp_path / "test.txt").write_text("\n".join(tested), encoding="utf-8")
    (tmp_path / "train.txt").write_text("\n".join(own[:550] + leaked + own[550:]), encoding="utf-8")
    pair = own[10].strip()
    row = '{"sentence1": %s, "sentence2": "other words", "label": %d}\n'
    (tmp_path / "pairs.jsonl").write_text("".join(row % (json.dumps(pair), at % 2) for at in range(8)), encoding="utf-8")
    paths = [tmp_path / "train.txt"], [tmp_path / "test.txt"], tmp_path / "pairs.jsonl"
    material = gather(replace(setting, short=0.0), teacher.tokenizer, *paths)
    known = {" ".join(line.lower().split()) for line in [*tested, pair]}
    expected = sum(" ".join(line.lower().split()) in known for line in own + leaked)
    assert expected > len(leaked) and material.facts["lines_left_out"] == expected
    words = {" ".join(teacher.tokenizer.convert_ids_to_tokens(row[1:-1])) for row in material.learn.ids}
    for line in tested[::3]:
        inside = " ".join(teacher.tokenizer.tokenize(line))
        assert not any(inside in passage for passage in words)
    assert material.facts["digest"] != gather(setting, teacher.tokenizer, *paths).facts["digest"]
    with pytest.raises(ValueError, match=r"less what is tested on\) is too short"):
        gather(setting, teacher.tokenizer, paths[1], paths[1], None)


def test_without_files_pythons_reference_is_cut_in_two(material, teacher):
    assert material.facts["test"].endswith("last of 4 parts") and len(material.learn) == 32
    assert not set(map(tuple, material.learn.ids.tolist())) & set(map(tuple, material.test.ids.tolist()))


def test_passages_follow_each_other_two_by_two(material, teacher):
    plain = " ".join(teacher.tokenizer.tokenize(default_text()[0]))
    for at in range(0, len(material.test), 2):
        both = torch.cat([material.test.ids[at][1:-1], material.test.ids[at + 1][1:-1]])
        assert " ".join(teacher.tokenizer.convert_ids_to_tokens(both)) in plain


def test_candidates_are_refused_before_the_work(setting, teacher):
    fourier = Candidate("fnet", {}, None, "fnet")
    with pytest.raises(UnsupportedError, match="does not support padding, which short="):
        check(teacher, [fourier], [Start.stretches], setting, padded=False)
    assert check(teacher, [fourier], [Start.stretches], replace(setting, short=0.0), padded=False) == [False]
    with pytest.raises(UnsupportedError, match="does not support padding"):
        check(teacher, [fourier], [Start.stretches], replace(setting, short=0.0), padded=True)
    with pytest.raises(UnsupportedError, match="init= can be given only for mechanisms with the matrices"):
        check(teacher, [PERFORMER], [Start.random], setting, padded=False)
    with pytest.raises(UnsupportedError, match="must be less than the 24 keys"):
        check(teacher, [Candidate("linformer", {"projected_length": 24}, None, "l")], [Start.random], setting, padded=False)


def test_any_mechanism_goes_the_same_way(setting, teacher, material):
    short = replace(setting, distil_steps=2, tune_steps=1)
    for name, options in {"nystrom": {"landmarks": 4}, "longformer": {"window": 5, "global_tokens": 1}, "uniform": {}}.items():
        (point,) = points_of(short, teacher, material, Trial(Candidate(name, options, None, name), None, 1))
        assert point["failed"] is None and point["control"] is (name == "uniform")
        assert all(value is not None for name, value in point["stages"]["tuned"].items() if not name.startswith("pairs"))


def test_a_hybrid_starts_the_layers_with_matrices_and_costs_what_its_layers_do(setting, teacher, material, points):
    candidate = Candidate("linformer+softmax", {"linformer.projected_length": 6}, None, "linformer[projected_length=6]+softmax")
    assert check(teacher, [candidate], [Start.pooling], setting, padded=False) == [True]
    short = replace(setting, distil_steps=2, tune_steps=1)
    (point,) = points_of(short, teacher, material, Trial(candidate, Start.stretches, 1))
    assert point["failed"] is None and not point["control"] and point["moment_kept"] == points[0]["moment_kept"][:1]
    first, last = point["layer_errors"]["swap"]
    assert first == pytest.approx(points[0]["layer_errors"]["swap"][0]) and last < 2e-3 < first
    cost = point["cost"]
    assert cost["attention_flops"] / cost["softmax_flops"] == pytest.approx((2 * 6 / setting.length + 1) / 2)
    assert cost["teacher_flops"] - cost["softmax_flops"] == cost["encoder_flops"] - cost["attention_flops"]


def test_the_teacher_is_graded_too(setting, teacher, material):
    bench = Bench(replace(setting, distil_steps=0), teacher, material, [], quiet)
    reference = bench.exam.teacher
    assert reference["spearman"] == pytest.approx(1) and reference["cosine"] == pytest.approx(1)
    assert 0.5 < reference["neighbours"] <= 1 and reference["pairs_auc"] is None


def test_a_point_does_not_depend_on_what_was_drawn_before(setting, teacher, material):
    redrawn = Trial(Candidate("performer", {"features": 16, "redraw": 2}, None, "performer"), None, 1)
    (alone,) = points_of(setting, teacher, material, redrawn)
    _, later = points_of(setting, teacher, material, Trial(PERFORMER, None, 2), redrawn)
    assert later["stages"] == alone["stages"]


@pytest.mark.parametrize("kind", ["albert", "modernbert"])
def test_an_encoder_whose_layers_cannot_be_distilled_alone_is_refused(kind, folder, tmp_path):
    import transformers

    sizes = {"vocab_size": 800, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    place = tmp_path / kind
    shutil.copytree(folder, place)
    config = transformers.AutoConfig.for_model(kind, **sizes, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    transformers.AutoModel.from_config(config).save_pretrained(place)
    with pytest.raises(
        ValueError, match="must have an attention module of its own" if kind == "albert" else "must not have rotary positions"
    ):
        load_teacher(str(place), 24)
