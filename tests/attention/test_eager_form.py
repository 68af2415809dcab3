"""``eager`` is plain PyTorch: no hand-written gradient, constant kernel launches, twice differentiable."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launches import SHAPES, Launches

from attn_zoo import Geometry, attentions, build_attention, card
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.session import Session
from attn_zoo.conformance.requests import draw

ROOT = Path(__file__).parents[2]

CHUNKS = {
    **{"delta_product": 16, "delta_rule": 32, "gated_delta_rule": 32, "gated_linear": 32, "kda": 32, "mega": 64, "performer": 128},
    **{"gated_slot": 32, "log_linear": 32, "retention": 32, "rwkv7": 16, "ssd": 32},
}
"""Positions in a chunk of each recurrence, whose launches grow with the number of chunks; Performer is one when causal."""

MOST_FORWARD, MOST_BACKWARD, PER_CHUNK = 150, 350, 8


def points_of(found: Measurement) -> list[dict[str, Any]]:
    """Return kernel launches at the three lengths, one point for each mechanism and causality."""
    points: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in found.cells:
        empty: dict[str, Any] = {"attention": cell.label, "causal": cell.kind == "yes", "forward": [], "backward": []}
        point = points.setdefault((cell.label, cell.kind), empty)
        for name in ("forward", "backward"):
            point[name].append(cell.one(f"{name}_launches"))
    return list(points.values())


COMMITTED = points_of(Measurement.from_dict(json.loads((ROOT / "results" / "launches.json").read_text(encoding="utf-8"))))


def scans(point) -> bool:
    return point["attention"] in CHUNKS and (point["attention"] != "performer" or point["causal"])


@pytest.mark.parametrize("path", sorted((ROOT / "attn_zoo" / "attention").rglob("*.py")), ids=lambda path: path.stem)
def test_no_gradient_is_written_by_hand(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            assert not any("Function" in ast.unparse(base) for base in node.bases), f"{node.name} belongs into kernels/"


@pytest.mark.parametrize("point", COMMITTED, ids=lambda p: f"{p['attention']}-{'causal' if p['causal'] else 'all'}")
def test_launches_do_not_grow_with_the_length(point):
    if scans(point):
        for (length, _), forward in zip(SHAPES, point["forward"], strict=True):
            both = 1 if point["causal"] else 2  # without causality, a scan from each end
            assert forward <= both * (MOST_FORWARD + PER_CHUNK * length / CHUNKS[point["attention"]])
        return
    assert max(point["forward"]) <= MOST_FORWARD and max(point["backward"]) <= MOST_BACKWARD
    assert len(set(point["forward"])) == len(set(point["backward"])) == 1


def test_the_committed_table_holds_every_attention():
    wanted = {(name, causal) for name in attentions() for causal in {False, card(name).can.causal}}
    assert {(point["attention"], point["causal"]) for point in COMMITTED} == wanted


@pytest.mark.parametrize("name", [name for name in attentions() if name not in CHUNKS])
def test_the_committed_table_is_that_of_the_code(name):
    grid = Launches(attention=[name])
    found = Measurement("launches", grid.identity(), None, {})
    Session(grid, found).run()
    assert points_of(found) == [point for point in COMMITTED if point["attention"] == name]


def small(name: str, causal: bool):
    torch.manual_seed(0)
    built = build_attention(name, Geometry(1, 4, 9, 9, causal), implementation="eager").double()
    return built.eval(), draw(built, torch.float64, torch.device("cpu"), batch=1)


@pytest.mark.parametrize("name", attentions())
def test_is_twice_differentiable(name):
    for causal in {False, card(name).can.causal}:
        built, request = small(name, causal)
        names = list(request.tensors)
        leaves = [request.tensors[key].detach().requires_grad_() for key in names]

        def call(*tensors, built=built, request=request, names=names):
            given = dict(zip(names, tensors, strict=True))
            return request.changed(lambda name, _, given=given: given[name])(built)

        assert torch.autograd.gradgradcheck(call, leaves, eps=1e-6, atol=1e-5, rtol=1e-3, fast_mode=True)
