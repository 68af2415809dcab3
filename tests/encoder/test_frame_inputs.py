"""Networks on frames: padding, lengths, and every kind of label."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_zoo.contract import Frames, Problem, TaskSpec, Tokens, UnsupportedError
from attn_zoo.encoder import LOSSES, build_model, build_token_reader

SIZES: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}


def model_of(spec: TaskSpec, attention: str = "softmax", **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(spec, attention=attention, options=options, **SIZES).eval()


@pytest.mark.parametrize("labels", ["example", "position"])
@pytest.mark.parametrize("attention", ["softmax", "linear", "uniform"])
def test_padding_of_frames_may_hold_anything(attention, labels):
    spec = TaskSpec(Frames(3), 9, 4, labels=labels)
    model, frames = model_of(spec, attention), torch.randn(2, 9, 3)
    real = torch.arange(9) < torch.tensor([[9], [5]])
    padded = frames.masked_fill(~real[..., None], 1e3)
    places = () if labels == "example" else (real,)
    found = model(padded, real, *places)
    assert torch.allclose(found, model(frames.masked_fill(~real[..., None], 0.0), real, *places), atol=1e-5)
    alone = model(frames[1:, :5], None)
    assert torch.allclose(found[-1:] if labels == "example" else found[9:], alone.reshape(-1, 4), atol=1e-5)


def test_every_channel_and_every_frame_counts():
    model, frames = model_of(TaskSpec(Frames(3), 6, 2)), torch.randn(1, 6, 3, requires_grad=True)
    model(frames).sum().backward()
    assert frames.grad is not None and (frames.grad != 0).all()


def test_a_causal_network_on_frames_sees_no_future():
    model = model_of(TaskSpec(Frames(2), 8, 1, labels="position", causal=True, problem="regression"))
    frames = torch.randn(1, 8, 2)
    changed = torch.cat([frames[:, :5], torch.randn(1, 3, 2)], dim=1)
    assert torch.equal(model(frames)[:, :5], model(changed)[:, :5])
    assert not torch.equal(model(frames)[:, 5:], model(changed)[:, 5:])


@pytest.mark.parametrize("problem", list(LOSSES))
def test_the_loss_of_a_problem_falls_where_outputs_near_the_labels(problem: Problem):
    labels = torch.tensor([1, 0]) if problem == "classification" else torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    right = torch.tensor([[-9.0, 9.0], [9.0, -9.0]]) if problem != "regression" else labels
    assert float(LOSSES[problem](right, labels)) < 1e-3 < float(LOSSES[problem](-right, labels))


def test_frames_are_not_pretrained_as_tokens():
    spec = TaskSpec(Frames(3), 9, 4)
    with pytest.raises(UnsupportedError, match=r"the inputs of this task are frames. Set budget\.pretrain_steps=0"):
        build_token_reader(model_of(spec), spec)
    with pytest.raises(UnsupportedError, match="labelled by position"):
        build_token_reader(model_of(TaskSpec(Tokens(3), 9, 4, labels="position")), TaskSpec(Tokens(3), 9, 4, labels="position"))
