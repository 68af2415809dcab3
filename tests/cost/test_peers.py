"""The comparison with the public package: the floor against PyTorch's counter, equal maths, and the table of a fixture."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.contract import CompressingAttention, UnknownNameError
from attn_zoo.cost.bench import build_layer
from attn_zoo.cost.peers import experiment as peers
from attn_zoo.cost.peers.table import peers_table
from attn_zoo.cost.workers import WorkerError
from attn_zoo.layer import MultiHeadAttention

needs_peer = pytest.mark.skipif(
    importlib.util.find_spec("linformer") is None, reason="the package linformer is not installed (extra: peers)"
)

SETTING: dict[str, Any] = {
    "lengths": (64,),
    "tokens": 128,
    "dim": 16,
    "heads": 2,
    "projected_length": 8,
    "implementation": "sdpa",
    "rounds": 3,
    "repeat_seconds": 0.0,
    "allocators": ("default", "keep"),
    "seed": 1,
    "time_limit": 60.0,
}


@pytest.mark.parametrize(("batch", "n", "d", "k"), [(1, 64, 32, 16), (5, 128, 32, 8), (1, 96, 64, 64)])
def test_the_floor_counts_every_matrix_product(batch, n, d, k):
    # Not 2 to 4 examples: their gradients of E are added up by addmm_, which PyTorch does not count.
    layer = MultiHeadAttention(d, 4, "linformer", length=n, projected_length=k, sharing="headwise", bias=False)
    tokens = torch.randn(batch, n, d, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        layer(tokens)
    with FlopCounterMode(display=False) as training:
        layer(tokens).square().mean().backward()
    assert forward.get_total_flops() == peers.floor_flops("forward", batch, n, d, k)
    assert training.get_total_flops() == peers.floor_flops("training", batch, n, d, k)


@needs_peer
def test_both_sides_are_the_same_map_on_the_same_weights():
    torch.manual_seed(0)
    ours = MultiHeadAttention(32, 4, "linformer", length=48, projected_length=12, sharing="headwise").double()
    theirs = peers.build_peer(32, 4, 12, 48).double()
    mechanism, held = ours.mechanism, ours.state_dict()
    assert isinstance(mechanism, CompressingAttention)
    key_map, value_map = mechanism.compress(torch.eye(48, dtype=torch.float64)[None], None)
    weights = {f"to_{name[0]}.weight": held[f"projections.{name}.weight"] for name in ("query", "key", "value")}
    weights |= {"proj_k": key_map[0].mT, "proj_v": value_map[0].mT}
    theirs.load_state_dict({**weights, "to_out.weight": held["out.weight"], "to_out.bias": held["out.bias"]})
    tokens = torch.randn(2, 48, 32, dtype=torch.float64)
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": 10, "heads": 4}, "dim must be divisible by heads"),
        ({"lengths": (8, 64)}, "lengths must be above projected_length=8"),
        ({"lengths": ()}, "lengths are different whole numbers"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"allocators": ("jemalloc",)}, "allocators are default, keep; got jemalloc"),
        ({"implementation": "cuda"}, "no implementation of linformer is called 'cuda'"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        peers.Setting(**{**SETTING, **wrong})


def test_without_the_peer_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)
    with pytest.raises(ValueError, match=r"pip install 'attn-zoo\[peers\]'"):
        peers.require_peer()


class Scripted:
    """A worker whose environment and requests are kept; a product fails, so does training of theirs."""

    environments: ClassVar[list[Any]] = []
    asked: ClassVar[list[Any]] = []

    def __init__(self, make: Any, build: Any = None, *arguments: Any, environment: Any = None) -> None:
        self.environments.append(environment)
        self.ours = build is not None and build.func is build_layer

    def ask(self, method: str, *arguments: Any, limit: float) -> Any:
        self.asked.append((method, arguments[0], self.ours))
        if arguments[0] == peers.PRODUCT_SIZE or (arguments[0] == "training" and not self.ours):
            raise WorkerError("OOM", "scripted")
        return (1.5, None) if method == "seconds" else 7

    def stop(self) -> None: ...


def test_each_allocator_has_processes_of_its_own_and_a_failure_is_kept(monkeypatch):
    monkeypatch.setattr(peers, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "environments", [])
    monkeypatch.setattr(Scripted, "asked", [])
    points = peers.measure(peers.Setting(**SETTING), tell=lambda line: None, save=lambda points: None)
    assert [point["allocator"] for point in points] == ["default", "keep"]
    raised = [e for e in Scripted.environments if e and int(e["MALLOC_MMAP_THRESHOLD_"]) > 2**30]
    assert len(raised) == 6, "both sides for time, both sides and kinds for memory"
    for point in points:
        assert point["seconds"]["ours"] == {"forward": [1.5] * 3, "training": [1.5] * 3}
        assert point["seconds"]["theirs"] == {"forward": [1.5] * 3, "training": []}
        assert point["memory"]["ours"]["training"] == {"resident": 7, "allocated": 7}
        failed = {f"products {peers.PRODUCT_SIZE}", "theirs training", "theirs memory training"}
        assert set(point["failures"]) == failed
    rounds = [(kind, ours) for method, kind, ours in Scripted.asked if method == "seconds" and (ours or kind == "forward")]
    again = peers.measure(peers.Setting(**SETTING), tell=lambda line: None, save=lambda points: None, done=points[:1])
    assert again == points
    assert len({tuple(rounds[at : at + 3]) for at in range(0, len(rounds), 3)}) > 1, "the order changes between rounds"


def fixture() -> dict[str, Any]:
    rate = 2 * peers.PRODUCT_SIZE**3  # so that a product of one second makes the floor FLOPs / rate seconds
    seconds = peers.floor_flops("forward", 1, 4096, 256, 256) / rate
    ours = {"forward": [1.5 * seconds] * 3, "training": [6 * seconds, 9 * seconds, 12 * seconds]}
    theirs = {"forward": [3 * seconds, 3.08 * seconds, 3 * seconds], "training": []}
    held = {kind: {"resident": 36 * 2**20, "allocated": 30 * 2**20} for kind in peers.KINDS}
    point = {
        "allocator": "default",
        "length": 4096,
        "batch": 1,
        "seconds": {"ours": ours, "theirs": theirs},
        "product_seconds": [1.0, 1.0, 1.0],
        "memory": {"ours": held, "theirs": {"forward": {"resident": 121 * 2**20, "allocated": 89 * 2**20}}},
        "failures": {"theirs training": "OOM: scripted"},
    }
    setting = {"dim": 256, "heads": 4, "projected_length": 256, "implementation": "sdpa", "rounds": 3}
    environment = {"cpu": "CPU of a test", "threads": 2, "torch": "2.15.0"}
    return {"complete": True, "peer": "0.2.3", "setting": setting, "environment": environment, "points": [point]}


def test_table_of_the_fixture():
    table = peers_table(fixture())
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    forward, training = (dict(zip(rows[0], row, strict=True)) for row in rows[2:])
    assert forward["ours / theirs"] == "0.50 ± 0.00"
    assert forward["ours / floor"] == "1.50 ± 0.00"
    assert forward["theirs / floor"] == "3.00 ± 0.02"
    assert forward["ours, theirs RSS (MiB)"] == "36, 121"
    assert training["ours / theirs"] == training["theirs (ms)"] == "failed"
    assert training["ours / floor"] == "3.00 ± 0.50 unstable"
    assert training["ours, theirs allocated (MiB)"] == "30, failed"
    for word in ("- n=4096, allocator default, theirs training: OOM: scripted", "CPU of a test, 2 threads", "linformer 0.2.3"):
        assert word in table
    assert peers_table({**fixture(), "complete": False}).startswith("**Not complete")
