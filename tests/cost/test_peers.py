"""The comparison with public packages: floors against PyTorch's counter, equal maths, rounds, and the table of a fixture."""

from __future__ import annotations

import copy
import importlib.util
import sys
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.contract import CompressingAttention, UnknownNameError
from attn_zoo.cost.peers import experiment as peers
from attn_zoo.cost.peers.rivals import OURS, RIVALS, YARDSTICK, builder
from attn_zoo.cost.peers.table import peers_table
from attn_zoo.cost.workers import WorkerError
from attn_zoo.layer import MultiHeadAttention

SETTING: dict[str, Any] = {
    "mechanisms": ("linformer", "linear_causal"),
    "lengths": (64,),
    "tokens": 128,
    "dim": 16,
    "heads": 2,
    "sizes": {"linformer": 8},
    "rounds": 3,
    "repeat_seconds": 0.0,
    "allocators": ("default", "keep"),
    "seed": 1,
    "time_limit": 60.0,
}


def missing(name: str) -> list[str]:
    return [reason for peer in RIVALS[name].peers.values() if (reason := peer.missing())]


def needs(*names: str) -> pytest.MarkDecorator:
    reasons = [reason for name in names for reason in missing(name)]
    return pytest.mark.skipif(bool(reasons), reason=f"{'; '.join(reasons)} (extra: peers)")


@pytest.mark.parametrize(("n", "d", "k"), [(64, 32, 16), (128, 32, 8), (96, 64, 64)])
def test_the_floor_of_linformer_counts_every_matrix_product(n, d, k):
    """2nD² for queries and output each, E X and F X, keys and values of k rows, Q K'ᵀ and P V'; backward twice that."""
    by_hand = 4 * n * d**2 + 4 * n * k * d + 4 * k * d**2 + 4 * n * k * d
    assert peers.floor_flops(RIVALS["linformer"], d, 4, k, n) == {"forward": by_hand, "training": 3 * by_hand}
    layer = MultiHeadAttention(
        d, 4, "linformer", length=n, projected_length=k, sharing="headwise", bias=False, implementation="eager"
    )
    tokens = torch.randn(1, n, d, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        layer(tokens).square().mean().backward()
    assert counted.get_total_flops() == 3 * by_hand


def test_what_is_recomputed_backward_is_not_in_the_floor():
    n, d = 64, 32
    by_hand = 8 * n * d**2 + 4 * n**2 * d
    assert peers.floor_flops(RIVALS["entmax"], d, 4, 0, n) == {"forward": by_hand, "training": 3 * by_hand}


@needs("linformer")
def test_both_sides_of_linformer_are_the_same_map_on_the_same_weights():
    torch.manual_seed(0)
    ours = RIVALS["linformer"].build(32, 4, 12, 48).double()
    theirs = builder("linformer", "linformer", 32, 4, 12)(48).double()
    mechanism, held = ours.mechanism, ours.state_dict()
    assert isinstance(mechanism, CompressingAttention)
    key_map, value_map = mechanism.compress(torch.eye(48, dtype=torch.float64)[None], None)
    weights = {f"to_{name[0]}.weight": held[f"projections.{name}.weight"] for name in ("query", "key", "value")}
    weights |= {"proj_k": key_map[0].mT, "proj_v": value_map[0].mT}
    theirs.load_state_dict({**weights, "to_out.weight": held["out.weight"], "to_out.bias": held["out.bias"]})
    tokens = torch.randn(2, 48, 32, dtype=torch.float64)
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["linear_causal", "entmax"])
def test_a_core_between_our_projections_is_the_same_map_on_the_same_weights(name):
    if reasons := missing(name):
        pytest.skip(f"{'; '.join(reasons)} (extra: peers)")
    (side,) = RIVALS[name].peers
    torch.manual_seed(0)
    ours, theirs = (builder(name, each, 32, 4, 0)(128).double() for each in (OURS, side))
    held = ours.state_dict()
    theirs.load_state_dict({key.removeprefix("projections."): held[key] for key in held})
    tokens = torch.randn(2, 128, 32, dtype=torch.float64)
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=0, atol=1e-8)  # theirs adds 1e-10 to the divisor


@pytest.mark.parametrize("name", RIVALS)
def test_every_side_runs_and_learns(name):
    if reasons := missing(name):
        pytest.skip(f"{'; '.join(reasons)} (extra: peers)")
    for side in [OURS, *RIVALS[name].peers]:
        layer = builder(name, side, 32, 2, 8)(256)
        tokens = torch.randn(1, 256, 32, requires_grad=True)
        out = layer(tokens)
        out.sum().backward()
        assert out.shape == tokens.shape and tokens.grad is not None, side
        assert out.isfinite().all() and tokens.grad.isfinite().all(), side


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": 10, "heads": 4}, "dim must be divisible by heads"),
        ({"lengths": (8, 64)}, "lengths must be at least twice the projected keys of linformer, 8; got"),
        ({"lengths": ()}, "lengths are different whole numbers"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"allocators": ("jemalloc",)}, "allocators are default, keep; got jemalloc"),
        ({"mechanisms": ("linformr",)}, "no mechanism of experiment=peers is called 'linformr'; did you mean 'linformer'"),
        ({"mechanisms": ()}, "mechanisms name each rival once, and one at least"),
        ({"sizes": {"entmax": 8}}, "sizes.entmax: this rival has no dial"),
        ({"sizes": {"linformer": 0}}, "sizes.linformer counts projected keys, so it is at least 1; got 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        peers.Setting(**{**SETTING, **wrong})


def test_without_any_peer_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)
    with pytest.raises(ValueError, match=r"linformer is not installed.*pip install 'attn-zoo\[peers\]'"):
        peers.require_peers(["linformer"])


@needs("entmax")
def test_a_missing_peer_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)
    versions, reasons = peers.require_peers(["linformer", "entmax"])
    assert list(versions) == ["entmax"] and reasons == ["linformer is not installed"]
    groups = peers.Setting(**{**SETTING, "mechanisms": ("linformer", "entmax")}).groups(64)
    assert groups == {"entmax": [OURS, "entmax"], YARDSTICK: ["full"]}


def test_the_yardstick_is_causal_where_the_rival_is_and_long_inputs_are_left_out(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    setting = peers.Setting(**{**SETTING, "mechanisms": ("linear_causal", "entmax"), "lengths": (4096, 8192)})
    assert setting.groups(4096)[YARDSTICK] == ["full", "causal"]
    assert setting.groups(8192) == {"linear_causal": [OURS, "flash-linear-attention"], YARDSTICK: ["causal"]}
    assert (setting.batch("entmax", 16), setting.batch(YARDSTICK, 16)) == (1, 8)


class Scripted:
    """A worker whose environment and requests are kept; a product fails, so does training of a linformer that is not ours."""

    environments: ClassVar[list[Any]] = []
    asked: ClassVar[list[Any]] = []
    seconds: ClassVar[float] = 1.5

    def __init__(self, make: Any, build: Any = None, *arguments: Any, environment: Any = None) -> None:
        self.environments.append(environment)
        self.who = build.args[:2] if build is not None else ("products", "")

    def ask(self, method: str, *arguments: Any, limit: float) -> Any:
        self.asked.append((method, *self.who, arguments[0]))
        if self.who[0] == "products" or (arguments[0] == "training" and self.who == ("linformer", "linformer")):
            raise WorkerError("OOM", "scripted")
        return (self.seconds, None) if method == "seconds" else 7

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(peers, "Worker", Scripted)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for name in ("environments", "asked"):
        monkeypatch.setattr(Scripted, name, [])
    return Scripted


def measured(setting: dict[str, Any], **more: Any) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    saved: list[list[dict[str, Any]]] = []
    points = peers.measure(
        peers.Setting(**setting), tell=lambda line: None, save=lambda at: saved.append(copy.deepcopy(at)), **more
    )
    return points, saved


def test_each_allocator_has_processes_of_its_own_and_a_failure_is_kept(scripted):
    points, _ = measured(SETTING)
    assert [point["allocator"] for point in points] == ["default", "keep"]
    raised = [e for e in scripted.environments if e and int(e["MALLOC_MMAP_THRESHOLD_"]) > 2**30]
    assert len(raised) == 6 * 3, "six sides, each for time and for memory of both kinds"
    for point in points:
        assert point["seconds"]["linformer"][OURS] == {"forward": [1.5] * 3, "training": [1.5] * 3}
        assert point["seconds"]["linformer"]["linformer"] == {"forward": [1.5] * 3, "training": []}
        assert point["seconds"][YARDSTICK].keys() == {"full", "causal"}
        assert point["memory"]["linear_causal"][OURS]["training"] == {"resident": 7, "allocated": 7}
        assert set(point["failures"]) == {"matrix product", "linformer, linformer: memory, training"}


def test_sides_of_a_rival_follow_each_other_and_the_order_changes(scripted):
    measured({**SETTING, "allocators": ("default",), "mechanisms": ("linear_causal", "entmax"), "rounds": 4})
    timed = [(name, side, kind) for method, name, side, kind in scripted.asked if method == "seconds" and name != "products"]
    rounds = [timed[at : at + 12] for at in range(0, len(timed), 12)]
    assert len(rounds) == 4 and len({tuple(each) for each in rounds}) > 1
    for each in rounds:
        names = [name for name, *_ in each]
        assert names == sorted(names, key=names.index), "a rival is not interrupted by another"


def test_a_measurement_goes_on_from_the_round_that_it_reached(scripted):
    setting = {**SETTING, "allocators": ("default",)}
    whole, saved = measured(setting)
    assert [at[0]["rounds"] for at in saved] == [0, 1, 2, 3]
    for before in saved:
        scripted.asked.clear()
        again, _ = measured(setting, done=copy.deepcopy(before))
        assert again == whole
        turns = [kind for method, *_, kind in scripted.asked if method == "seconds" and kind == "forward"]
        assert len(turns) == 6 * (3 - before[0]["rounds"])


def test_a_slow_side_takes_part_in_three_rounds_only(scripted, monkeypatch):
    monkeypatch.setattr(scripted, "seconds", peers.SLOW + 1)
    points, _ = measured({**SETTING, "allocators": ("default",), "rounds": 5})
    assert points[0]["rounds"] == 5
    assert len(points[0]["seconds"]["linear_causal"][OURS]["forward"]) == peers.LEAST_ROUNDS


def fixture() -> dict[str, Any]:
    flops = {"forward": 10**9, "training": 3 * 10**9}
    seconds = 2 * flops["forward"] / (2 * peers.PRODUCT_SIZE**3)  # of two sequences, where a product takes one second

    def times(*of_floor: float) -> list[float]:
        return [each * seconds for each in of_floor]

    held = {kind: {"resident": 36 * 2**20, "allocated": 30 * 2**20} for kind in peers.KINDS}
    window = {
        OURS: {"forward": times(1.5, 1.5, 1.5), "training": times(6, 9, 12)},
        "local-attention": {"forward": times(3, 3.08, 3), "training": []},
        "Longformer": {"forward": times(4, 4, 4), "training": times(15, 15, 15)},
    }
    point = {
        "allocator": "default",
        "length": 4096,
        "batch": {"window": 2, YARDSTICK: 4},
        "rounds": 3,
        "flops": {"window": flops},
        "seconds": {"window": window, YARDSTICK: {"full": {"forward": times(6, 6, 6), "training": times(9, 9, 9)}}},
        "product_seconds": [1.0, 1.0, 1.0],
        "memory": {
            "window": {
                OURS: held,
                "local-attention": {"forward": {"resident": 121 * 2**20, "allocated": 89 * 2**20}},
                "Longformer": held,
            }
        },
        "failures": {"window, local-attention: training": "OOM: scripted"},
    }
    setting = {"mechanisms": ["window", "entmax"], "lengths": [4096, 16384], "sizes": {}, "allocators": ["default"]}
    setting |= {"dim": 256, "heads": 4, "tokens": 8192, "rounds": 3}
    environment = {"cpu": "CPU of a test", "threads": 2, "torch": "2.15.0"}
    versions = {"local-attention": "1.2.3", "transformers": "5"}
    facts = {"complete": True, "peer": versions, "missing": ["entmax is not installed"], "setting": setting}
    return {**facts, "environment": environment, "points": [point]}


def rows(table: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_table_of_the_fixture():
    table = peers_table(fixture())
    forward, training, slower, other = rows(table)
    assert forward["ours / theirs"] == "0.50 ± 0.00" and forward["target"] == "0.47"
    assert forward["verdict"] == "missed by 6 %" and slower["verdict"] == "local-attention is faster"
    assert forward["ours / floor"] == "1.50 ± 0.00"
    assert forward["theirs / floor"] == "3.00 ± 0.02"
    assert forward["ours / full"] == "0.50 ± 0.00", "by sequence: full attention had twice as many"
    assert forward["ours, theirs RSS (MiB)"] == "36, 121"
    assert training["ours / theirs"] == training["theirs (ms)"] == "failed" and training["verdict"] == "-"
    assert training["ours / floor"] == "3.00 ± 0.50 unstable"
    assert training["ours, theirs allocated (MiB)"] == "30, failed"
    assert other["ours / theirs"] == "0.60 ± 0.10 unstable" and other["verdict"] == "missed by 33 %"
    for words in (
        "- n=4096, allocator default, window, local-attention: training: OOM: scripted",
        "- Left out: entmax is not installed (extra: peers).",
        "- entmax at n=16384 is left out: the package sorts",
        "- window: longformer, window=513, global_tokens=0, implementation=auto; local-attention (LocalMHA of ",
        "CPU of a test, 2 threads",
    ):
        assert words in table
    assert "allocator" not in rows(table)[0]
    assert peers_table({**fixture(), "complete": False}).startswith("**Not complete")


def test_a_target_is_met_up_to_itself():
    found = fixture()
    found["points"][0]["seconds"]["window"][OURS]["forward"] = [
        0.47 * each for each in found["points"][0]["seconds"]["window"]["local-attention"]["forward"]
    ]
    assert rows(peers_table(found))[0]["verdict"] == "met"


def test_without_a_target_for_the_allocator_there_is_no_verdict():
    found = fixture()
    found["setting"]["allocators"] = ["default", "keep"]
    found["points"][0]["allocator"] = "keep"
    row = rows(peers_table(found))[0]
    assert (row["allocator"], row["target"], row["verdict"]) == ("keep", "-", "-")
