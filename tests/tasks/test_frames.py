"""Tasks on frames: oracles solve them from the frames alone, and averages do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attn_zoo import build_task
from attn_zoo.contract import SPLITS, UNASKED, Batch, Frames, Task

SMALL = {"train": 300, "valid": 40, "test": 60}


def whole(task: Task, split: str = "train") -> Batch:
    examples = task.examples(split)  # type: ignore[arg-type]
    return examples.batch(range(len(examples)))


def explained(features: Tensor, target: Tensor) -> float:
    """R² of the best linear map from features to the target, on the examples that it is fitted to."""
    design = torch.cat([features, torch.ones(len(features), 1)], dim=1).double()
    errors = target.double() - design @ torch.linalg.lstsq(design, target.double()[:, None]).solution[:, 0]
    return 1 - float(errors.square().sum() / (target - target.mean()).double().square().sum())


@pytest.mark.parametrize(
    "options", [{}, {"length": 20, "marked": 5, "key": 5, "causal": True}, {"length": 4, "marked": 3, "key": 3}]
)
def test_the_sum_is_that_of_the_values_under_the_last_key(options):
    task = build_task("adding", **SMALL, **options)
    o = task.options
    assert task.spec.inputs == Frames(1 + o.key) and task.spec.problem == "regression" and task.spec.causal is o.causal
    for split in SPLITS:
        frames, valid, labels = whole(task, split)
        assert valid is None and labels[:, :-1].isnan().all()
        values, keys = frames[..., 0], frames[..., 1:]
        same = (keys == keys[:, -1:]).all(dim=2)
        assert (same.sum(dim=1) == o.marked + 1).all() and (values[:, -1] == 0).all()
        assert torch.equal((values * same).sum(dim=1), labels[:, -1, 0]), "exact, as values are multiples of 1 / 128"
        assert values.abs().max() == 1 and set(keys.unique().tolist()) == {-1.0, 1.0}
        others = [len(row[~is_same].unique(dim=0)) for row, is_same in zip(keys, same, strict=True)]
        assert set(others) == {o.length - o.marked - 1}, "every other key occurs once"


def test_a_sum_is_explained_by_neither_averages_nor_places():
    frames, _, labels = whole(build_task("adding", train=4000, valid=20, test=20))
    target = labels[:, -1, 0]
    assert explained(frames.mean(dim=1), target) < 0.06, "the sum of all values holds the two"
    assert explained(frames[..., 0], target) < 0.06
    weighed = (frames[..., :1] * frames[..., 1:]).sum(dim=1) * frames[:, -1, 1:]
    assert explained(weighed.sum(dim=1, keepdim=True), target) < 0.4, "as linear attention on the bare keys"
    assert float(target.var()) == pytest.approx(2 / 3, abs=0.05)


@pytest.mark.parametrize("options", [{}, {"length": 20, "classes": 3, "rare": 2, "key": 5, "causal": True}])
def test_the_set_is_that_under_the_last_key(options):
    task = build_task("set_recall", **SMALL, **options)
    o = task.options
    assert task.spec.inputs == Frames(o.key + o.classes) and task.spec.problem == "multi_label" and task.spec.causal is o.causal
    for split in SPLITS:
        frames, valid, labels = whole(task, split)
        assert valid is None and labels[:, :-1].isnan().all()
        keys, held = frames[..., : o.key], frames[..., o.key :]
        same = (keys == keys[:, -1:]).all(dim=2)
        assert (same.sum(dim=1) == 2).all() and not held[:, -1].any() and set(held[:, :-1].unique().tolist()) == {-1.0, 1.0}
        assert torch.equal((held * same[..., None]).sum(dim=1) > 0, labels[:, -1] == 1)
        assert float((held[:, :-1] > 0).float().mean()) == pytest.approx(1 / o.rare, abs=0.05)


def test_a_set_is_explained_by_neither_averages_nor_places():
    frames, _, labels = whole(build_task("set_recall", train=4000, valid=20, test=20))
    target, held = labels[:, -1, 0], frames[..., 8:]
    assert explained(held.sum(dim=1), target) < 0.07 and explained(held[..., 0], target) < 0.07, "one of 31 frames is asked for"
    assert int(labels[:, -1].sum(dim=1).min()) == 0 and int(labels[:, -1].sum(dim=1).max()) >= 7, (
        "sets of all sizes, the empty one too"
    )


@pytest.mark.parametrize("options", [{}, {"tones": 5, "fewest": 1, "causal": True}, {"tones": 2, "fewest": 2, "low": 3, "high": 3}])
def test_the_high_tone_is_the_one_that_sounded_with_the_last_low_tone(options):
    task = build_task("tones", noise=0.0, **SMALL, **options)
    o = task.options
    lengths = set()
    for split in SPLITS:
        frames, valid, labels = whole(task, split)
        assert valid is not None and frames.shape[1:] == (o.length, o.low + o.high)
        for example, real, label in zip(frames, valid, labels, strict=True):
            end = int(real.sum()) - 1
            lengths.add(end + 1)
            assert (label[:end] == UNASKED).all() and (label[end + 1 :] == UNASKED).all()
            low, high = example[:, : o.low], example[:, o.low :]
            assert int((low > 0).sum(dim=1).max()) == 1 and not high[end].any() and not example[end + 1 :].any()
            asked = int(low[end].argmax())
            sounding = (low[:, asked] > 0) & high.any(dim=1)
            assert 2 <= int(sounding.sum()) <= 4
            assert set(high[sounding].argmax(dim=1).tolist()) == {int(label[end])}
            presses = low[high.any(dim=1)].argmax(dim=1).unique_consecutive()
            assert o.fewest <= len(presses) <= o.tones and len(set(presses.tolist())) == len(presses)
    assert len(lengths) > 5 and max(lengths) <= o.length


def test_tones_say_nothing_by_how_much_of_each_there_is():
    frames, valid, labels = whole(build_task("tones", train=4000, valid=20, test=20))
    assert valid is not None
    answers = labels[labels != UNASKED]
    assert float((answers.bincount(minlength=8) / 4000).max()) < 0.15
    most = frames[..., 16:].sum(dim=1).argmax(dim=1)
    assert float((most == answers).float().mean()) < 0.35, "the high tone that sounds most"
    noise = frames[..., 16:][valid & (frames[..., 16:] < 0.3).all(dim=2)]
    assert float(noise.abs().max()) <= 0.3 and float(noise.mean()) == pytest.approx(0.0, abs=0.02)
