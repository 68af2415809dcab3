"""``attn-zoo diff``: noise passes, drops fail, costs are held against noise, and what cannot be compared is said."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from make import PERPLEXITY, make_record, stored

from attn_zoo.cli import main
from attn_zoo.leaderboard.difference import Compared, difference, judged
from attn_zoo.records import Budget, RunRecord

ATTENTIONS = ("softmax", "linformer", "performer", "longformer", "reformer", "uniform", "none")


def folder(path: Path, records: list[RunRecord]) -> str:
    stored(path, records)
    return str(path)


def rows(shift: dict[str, float] | None = None, seeds: int = 3, **changes) -> list[RunRecord]:
    """Rows with a spread over seeds that is the same on every call."""
    draw = random.Random(7)
    return [
        make_record(name, seed=seed, test=0.7 + draw.gauss(0, 0.02) + (shift or {}).get(name, 0.0), **changes)
        for name in ATTENTIONS
        for seed in range(1, seeds + 1)
    ]


def timed(record: RunRecord, seconds: float, iqr: float = 0.0, peak: float = 2**23) -> RunRecord:
    measured = {"step_seconds_median": seconds, "step_seconds_iqr": iqr, "peak_bytes": peak}
    return replace(record, measured=measured)


def kinds(a: list[RunRecord], b: list[RunRecord]) -> list[str]:
    return [finding.kind for row in difference(a, b) for finding in row.findings]


def with_gains(gains: list[float], grain: float = 0.0, tolerance: float = 0.0) -> Compared:
    return Compared("", "", "accuracy", None, None, gains=gains, grain=grain, tolerance=tolerance)


def test_equal_folders_pass(tmp_path, capsys):
    a, b = folder(tmp_path / "a", rows()), folder(tmp_path / "b", rows())
    assert main(["diff", a, b]) == 0
    out = capsys.readouterr().out
    assert "No regressions (checked for: " in out
    assert out.count("within noise") == len(ATTENTIONS)
    assert main(["diff", "results/quickstart", "results/quickstart"]) == 0


def test_a_real_drop_fails_and_is_named(tmp_path, capsys):
    a, b = folder(tmp_path / "a", rows()), folder(tmp_path / "b", rows({"linformer": -0.05}))
    assert main(["diff", a, b]) == 1
    out = capsys.readouterr().out
    assert "worse: linformer on Digits: -5.0 ± 0.0 points over 3 shared seeds" in out
    assert out.count("worse: ") == 1
    assert main(["diff", a, b, "--fail-on", "slower,missing"]) == 0
    assert "Also found" in capsys.readouterr().out
    assert main(["diff", a, b, "--tolerance", "0.06"]) == 0
    assert main(["diff", b, a]) == 0, "better fails never"
    assert "better: linformer" in capsys.readouterr().out


def test_the_part_of_the_test_that_needs_distant_tokens_is_compared_as_in_tables():
    a, b = (
        [replace(r, scores={**r.scores, "test: far": far}, task_card={**r.task_card, "distant": "far"}) for r in rows()]
        for far in (0.5, 0.4)
    )
    (row, *_) = difference(a, b)
    assert row.a and (row.task, row.a.mean, row.verdict) == ("Digits (far)", 0.5, "worse"), "the whole test has equal scores"
    assert set(kinds(rows(), b)) == {"changed"}


def test_noise_is_called_worse_in_at_most_one_comparison_of_twenty():
    draw = random.Random(1)
    spreads = (0.002, 0.01, 0.03, 0.03, 0.05, 0.01, 0.0)
    alarms, comparisons = 0, 1000
    for _ in range(comparisons):
        rows = [with_gains([draw.gauss(0, spread) for _ in range(3)], grain=1 / 2000) for spread in spreads]
        alarms += any(word == "worse" for word, _ in judged(rows))
    assert 0 < alarms / comparisons <= 0.05, "without any tolerance; with one there are fewer"


def test_five_seeds_find_a_drop_of_four_spreads_in_nineteen_of_twenty():
    draw = random.Random(2)
    found = 0
    for _ in range(400):
        drops = (0.04, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        rows = [with_gains([draw.gauss(-drop, 0.01) for _ in range(5)], tolerance=0.01) for drop in drops]
        found += judged(rows)[0][0] == "worse"
    assert found / 400 >= 0.95


@pytest.mark.parametrize(("drop", "status"), [(0.009, 0), (0.011, 1)])
def test_one_seed_is_judged_by_the_tolerance_and_says_so(drop, status, tmp_path, capsys):
    a = folder(tmp_path / "a", rows(seeds=1))
    assert main(["diff", a, folder(tmp_path / "b", rows({"performer": -drop}, seeds=1))]) == status
    out = " ".join(capsys.readouterr().out.split())
    assert "with fewer than 3 shared seeds the spread is unknown, and the tolerance alone decides" in out
    assert ("over 1 shared seed, tolerance 1.0 points; the noise is unknown" in out) == bool(status)


def test_of_perplexity_more_is_worse_and_the_tolerance_is_relative():
    def perplexity(value: float) -> list[RunRecord]:
        return [make_record(test=value, card=PERPLEXITY, scores={"test": value})]

    assert kinds(perplexity(200.0), perplexity(203.0)) == ["worse"]
    assert kinds(perplexity(200.0), perplexity(201.0)) == []
    assert kinds(perplexity(200.0), perplexity(197.0)) == ["better"]


def test_counted_costs_are_compared_exactly():
    base = make_record()
    more = replace(base, counted={**base.counted, "flops_per_example": 2_400_001})
    assert kinds([base], [more]) == ["costlier"]
    assert kinds([more], [base]) == ["cheaper"]
    further = replace(base, counted={**base.counted, "something_new": 5})
    assert kinds([base], [further]) == [], "a count that A does not know is no rise"


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ([(1.0, 0.02)] * 3, [(1.05, 0.02)] * 3, []),
        ([(1.0, 0.02)] * 3, [(1.15, 0.02)] * 3, ["slower"]),
        ([(1.0, 0.02)] * 3, [(1.15, 0.02), (1.15, 0.02), (1.02, 0.02)], []),
        ([(1.0, 0.02)] * 3, [(1.15, 0.30)] * 3, []),
        ([(1.15, 0.02)] * 3, [(1.0, 0.02)] * 3, ["faster"]),
    ],
)
def test_a_slower_step_must_be_so_at_every_seed_and_beyond_the_steps_own_spread(before, after, found):
    a = [timed(make_record(seed=seed), *times) for seed, times in enumerate(before)]
    b = [timed(make_record(seed=seed), *times) for seed, times in enumerate(after)]
    assert kinds(a, b) == found


def test_memory_has_the_tolerance_and_other_machines_are_not_compared():
    a = [timed(make_record(), 1.0)]
    b = [timed(make_record(), 2.0, peak=2**24)]
    assert kinds(a, b) == ["slower", "larger"]
    assert kinds(a, [timed(make_record(), 1.05, peak=1.05 * 2**23)]) == []
    elsewhere = [replace(b[0], environment={**b[0].environment, "cpu": "Another CPU"})]
    assert kinds(a, elsewhere) == []


def test_missing_new_failing_and_fixed_rows_are_told(tmp_path):
    failed = make_record("linformer", status="diverged")
    assert kinds([make_record(), make_record("linformer")], [make_record()]) == ["missing"]
    assert kinds([make_record()], [make_record(), make_record("linformer")]) == ["new"]
    assert kinds([make_record("linformer")], [failed]) == ["failing"]
    assert kinds([failed], [make_record("linformer")]) == ["fixed"]
    assert kinds([make_record(seed=1), make_record(seed=2)], [make_record(seed=1)]) == ["missing"]
    a, b = folder(tmp_path / "a", [make_record()]), folder(tmp_path / "b", [make_record(), make_record("linformer")])
    assert main(["diff", a, b]) == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (make_record(protocol="3.0", test=0.1), "protocol 2.0 became 3.0"),
        (make_record(card={"version": "2"}, test=0.1), "task version 1 became 2"),
        (make_record(spec_options={"dial": 2}, test=0.1), "options.dial 1 became 2"),
        (make_record(spec_budget=Budget(steps=7), test=0.1), "budget.steps 400 became 7"),
        (
            replace(make_record(test=0.1), data={**make_record().data, "test": {"examples": 100, "digest": "other" * 4}}),
            "digest of test digitste became otheroth",
        ),
    ],
)
def test_what_changed_is_never_compared(changed, why):
    (row,) = difference([make_record()], [changed])
    assert row.difference is None and row.verdict == "changed"
    ((finding),) = row.findings
    assert finding.kind == "changed"
    assert why in finding.text


def test_runs_whose_seeds_draw_their_own_data_are_one_row():
    def drawn(seed: int, test: float, digest: str = "") -> RunRecord:
        options, budget = {"data_seed": seed}, Budget(until="criterion", schedule="constant", ceiling=1.0)
        data = {"test": {"examples": 1000, "digest": f"{digest}{seed}" * 8}}
        return make_record("linear", "mqar", seed, test=test, data=data, spec_task_options=options, spec_budget=budget)

    a = [drawn(seed, 0.9 + 0.001 * seed) for seed in range(1, 6)]
    b = [drawn(seed, 0.9 + 0.001 * seed + (-0.02 if seed == 3 else 0.003)) for seed in range(2, 7)]
    (row,) = difference(a, b)
    assert row.verdict == "within noise"
    assert {finding.kind for finding in row.findings} == {"missing"}, "seed 1"
    (row,) = difference(a, [drawn(5, 0.9, "other")])
    assert [finding.kind for finding in row.findings] == ["changed"] and "digest of test" in row.findings[0].text


def test_two_files_are_compared(tmp_path, capsys):
    a, b = folder(tmp_path / "a", rows(seeds=1)), folder(tmp_path / "b", rows({"softmax": -0.2}, seeds=1))
    one, other = (str(next(Path(side).glob("softmax-*.json"))) for side in (a, b))
    assert main(["diff", one, other]) == 1
    assert "-20.0" in capsys.readouterr().out


def test_bad_input_is_status_two_and_damaged_files_are_named(tmp_path, capsys):
    a = folder(tmp_path / "a", [make_record()])
    (tmp_path / "empty").mkdir()
    for words, message in (
        ([a, str(tmp_path / "nowhere")], "does not exist"),
        ([a, str(tmp_path / "empty")], "B must hold at least one record"),
        ([a, a, "--fail-on", "ugly"], "--fail-on must list some of worse, slower, larger"),
        ([a, a, "--tolerance", "-1"], "the tolerance must be at least 0"),
        ([a, a, "--tolerance", "nan"], "the tolerance must be at least 0 and finite; got nan"),
    ):
        assert main(["diff", *words]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "a" / "half.json").write_text("{", encoding="utf-8")
    assert main(["diff", a, a]) == 0
    assert "half.json: the text is not readable as JSON" in " ".join(capsys.readouterr().err.split())
