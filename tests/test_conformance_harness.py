"""Machinery of the conformance kit: waivers, reports, sizes and options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from mutants.originals import ORIGINALS, PlainSoftmax
from torch import Tensor

from attn_zoo import registry
from attn_zoo.attention.linear import linear
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.attention.low_rank.nystrom import Nystrom
from attn_zoo.attention.low_rank.nystrom import Options as NystromOptions
from attn_zoo.attention.sparse.local import Local
from attn_zoo.conformance import (
    ATTENTION_CHECKS,
    Case,
    NotApplicable,
    Violation,
    agreement,
    attention_checks,
    check_attention,
    require,
    resolve,
    run_cases,
)
from attn_zoo.conformance.agreement import NEARBY, SLOW, _worst_errors
from attn_zoo.conformance.attention_suite import DEFAULT
from attn_zoo.conformance.cost import exponent
from attn_zoo.conformance.harness import Partly
from attn_zoo.conformance.jumps import perturbed
from attn_zoo.conformance.requests import Request, answers, draw
from attn_zoo.conformance.sizes import BORDERS, Size, Sizes, drawn_sizes
from attn_zoo.conformance.subject import Subject
from attn_zoo.conformance.variation import values
from attn_zoo.contract import Geometry, UnknownNameError, UnsupportedError


def holds() -> str:
    return "by a margin of 3"


def fails() -> None:
    require(False, "found 7")


def crashes() -> None:
    raise KeyError("lost")


def skips() -> None:
    raise NotApplicable("nothing to prove")


def case(check: str, run: Callable[[], str | None] = holds, variant: str = "default") -> Case:
    return Case("thing", check, "Says so.", run, variant, "eager")


def test_report_tells_how_every_case_ended() -> None:
    report = run_cases("thing", [case("a"), case("b", fails), case("c", crashes), case("d", skips)])
    assert [result.status for result in report.results] == ["passed", "failed", "failed", "skipped"]
    assert report.results[0].detail == "by a margin of 3"
    assert "KeyError: 'lost' (test_conformance_harness.py:" in report.results[2].detail
    lines = str(report).splitlines()
    assert lines[0].startswith("thing: 1 passed, 2 failed, 1 skipped in ")
    assert lines[1] == "  failed  thing[default]-eager-b: found 7"
    assert lines[-1] == "  skipped d: nothing to prove"
    assert not report.ok
    with pytest.raises(Violation, match="found 7"):
        report.raise_on_failure()


def test_errors_within_torch_are_placed_where_torch_was_called() -> None:
    def beyond() -> None:
        torch.nn.functional.softmax(torch.zeros(2), dim=5)

    (result,) = run_cases("thing", [case("a", beyond)]).results
    assert "IndexError: Dimension out of range" in result.detail
    assert "(test_conformance_harness.py:" in result.detail


def test_report_tells_one_fault_once() -> None:
    skipped = [case("c", skips), case("c", skips, variant="wide"), case("d", skips)]
    report = run_cases("thing", [case("a", fails), case("b", fails), *skipped])
    assert str(report).splitlines()[1:] == [
        "  failed  thing[default]-eager-a and 1 more: found 7",
        "  skipped c, d (3 times): nothing to prove",
    ]


def test_report_of_nothing_proved_is_not_ok() -> None:
    assert not run_cases("thing", []).ok
    assert not run_cases("thing", [case("d", skips)]).ok
    assert run_cases("thing", [case("a")]).ok


def test_waived_failure_is_told_and_accepted() -> None:
    report = run_cases("thing", [case("a"), case("b", fails)], {"b": "known since 2020"})
    assert report.ok
    assert "waived  thing[default]-eager-b: known since 2020 (found: found 7)" in str(report)


@pytest.mark.parametrize(("run", "ending"), [(holds, "b holds"), (skips, "b was skipped")])
def test_waiver_that_is_no_longer_needed_fails(run: Callable[[], str | None], ending: str) -> None:
    report = run_cases("thing", [case("a"), case("b", run)], {"b": "known"})
    assert not report.ok
    assert ending in report.failures[0].detail
    assert "remove it from expected_failures" in report.failures[0].detail


def test_waiver_of_one_setting_leaves_the_others_strict() -> None:
    cases = [case("a"), case("b", fails), case("b", fails, variant="wide")]
    assert run_cases("thing", cases, {"b": "both"}).ok
    report = run_cases("thing", cases, {"wide-eager-b": "only this"})
    assert [result.case.variant for result in report.failures] == ["default"]


def test_waiver_of_an_unknown_check_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no check of thing is called 'bb'; did you mean 'b'"):
        run_cases("thing", [case("b", fails)], {"bb": "typo"})
    with pytest.raises(UnknownNameError, match="limit_is_softmax"):
        check_attention("none", expected_failures={"limit_is_softmaxx": "typo"})


def test_interrupts_are_not_swallowed() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cases("thing", [case("a", interrupted)])


def test_a_case_leaves_threads_and_the_random_generator_alone() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    for each in attention_checks("linformer"):
        if each.check == "building_follows_the_seed":
            each()
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_ids_are_readable_and_unique() -> None:
    ids = [each.id for each in attention_checks("linformer")]
    assert "linformer[default]-eager-padding_has_no_influence" in ids
    assert "linformer[key_value]-sdpa-padding_has_no_influence" in ids
    assert len(set(ids)) == len(ids)
    assert Case("listops", "same_seed", "One.", holds).id == "listops[default]-same_seed"


def test_sizes_are_drawn_once_for_an_entry() -> None:
    drawn = drawn_sizes("linear")
    lengths, widths = [size.length for size in drawn.all], {size.head_dim for size in drawn.all}
    assert lengths == sorted(set(lengths))
    assert {1, 2, *BORDERS} <= set(lengths)
    assert {64, 128} <= widths
    assert any(width % 2 for width in widths)
    assert 291 <= drawn.blocks < drawn.long < drawn.longest
    drawn_sizes.cache_clear()
    assert drawn_sizes("linear") == drawn
    assert drawn_sizes("softmax") != drawn
    assert str(drawn).startswith("sizes drawn from 'linear' and version ")


def test_the_cause_is_told_before_what_follows_from_it() -> None:
    class Narrows(Linear):
        def __init__(self, geometry: Geometry, options: Window, implementation: str = "eager") -> None:
            options.window = 1
            super().__init__(geometry, options, implementation)

    @dataclass
    class Window(linear.Options):
        window: int = 3

    Narrows.card = replace(ORIGINALS["linear"], build=Narrows, options=Window)
    results = (run_cases("narrows", [each]).results[0] for each in attention_checks(Narrows.card))
    first = next(result for result in results if result.status == "failed")
    assert first.case.check == "building_does_not_mutate_options"
    assert "window=3" in first.detail


def test_options_are_varied_by_their_type() -> None:
    assert list(values(True)) == [False]
    assert list(values(4)) == [5, 2]
    assert list(values(1)) == [2]
    assert list(values(0.5)) == [0.25, 1.0]
    assert list(values(0.0)) == [0.1, 1.0]
    assert list(values("text")) == []


def test_every_check_states_its_contract() -> None:
    for check in ATTENTION_CHECKS.values():
        assert check.contract.endswith(".")
        assert len(check.contract.split()) > 4


def test_defaults_that_cannot_be_built_are_reported() -> None:
    card = replace(ORIGINALS["linformer"], variants={"empty": {"projected_length": "x", "nonsense": 1}})
    cases = list(attention_checks(card))
    assert {case.variant for case in cases} == {DEFAULT, "empty"}
    (result,) = run_cases(card.name, [case for case in cases if case.variant == "empty"]).results
    assert result.status == "failed" and "nonsense" in result.detail


@pytest.mark.variants
def test_longer_lengths_are_taken_where_options_demand_them(monkeypatch) -> None:
    def narrow(entry: str) -> Sizes:  # lengths around 60 decide here; widths, and lengths of several hundreds, cost time
        drawn = drawn_sizes(entry)
        lengths = [*(size.length for size in drawn.all[:-3]), 131, 133, 135]
        return replace(drawn, all=tuple(Size(n, 1, min(size.head_dim, 9)) for n, size in zip(lengths, drawn.all, strict=True)))

    monkeypatch.setattr("attn_zoo.conformance.subject.drawn_sizes", narrow)

    class Long(Linear):
        def __init__(self, geometry: Geometry, options: linear.Options, implementation: str = "eager") -> None:
            super().__init__(geometry, options, implementation)
            if geometry.keys < 60:
                raise UnsupportedError("at least 60 keys")

    Long.card = replace(ORIGINALS["linear"], build=Long)
    subject = Subject(Long.card, "default", Long.card.options(), "eager", torch.device("cpu"))
    assert subject.length == 65
    Long.card = replace(Long.card, build=Long, can=replace(Long.card.can, any_length=False), variants={})
    report = check_attention(Long.card)
    assert report.ok, str(report)


@pytest.mark.process
def test_the_kit_works_without_pytest_and_without_assertions() -> None:
    code = "import sys, attn_zoo.conformance.pytest_support as kit; print('pytest' in sys.modules, __debug__)\n"
    code += "from attn_zoo.conformance import require; require(1 > 2, 'still said')"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False False" and "still said" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((1000, 2000, 4000), 1.0),
        ((1000 - 500, 2000 - 500, 4000 - 500), 1.0),
        ((1, 4, 16), 2.0),
        ((7, 7, 28), 1.0),
        ((7, 7, 7), 0.0),
        ((9, 8, 7), 0.0),
    ],
)
def test_exponent_is_not_misled_by_constant_terms(sizes: tuple[int, int, int], wanted: float) -> None:
    assert exponent(sizes, 2) == pytest.approx(wanted, abs=0.01)


def test_the_allowance_from_inputs_nearby_admits_the_spread_of_eager_and_no_rough_kernel():
    """Nyström's gradients are small differences of large ones, so eager's error differs many times between inputs nearby."""
    geometry = Geometry(heads=3, head_dim=128, queries=5, keys=5, causal=False)
    own, exact = Nystrom(geometry, NystromOptions(landmarks=5)), Nystrom(geometry, NystromOptions(landmarks=5)).double()
    request = draw(exact, torch.float64, torch.device("cpu"), batch=5).cast(torch.float32)
    worst = _worst_errors(request, own, exact)["gradient of query"]

    def error(near: Request, computed: Request) -> float:
        want = answers(near.cast(torch.float64), exact)["gradient of query"]
        return (answers(computed, own)["gradient of query"].double() - want).abs().max().item()

    nearby = [perturbed(request, torch.float32, seed) for seed in range(NEARBY)]
    assert worst == max(error(near, near) for near in nearby) > min(error(near, near) for near in nearby)
    assert error(request, request.changed(lambda _, tensor: tensor.half().float())) > 10 * worst


def compare_with_slow_definition(
    taken: Callable[[int, int], float], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[int], float]:
    """Compare local attention with a definition that takes ``taken(place, work)`` seconds. Return the report, the lengths that were
    compared, and the seconds of all."""
    now, met = 0.0, list[int]()

    class Slow(Local):
        def definition(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
            nonlocal now
            now += taken(len(met), query.shape[1] * query.shape[2] * key.shape[2])
            met.append(key.shape[2])
            return super().definition(query, key, value, key_valid)

    Slow.card = replace(ORIGINALS["local"], build=Slow)
    monkeypatch.setattr(agreement, "clock", lambda: now)
    (case,) = (case for case in attention_checks(Slow.card) if case.id == "local[default]-eager-eager_agrees_with_the_definition")
    report = run_cases("local", [case])
    assert report.ok
    return str(report), met, now


PARTLY = "because the definition is slow"


@pytest.mark.parametrize(("seconds", "compared"), [(1e-7, "all"), (1e-4, "most"), (1e-2, "few"), (3.0, "one")])
def test_sizes_follow_the_time_that_a_definition_takes(seconds, compared, monkeypatch):
    report, met, spent = compare_with_slow_definition(lambda place, work: seconds * work, monkeypatch)
    assert spent < 2 * SLOW and report.count(PARTLY) == (compared != "all")
    least, most = {"all": (291, 319), "most": (100, 330), "few": (7, 33), "one": (1, 1)}[compared]
    assert least <= max(met) <= most


def test_what_a_check_left_out_is_reported_though_it_passed():
    report = run_cases("thing", [case("a", lambda: Partly("up to 9 positions")), case("b")])
    assert report.ok
    assert str(report).splitlines()[1:] == ["  passed  thing[default]-eager-a: up to 9 positions"]


def test_rates_of_dropout_are_found_where_zero_is_a_whole_number():
    @dataclass
    class Options:
        dropout: float = 0
        feature_dropout: float = 0.1
        dropout_by_head: bool = True

    subject = Subject(registry.card("softmax"), "default", Options(), "eager", torch.device("cpu"))
    assert subject.dropouts() == ["dropout", "feature_dropout"]
    assert subject.without_dropout() == Options(0, 0.0)


def test_a_target_must_have_a_card_of_its_own_and_a_known_name(monkeypatch):
    class Heir(PlainSoftmax):
        """Attention that has only the card of its parent."""

    monkeypatch.setitem(sys.modules, "heirs", SimpleNamespace(Heir=Heir))
    with pytest.raises(ValueError, match=r"belongs to mutants\.originals:PlainSoftmax"):
        resolve("heirs:Heir")
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        resolve("softmaxx")
