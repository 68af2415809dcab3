"""The comparison with public packages: floors against PyTorch's counter, equal maths, rounds, and the table of a fixture."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, ClassVar

import peers
import pytest
import torch
from peer_comparisons import BASELINE, COMPARISONS, OURS, Peer, build_side, compared_rows, side_inputs
from peers import PRODUCT, Peers
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.bench import session
from attn_zoo.bench.bench import MatrixProducts
from attn_zoo.bench.experiment import KINDS
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.session import Session
from attn_zoo.bench.workers import WorkerError
from attn_zoo.cli.measure import run_experiment
from attn_zoo.cli.parsing import read_keys
from attn_zoo.contract import CompressingAttention
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.rows import RowName

GIVEN: dict[str, Any] = {
    "mechanisms": ["linformer[projected_length=8]", "linear_causal"],
    "lengths": [64],
    "tokens": 128,
    "dim": 16,
    "heads": 2,
    "rounds": 3,
    "repeat_seconds": 0.0,
    "time_limit": 60.0,
}


def ours(text: str) -> RowName:
    (row,) = compared_rows([text]).values()
    return row


def missing(name: str) -> list[str]:
    return [reason for peer in COMPARISONS[name].peers.values() if (reason := peer.missing())]


def needs(*names: str) -> pytest.MarkDecorator:
    reasons = [reason for name in names for reason in missing(name)]
    return pytest.mark.skipif(bool(reasons), reason=f"{'; '.join(reasons)} (extra: peers)")


@pytest.mark.parametrize(("n", "d", "k"), [(64, 32, 16), (128, 32, 8), (96, 64, 64)])
def test_the_floor_of_linformer_counts_every_matrix_product(n, d, k):
    """2nD² for queries and output each, E X and F X, keys and values of k rows, Q K'ᵀ and P V'; backward twice that."""
    by_hand = 4 * n * d**2 + 4 * n * k * d + 4 * k * d**2 + 4 * n * k * d
    assert peers.floor_flops("linformer", d, 4, ours(f"linformer[projected_length={k}]"), n) == {  # type: ignore[attr-defined]
        "forward": by_hand,
        "training": 3 * by_hand,
    }
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
    assert peers.floor_flops("entmax", d, 4, ours("entmax"), n) == {"forward": by_hand, "training": 3 * by_hand}  # type: ignore[attr-defined]


@needs("linformer")
def test_both_sides_of_linformer_are_the_same_map_on_the_same_weights():
    torch.manual_seed(0)
    row = ours("linformer[projected_length=12]")
    own, theirs = (build_side("linformer", side, 32, 4, row, 48).double() for side in (OURS, "linformer"))
    assert isinstance(own, MultiHeadAttention)
    mechanism, held = own.mechanism, own.state_dict()
    assert isinstance(mechanism, CompressingAttention)
    key_map, value_map = mechanism.compress(torch.eye(48, dtype=torch.float64)[None], None)
    weights = {f"to_{name[0]}.weight": held[f"projections.{name}.weight"] for name in ("query", "key", "value")}
    weights |= {"proj_k": key_map[0].mT, "proj_v": value_map[0].mT}
    theirs.load_state_dict({**weights, "to_out.weight": held["out.weight"], "to_out.bias": held["out.bias"]})
    tokens = torch.randn(2, 48, 32, dtype=torch.float64)
    torch.testing.assert_close(own(tokens), theirs(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["linear_causal", "entmax"])
def test_a_core_between_our_projections_is_the_same_map_on_the_same_weights(name):
    if reasons := missing(name):
        pytest.skip(f"{'; '.join(reasons)} (extra: peers)")
    (side,) = COMPARISONS[name].peers
    torch.manual_seed(0)
    own, theirs = (build_side(name, each, 32, 4, ours(name), 128).double() for each in (OURS, side))
    held = own.state_dict()
    theirs.load_state_dict({key.removeprefix("projections."): held[key] for key in held})
    tokens = torch.randn(2, 128, 32, dtype=torch.float64)
    torch.testing.assert_close(own(tokens), theirs(tokens), rtol=0, atol=1e-8)  # theirs adds 1e-10 to the divisor


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])
def test_a_recurrence_in_our_mechanism_is_the_same_map(name):
    if reasons := missing(name):
        pytest.skip(f"{'; '.join(reasons)} (extra: peers)")
    own = build_side(name, OURS, 32, 2, ours(name), 128)
    inputs = side_inputs(name, OURS, 32, 2, ours(name))(2, 128, torch.float32)
    for side in COMPARISONS[name].peers:
        theirs = build_side(name, side, 32, 2, ours(name), 128)
        theirs.load_state_dict(own.state_dict())
        torch.testing.assert_close(own(*inputs), theirs(*inputs), rtol=0, atol=1e-5)  # theirs computes in float32


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_side_runs_and_learns(name):
    if reasons := missing(name):
        pytest.skip(f"{'; '.join(reasons)} (extra: peers)")
    small = {"window": "window[window=17]"}
    shared = COMPARISONS[name].hyperparameter
    row = ours(small.get(name, f"{name}[{shared}=8]" if shared else name))
    for side in [OURS, *COMPARISONS[name].peers]:
        inputs = [x.requires_grad_() for x in side_inputs(name, side, 32, 2, row)(1, 256, torch.float32)]
        out = build_side(name, side, 32, 2, row, 256)(*inputs)
        out.sum().backward()
        assert out.shape == inputs[0].shape and out.isfinite().all(), side
        assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs), side


@needs("entmax")
def test_a_missing_peer_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)
    versions, reasons = peers.require_peers(["linformer", "entmax"])  # type: ignore[attr-defined]
    assert list(versions) == ["entmax"] and reasons == ["linformer is not installed"]
    sides = Peers(**{**GIVEN, "mechanisms": ["linformer[projected_length=8]", "entmax"]}).sides(64)
    assert sides == {"entmax": [OURS, "entmax"], BASELINE: ["full"]}


def test_the_baseline_is_causal_where_the_comparison_is_and_long_inputs_are_left_out(monkeypatch):
    monkeypatch.setattr(Peer, "missing", lambda self: None)
    grid = Peers(**{**GIVEN, "mechanisms": ["linear_causal", "entmax"], "lengths": [4096, 8192]})
    assert grid.sides(4096)[BASELINE] == ["full", "causal"]
    assert grid.sides(8192) == {"linear_causal": [OURS, "flash-linear-attention"], BASELINE: ["causal"]}
    both = Peers(**{**GIVEN, "mechanisms": ["linear_causal", "kda"]})
    assert both.sides(64)[BASELINE] == ["causal", "causal mechanism"], "kda has no projections, so its softmax has none"
    assert (grid.batch("entmax", 16), grid.batch(BASELINE, 16)) == (1, 8)


class Scripted:
    """A worker whose requests are kept; a product fails, so does training of a linformer that is not ours."""

    made: ClassVar[list[Any]] = []
    asked: ClassVar[list[Any]] = []
    seconds: ClassVar[float] = 1.5

    def __init__(self, make: Any, build: Any = None, *arguments: Any, bounded: bool) -> None:
        self.who = (PRODUCT, "") if make is MatrixProducts else build.args[:2]
        self.made.append(self.who)

    def ask(self, method: str, kind: str, *arguments: Any, limit: float) -> Any:
        self.asked.append((method, *self.who, kind))
        if self.who[0] == PRODUCT or (kind == "training" and self.who == ("linformer", "linformer")):
            raise WorkerError("OOM", "scripted")
        return (self.seconds,) if method == "parts" else 7

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(session, "Worker", Scripted)
    monkeypatch.setattr(Peer, "missing", lambda self: None)
    for name in ("made", "asked"):
        monkeypatch.setattr(Scripted, name, [])
    return Scripted


def measured(done: Any = None, **changes: Any) -> tuple[Measurement, list[dict[str, Any]]]:
    grid = Peers(**{**GIVEN, **changes})
    found = Measurement("peers", grid.identity(), grid.protocol, {}) if done is None else Measurement.from_dict(done)
    saved: list[dict[str, Any]] = []
    Session(grid, found, save=lambda at: saved.append(json.loads(json.dumps(at.to_dict())))).run()
    return found, saved


def at(found: Measurement, name: str, side: str, kind: str) -> Cell:
    return next(cell for cell in found.cells if (cell.role, cell.group, cell.kind) == (name, side, kind))


def test_every_side_has_a_process_and_a_failure_is_kept(scripted):
    found, _ = measured()
    assert len(set(scripted.made)) == len(scripted.made) == 6 + 1, "six sides and the product"
    for kind in KINDS:
        ours = at(found, "linformer", OURS, kind)
        assert ours.all("seconds") == [1.5] * 3 and (ours.one("floor_flops") or 0) > 0
    assert at(found, "linformer", "linformer", "forward").all("seconds") == [1.5] * 3
    assert not at(found, "linformer", "linformer", "training").all("seconds")
    assert {cell.group for cell in found.cells if cell.role == BASELINE} == {"full", "causal"}
    training = at(found, "linear_causal", OURS, "training")
    assert (training.one("held_bytes"), training.one("peak_bytes")) == (7, 7)
    failed = {cell.label: set(cell.failures) for cell in found.cells if cell.failures}
    assert failed == {PRODUCT: {"seconds"}, "linformer, linformer": {"peak_bytes", "seconds"}}


def test_sides_of_a_comparison_follow_each_other_and_the_order_changes(scripted):
    measured(mechanisms=["linear_causal", "entmax"], rounds=4)
    timed = [(name, side, kind) for method, name, side, kind in scripted.asked if method == "parts" and name != PRODUCT]
    rounds = [timed[at : at + 12] for at in range(0, len(timed), 12)]
    assert len(rounds) == 4 and len({tuple(each) for each in rounds}) > 1
    for each in rounds:
        names = [name for name, *_ in each]
        assert names == sorted(names, key=names.index), "a comparison is not interrupted by another"


def fixture() -> Measurement:
    grid = {"mechanisms": ["window", "entmax"], "lengths": [4096, 16384], "dim": 256, "heads": 4, "tokens": 8192}
    environment = {"cpu": "CPU of a test", "threads": 2, "torch": "2.15.0", "gpu": None}
    facts = {"peer": {"local-attention": "1.2.3", "transformers": "5"}, "missing": ["entmax is not installed"]}
    protocol = TimingProtocol(rounds=3)
    found = Measurement("peers", {**grid, "rounds": 3, "precision": "fp32"}, protocol, environment, facts, complete=True)
    flops = {"forward": 10**9, "training": 3 * 10**9}
    unit = 2 * flops["forward"] / MatrixProducts.flops  # of two sequences, where a product takes one second

    def add(name: str, side: str, kind: str, batch: int, times: list[float], peak: int = 0) -> Cell:
        cell = found.of(Cell(f"{name}, {side}", kind, 4096, batch, side, name))
        cell.values.update({"seconds": [unit * time for time in times]} if times else {})
        if peak:
            cell.values["peak_bytes"] = [peak * 2**20]
        return cell

    add("window", OURS, "forward", 2, [1.5, 1.5, 1.5], 30).values["floor_flops"] = [flops["forward"]]
    add("window", OURS, "training", 2, [6, 9, 12], 30).values["floor_flops"] = [flops["training"]]
    add("window", "local-attention", "forward", 2, [3, 3.08, 3], 89)
    add("window", "local-attention", "training", 2, []).failures.update(dict.fromkeys(("peak_bytes", "seconds"), "OOM: scripted"))
    add("window", "Longformer", "forward", 2, [4, 4, 4], 30)
    add("window", "Longformer", "training", 2, [15, 15, 15], 30)
    add(BASELINE, "full", "forward", 4, [6, 6, 6])
    add(BASELINE, "full", "training", 4, [9, 9, 9])
    found.of(Cell(PRODUCT, "forward", 4096, role=PRODUCT)).values["seconds"] = [1.0, 1.0, 1.0]
    return found


def rows(table: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_table_of_the_fixture():
    table = Peers.report(fixture())
    forward, training, _, other = rows(table[: table.index("**Layers compared**")])
    assert forward["ours / theirs"] == "0.50 ± 0.00"
    assert forward["ours / floor"] == "1.50 ± 0.00"
    assert forward["theirs / floor"] == "3.00 ± 0.02"
    assert forward["ours / full"] == "0.50 ± 0.00", "by sequence: full attention had twice as many"
    assert forward["ours, theirs memory (MiB)"] == "30, 89"
    assert training["ours / theirs"] == training["theirs (ms)"] == "failed"
    assert training["ours / floor"] == "3.00 ± 0.50 unstable"
    assert training["ours, theirs memory (MiB)"] == "30, failed"
    assert other["ours / theirs"] == "0.60 ± 0.10 unstable"
    for words in (
        "- window, local-attention: OOM: scripted (memory, forward + backward, batch 2 at 4,096; time, forward + backward, batch 2",
        "- Left out: entmax is not installed (extra: peers).",
        "- entmax at n=16384 is left out: the package sorts",
        "CPU of a test, 2 threads",
    ):
        assert words in table
    assert re.search(r"\| window +\| longformer\[window=513,global_tokens=0\] +\| LocalMHA of local-attention ", table)
    partial = fixture()
    partial.complete = False
    assert Peers.report(partial).startswith("**Not complete")


@pytest.mark.parametrize("brackets", ["{}", "[{}]"])
def test_comparisons_with_a_hyperparameter_are_read_from_the_command_line(brackets):
    words = [f"mechanisms={brackets.format('linformer[projected_length=8],linear_causal')}"]
    assert read_keys("peers", words, Peers) == {"mechanisms": GIVEN["mechanisms"]}
    assert read_keys("peers", ["mechanisms=linear_causal"], Peers) == {"mechanisms": ["linear_causal"]}


@pytest.mark.exhaustive
@needs("linformer")
def test_the_program_measures_and_prints(tmp_path, capsys):
    words = ["mechanisms=[linformer[projected_length=8]]", "lengths=[64]", "tokens=128", "dim=16", "heads=2", "rounds=2"]
    words += ["repeat_seconds=0", f"output={tmp_path / 'found.json'}"]
    assert run_experiment("peers", Peers, words) == 0
    found = Measurement.from_dict(json.loads((tmp_path / "found.json").read_text(encoding="utf-8")))
    cells = {(cell.role, cell.group, cell.kind): cell for cell in found.cells}
    assert not any(cell.failures for cell in cells.values())
    for side in ("ours", "linformer"):
        for kind in ("forward", "training"):
            assert len(cells["linformer", side, kind].all("seconds")) == 2
            assert (cells["linformer", side, kind].one("peak_bytes") or 0) > 0
    assert Peers.report(found) == capsys.readouterr().out.rstrip("\n")
