"""Tables and findings of ``docs/reports/length-and-state.md``: recall against state, scores against length, order at two sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from committed import ROOT, titled
from omegaconf import OmegaConf
from scipy.stats import permutation_test, rankdata, spearmanr

from attn_zoo.bench.tables import binary
from attn_zoo.leaderboard import Row, Table
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED, compare, is_above_control, standing
from attn_zoo.leaderboard.metrics import compared, score
from attn_zoo.leaderboard.statistics import holm
from attn_zoo.leaderboard.table import Comparison, Outcome, shown_rows, titles
from attn_zoo.rows import RowName, read_rows
from attn_zoo.terminal import table as printed

PAIRS = (4, 8, 16, 32, 64)
ENOUGH = 0.9
"""Share of pairs that counts as recalled."""
WIDTHS = (32, 64, 128)
LENGTHS = (256, 1024, 4096, 16384)
TIMES = (1, 2, 4, 8, 16)
SIGNIFICANT = 0.05
NOT_RUN = "not run"


def asked(experiment: str) -> list[RowName]:
    """Return the rows that an experiment searches."""
    return [row for text in _config(experiment).tuning.attention for row in read_rows(text)]


def _config(experiment: str) -> Any:
    return OmegaConf.load(ROOT / "configs" / "experiment" / f"{experiment}.yaml")


def row_in(table: Table, name: RowName) -> Row | None:
    """Return the row of a table that has the mechanism and the options of a name; None without one."""
    return next((row for row in table.rows if name.names(row.attention, row.options, "auto")), None)


@dataclass(frozen=True, slots=True)
class Recall:
    """Recall of a row at one width."""

    name: RowName
    width: int
    row: Row

    @property
    def state(self) -> int:
        """Bytes of state of one sequence, in all layers."""
        return self.row.state_bytes or 0

    @property
    def scores(self) -> dict[int, float]:
        """Mean share of recalled pairs by the number of pairs."""
        return {pairs: self.row.parts[f"{pairs} pairs"].mean for pairs in PAIRS}

    @property
    def pairs(self) -> float:
        """Number of pairs that are recalled; see ``recalled``."""
        return recalled(self.scores)


def recalled(scores: Mapping[int, float]) -> float:
    """Return how many pairs are recalled at 90 %, interpolated on a logarithmic scale between the numbers that were tested.

    Returns:
        0 if fewer than the smallest number, the largest number if all.
    """
    counts = sorted(scores)
    below = next((at for at, count in enumerate(counts) if scores[count] < ENOUGH), len(counts))
    if below in (0, len(counts)):
        return counts[-1] if below else 0
    more, fewer = counts[below], counts[below - 1]
    return float(fewer * (more / fewer) ** ((scores[fewer] - ENOUGH) / (scores[fewer] - scores[more])))


def in_pairs(count: float) -> str:
    """Return a number of recalled pairs in words."""
    if not count:
        return f"< {PAIRS[0]}"
    return f"{count:.0f}" + " or more" * (count == PAIRS[-1])


def recalls(made: Sequence[Table]) -> list[Recall]:
    """Return the recorded cells of ``experiment=capacity``, in the order of the experiment."""
    tables = {table.model["dim"]: table for table in made}
    cells = [(name, width, row_in(tables[width], name)) for width in WIDTHS if width in tables for name in asked("capacity")]
    return [Recall(name, width, row) for name, width, row in cells if row is not None and row.test is not None]


def capacity(made: Sequence[Table]) -> str:
    """Return the finding and the table of recall against state."""
    found, rows = recalls(made), asked("capacity")
    body = [
        [str(cell.width), f"{cell.name}" + " (c)" * cell.row.control, binary(cell.state), f"{_rate(cell.row):g}"]
        + [
            f"{cell.row.learned.count} of {cell.row.learned.of}" if cell.row.learned else "-",
            *(f"{100 * share:.1f}" for share in cell.scores.values()),
            in_pairs(cell.pairs),
        ]
        for cell in sorted(found, key=lambda cell: (cell.width, cell.row.control, -cell.pairs, cell.state))
    ]
    head = ["width", "row", "state", "rate", "learned", *(f"{pairs} pairs (%)" for pairs in PAIRS), "pairs at 90 %"]
    done = {width: sum(cell.width == width for cell in found) for width in WIDTHS}
    left = [f"{len(rows) - count} of {len(rows)} rows at width {width}" for width, count in done.items() if count < len(rows)]
    return _section(capacity_finding(found), "capacity", printed(head, body, "github", left=(1,)) if body else "", left)


def _rate(row: Row) -> float:
    return row.runs[0].spec.budget.learning_rate


def capacity_finding(found: Sequence[Recall]) -> str:
    """Return in a few sentences which rows recall most with less state than softmax, and how recall depends on the state. Rows that
    do not recall the fewest pairs have not learned the task, so they tell nothing about the state and do not count."""
    able = [cell for cell in found if not cell.row.control and cell.pairs]
    exact = {cell.width: cell for cell in able if cell.row.attention == BASELINE}
    rivals = [cell for cell in able if cell.width in exact and cell.state < exact[cell.width].state]
    if not rivals:
        return f"Not decided: no row with a state smaller than softmax's recalls {PAIRS[0]} pairs."
    width = max(exact, key=lambda width: (sum(cell.width == width for cell in rivals), width))
    rivals = [cell for cell in rivals if cell.width == width]
    most = max(cell.pairs for cell in rivals)
    best = sorted((cell for cell in rivals if cell.pairs == most), key=lambda cell: cell.state)
    names = all_of([f"`{cell.name}` with {binary(cell.state)}" for cell in best])
    said = (
        f"At width {width}, softmax recalls {in_pairs(exact[width].pairs)} pairs with a state of {binary(exact[width].state)}. Of "
        f"the rows with a smaller state that recall at least {PAIRS[0]} pairs, {names} recall{'s' * (len(best) == 1)} the most: "
        f"{in_pairs(most)} pairs"
    )
    seeds = sorted({len(cell.row.seeds) for cell in able})
    said += f" ({seeds[0]} seed{'s' * (seeds[0] > 1)} each)." if len(seeds) == 1 else f" ({seeds[0]} to {seeds[-1]} seeds)."
    if len({cell.pairs for cell in rivals}) < 2 or len({cell.state for cell in rivals}) < 2:
        return said
    rho, p = spearman([cell.state for cell in rivals], [cell.pairs for cell in rivals])
    goes = "goes" if rho > 0 and p <= SIGNIFICANT else "does not go"
    return (
        f"{said} Among these {len(rivals)} rows, a larger state {goes} with more recalled pairs (Spearman's ρ = {rho:.2f}, "
        f"p = {p:.2g})."
    )


def by_length(made: Sequence[Table]) -> dict[int, dict[str, tuple[Row, Table]]]:
    """Return the recorded rows of ``experiment=length`` by length and mechanism, each with its table."""
    found: dict[int, dict[str, tuple[Row, Table]]] = {}
    for table in made:
        for row in table.rows:
            if row.test is not None:
                rows = found.setdefault(table.task_options["length"], {})
                if row.attention in rows:
                    raise ValueError(f"{table.task_options['length']:,} tokens must have one row of {row.attention}; got two")
                rows[row.attention] = row, table
    return found


def length(made: Sequence[Table]) -> str:
    """Return the finding and the table of scores against length at equal time."""
    found = by_length(made)
    names = dict.fromkeys(name for sweep in _config("length").sweeps for name in _swept(sweep))
    body = [[name, *(_at(found.get(n, {}).get(name)) for n in LENGTHS)] for name in names]
    missing = sum(line.count(NOT_RUN) for line in body)
    head = ["row", *(f"{n:,} tokens (%), steps" for n in LENGTHS)]
    left = [f"{missing} of {len(names) * len(LENGTHS)} cells"] if missing else []
    return _section(length_finding(found), "length", printed(head, body, "github") if found else "", left)


def _swept(sweep: str) -> list[str]:
    """Return the mechanisms of a sweep."""
    return next(word.partition("=")[2] for word in sweep.split() if word.startswith("attention=")).split(",")


def _at(found: tuple[Row, Table] | None) -> str:
    if found is None:
        return NOT_RUN
    row, table = found
    seeds = f", {len(row.seeds)} seed" + "s" * (len(row.seeds) != 1) if len(row.seeds) < SEEDS_NEEDED else ""
    steps = sorted({run.curve[-1]["step"] for run in row.runs})
    return f"{score(row, table)}, {' to '.join(f'{count:,}' for count in (steps[:1] + steps[1:][-1:]))}{seeds}"


def against_softmax(rows: Mapping[str, tuple[Row, Table]]) -> list[Comparison] | None:
    """Return the comparisons of a length's efficient rows with softmax; None without three seeds of softmax and of another row."""
    fit = {name: row for name, (row, _) in rows.items() if len(row.seeds) >= SEEDS_NEEDED and not row.control and not row.failures}
    if BASELINE not in fit or len(fit) < 2:
        return None
    pairs = [(row, fit[BASELINE]) for name, row in fit.items() if name != BASELINE]
    return list(compare(pairs))


def length_finding(found: Mapping[int, Mapping[str, tuple[Row, Table]]]) -> str:
    """Return in one sentence at which lengths an efficient row is ahead of softmax."""
    judged, ahead = lengths_ahead(found)
    if not judged:
        return f"Not decided: no length has {SEEDS_NEEDED} seeds of softmax and of an efficient row."
    told = [
        f"at {n:,} `{ahead[n].row}` leads by {ahead[n].difference.in_points(True)}" if n in ahead else f"at {n:,} none leads"
        for n in judged
    ]
    where = [f"{n:,}" for n in (ahead or judged)]
    start = f"{'An' if ahead else 'No'} efficient mechanism is ahead of softmax after the same time"
    return f"{start} at {' and '.join(filter(None, [', '.join(where[:-1]), where[-1]]))} tokens: {', '.join(told)}."


def length_sentence(made: Sequence[Table]) -> str:
    """Return in one sentence for README where an efficient row is furthest ahead of softmax; empty if none is ahead."""
    _, ahead = lengths_ahead(by_length(made))
    if not ahead:
        return ""
    n = max(ahead, key=lambda length: ahead[length].difference.mean)
    page, lead = "docs/reports/length-and-state.md#length-at-equal-time", ahead[n].difference.in_points(True)
    return f"On copying over {n:,} tokens, `{ahead[n].row}` leads softmax by {lead} after [the same training time]({page})."


def lengths_ahead(found: Mapping[int, Mapping[str, tuple[Row, Table]]]) -> tuple[list[int], dict[int, Comparison]]:
    """Return the lengths with enough seeds, and the comparison of the leading efficient row with softmax at each length where one
    leads."""
    judged = {n: made for n in LENGTHS if (made := against_softmax(found.get(n, {}))) is not None}
    return list(judged), {
        n: max(better, key=lambda c: c.difference.mean) for n, made in judged.items() if (better := _better(made))
    }


def _better(made: Sequence[Comparison]) -> list[Comparison]:
    return [comparison for comparison in made if comparison.outcome is Outcome.BETTER]


def beyond(made: Sequence[Table]) -> str:
    """Return the finding and the table of causal rows on inputs longer than those of training."""
    rows = asked("length_beyond")
    found = {str(name): kept for table in made for name in rows if (kept := _kept(row_in(table, name)))}
    body = [[name, *(f"{100 * share:.1f}" for share in kept)] for name, kept in found.items()]
    left = [f"{len(rows) - len(found)} of {len(rows)} rows"] if len(found) < len(rows) else []
    head = ["row", *(f"{times} × (%)" for times in TIMES)]
    return _section(beyond_finding(found), "", printed(head, body, "github") if body else "", left)


def _kept(row: Row | None) -> list[float] | None:
    """Return a row's mean score over both kinds of hay at each multiple of the length; None without a score."""
    if row is None or row.test is None:
        return None
    lengths = sorted({int(part.split()[-2]) for part in row.parts})
    return [fmean(part.mean for name, part in row.parts.items() if name.endswith(f" {n} tokens")) for n in lengths]


def beyond_finding(found: Mapping[str, Sequence[float]]) -> str:
    """Return in one sentence which other mechanism scores most at the longest inputs, and what softmax scores there."""
    others = {name: kept for name, kept in found.items() if name != BASELINE}
    if BASELINE not in found or not others:
        return "Not decided: softmax or all other rows are not recorded."
    best = max(others, key=lambda name: others[name][-1])
    scored = {name: f"{100 * kept[-1]:.1f} %" for name, kept in found.items()}
    at = f"At {TIMES[-1]} times the trained length"
    return f"{at}, softmax scores {scored[BASELINE]}, and `{best}`, the best other mechanism, {scored[best]}."


def size(made: Sequence[Table], profile: Sequence[Table]) -> str:
    """Return the finding and the table of the orders of mechanisms in larger networks and in those of the profile."""
    pairs = [(small, large) for large in made for small in profile if _task(small) == _task(large)]
    named = zip(titles([large for _, large in pairs]), pairs, strict=True)
    found = [(title, rank_correlation(order_of(small), order_of(large))) for title, (small, large) in named]
    kept = [(title, one) for title, one in found if len(one[0]) >= 3]
    corrected = holm([p for _, (_, _, _, p) in kept])
    lines = [
        [title, ", ".join(common), ", ".join(there), f"{rho:.2f}", f"{p:.2g}"]
        for (title, (common, there, rho, _)), p in zip(kept, corrected, strict=True)
    ]
    left = [f"{4 - len(lines)} of 4 tasks"] if len(lines) < 4 else []
    head = ["task", "order at width 64, depth 2", "order at width 128, depth 4", "Spearman's ρ", "p (Holm)"]
    return _section(size_finding(lines), "", printed(head, lines, "github", left=(0, 1, 2)) if lines else "", left)


def rank_correlation(one: Sequence[str], other: Sequence[str]) -> tuple[list[str], list[str], float, float]:
    """Return the names that two orders have in common, in each order, and Spearman's ρ of the two with its p value."""
    common, there = [name for name in one if name in other], [name for name in other if name in one]
    if len(common) < 2:
        return common, there, math.nan, math.nan
    return common, there, *spearman(range(len(common)), [there.index(name) for name in common])


def spearman(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return Spearman's ρ with its two-sided p value, which is exact for at most nine pairs: SciPy's t approximation gives p = 0
    for three pairs in the same order."""
    found = spearmanr(one, other)
    if len(one) > 9:
        return float(found.statistic), float(found.pvalue)
    ranks, others = (rankdata(values) - (len(one) + 1) / 2 for values in (one, other))
    exact = permutation_test(
        (ranks,),
        lambda shuffled, axis: (shuffled * others).sum(axis),
        vectorized=True,
        permutation_type="pairings",
        n_resamples=np.inf,
    )
    return float(found.statistic), float(exact.pvalue)


def size_finding(lines: Sequence[Sequence[str]]) -> str:
    """Return in one sentence whether the order holds."""
    if not lines:
        return "Not decided: no task has three mechanisms at both sizes."
    holds = [line[0] for line in lines if float(line[3]) > 0 and float(line[4]) <= SIGNIFICANT]
    return (
        f"The order of mechanisms at both sizes is significantly correlated on {len(holds)} of {len(lines)} tasks "
        f"(Spearman's ρ = {', '.join(line[3] for line in lines)})."
    )


def hybrids(made: Sequence[Table]) -> str:
    """Return the finding and the table of hybrids, beside the mechanisms that they mix and the controls."""
    lines = [
        [titled(table), row.name, str(row.learned), score(row, table), str(row.steps_to_90)]
        + [compared(row.against_softmax, table) or "-", _share(row, table)]
        for table in made
        for row in table.rows
        if row.test
    ]
    experiments = [_config(f"profile3_hybrids_{kind}").tuning for kind in ("encoder", "decoder")]
    planned = sum(len(tuning.attention) * len(tuning.task) for tuning in experiments)
    left = [f"{planned - len(lines)} of {planned} cells"] if len(lines) < planned else []
    head = ["task", "row", "learned", "score (%)", "steps to 90 %", "against softmax", "FLOPs / softmax"]
    return _section(hybrids_finding(made), "", printed(head, lines, "github", left=(0, 1)) if lines else "", left)


def hybrids_finding(made: Sequence[Table]) -> str:
    """Return one sentence per task: which hybrid the leaderboard puts first and whether it is better than softmax or, if this is
    so, that no hybrid is better than the best control."""
    said = []
    for table in made:
        mixed = [row for row in table.rows if "+" in row.attention and row.against_softmax]
        if not mixed:
            continue
        if not any(map(is_above_control, mixed)):
            said.append(f"On {titled(table)}, no hybrid is better than the best control, `{table.control}`.")
            continue
        best = min(mixed, key=standing)
        assert best.against_softmax
        outcome = best.against_softmax.outcome
        words = f"{outcome} {'from' if outcome is Outcome.TIED else 'than'} softmax"
        said.append(f"On {titled(table)}, the best hybrid, `{best.label}`, is {words}.")
    return " ".join(said) or "Not decided: no hybrid has enough seeds."


def _share(row: Row, table: Table) -> str:
    """Return the FLOPs of the mechanisms of all layers at 4,096 tokens, divided by those of softmax."""
    whole = next((other.mechanism_flops_4096 for other in table.rows if other.attention == BASELINE), None)
    return f"{row.mechanism_flops_4096 / whole:.2f}" if whole and row.mechanism_flops_4096 is not None else "-"


def _task(table: Table) -> tuple[str, Mapping[str, Any]]:
    return table.task["name"], table.task_options


def order_of(table: Table) -> list[str]:
    """Return the mechanisms of a table without controls, the best first, as the leaderboard sorts them. If a mechanism has
    several rows, the one with the best validation score counts."""
    kept = [row for row in shown_rows(table).values() if not row.control and row.test is not None]
    return [row.attention for row in sorted(kept, key=standing)]


def _section(finding: str, picture: str, table: str, left: Sequence[str]) -> str:
    """Join a finding, the picture of a recorded experiment, its table, and what is not run."""
    if not table:
        return "Not run."
    shown = f"![{_PICTURES[picture]}](../../results/{picture}.svg)" if picture else ""
    missing = f"Not run: {'; '.join(left)}." if left else ""
    return "\n\n".join(part for part in (f"**{finding}**", shown, table, missing) if part)


_PICTURES = {
    "capacity": "Number of pairs recalled at 90 % against the bytes of state",
    "length": "Test score against the length of the input after seven minutes of training",
}
"""Descriptions of pictures by name."""


def all_of(names: Sequence[str]) -> str:
    """Return the names in one phrase: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
