"""Report of measured steps: tables of time and throughput, of memory, and of energy where there is a meter."""

from __future__ import annotations

from attn_zoo.cost.measurement import Figures, Measurement
from attn_zoo.cost.tables import conditions, decimals, failures, figure, figure_or_reason, joined, markdown, reason
from attn_zoo.cost.timed import KINDS

WORDS = {
    "mechanism": "The mechanism alone on random (batch, heads, n, head_dim) tensors; training is forward and backward",
    "layer": "One layer with its projections on random tokens; training is forward and backward",
    "block": "One pre-norm transformer block (layer, MLP, norms) on random tokens; training ends with a step of AdamW",
    "model": "The whole network of a task on random ids, none padded; training has cross-entropy, backward, a step of AdamW",
}


class Steps:
    """Figures by label, length, direction and batch."""

    def __init__(self, found: Measurement) -> None:
        self.protocol = found.protocol
        self.rows = list(dict.fromkeys((cell.label, cell.length) for cell in found.cells))
        self._by = {(cell.label, cell.length, cell.kind, cell.batch): figures for cell, figures in found.cells.items()}

    def one(self, label: str, length: int, kind: str) -> Figures:
        """Figures at batch size 1, which include the quantities that are measured once."""
        return self._by[label, length, kind, 1]

    def best(self, label: str, length: int, kind: str) -> tuple[Figures, int | None]:
        """Figures at the best batch, and that batch; None where it is unknown."""
        alone = self.one(label, length, kind)
        batch = alone.one("best_batch")
        return (alone, None) if batch is None else (self._by.get((label, length, kind, int(batch)), alone), int(batch))


def step_report(found: Measurement) -> str:
    """Report of ``experiment=cost``."""
    steps = Steps(found)
    tables = [_times(steps, found.grid["level"]), _memory(steps)]
    tables += [_energy(steps)] if found.facts["energy"]["meter"] else []
    return joined(found, *tables, failures(found.cells.values(), KINDS), _method(found))


def _times(steps: Steps, level: str) -> str:
    parts = ["backward", *(["update"] if level in ("block", "model") else [])]
    head = ["attention", "n", "forward (ms)", *(f"{part} (ms)" for part in parts), "training step (ms)"]
    head += ["forward (tokens/s)", "at batch", "training (tokens/s)", "at batch"]
    rows = []
    for label, length in steps.rows:
        forward, training = (steps.one(label, length, kind) for kind in KINDS)
        parts_of = [(forward, "seconds"), *((training, f"{part}_seconds") for part in parts), (training, "seconds")]
        cells = [figure_or_reason(figures, steps.protocol, quantity, 1e3) for figures, quantity in parts_of]
        for kind in KINDS:
            best, batch = steps.best(label, length, kind)
            rates = [(batch or 1) * length / seconds for seconds in best.all("seconds")]
            cells += [figure(rates, steps.protocol), str(batch)] if rates else [reason(best, "seconds", "best_batch"), "-"]
        rows.append([label, str(length), *cells])
    return "**Time and throughput: times of one sequence, throughput at the best batch**\n\n" + markdown(head, rows)


def _memory(steps: Steps) -> str:
    head = ["attention", "n", *(f"{kind}, held at once (MiB)" for kind in KINDS), *(f"{kind}, largest batch" for kind in KINDS)]
    rows = []
    for label, length in steps.rows:
        both = [steps.one(label, length, kind) for kind in KINDS]
        rows.append([label, str(length), *map(_mebibytes, both), *map(_largest, both)])
    return "**Memory: peaks of a step of one sequence above what was there before it**\n\n" + markdown(head, rows)


def _mebibytes(found: Figures) -> str:
    held = found.one("peak_bytes")
    return reason(found, "peak_bytes") if held is None else f"{held / 2**20:,.{decimals(held / 2**20)}f}"


def _largest(found: Figures) -> str:
    most = found.one("largest_batch")
    return reason(found, "largest_batch", "peak_bytes") if most is None else f"{int(most):,}"


def _energy(steps: Steps) -> str:
    rows = []
    for label, length in steps.rows:
        cells: list[str] = []
        for kind in KINDS:
            best, batch = steps.best(label, length, kind)
            cells += [figure_or_reason(steps.one(label, length, kind), steps.protocol, "joules")]
            cells += [figure_or_reason(best, steps.protocol, "joules", 1e6 / ((batch or 1) * length))]
        rows.append([label, str(length), *cells])
    head = ["attention", "n", *(words for kind in KINDS for words in (f"{kind} (J/step)", f"{kind}, best batch (µJ/token)"))]
    return "**Energy: a step of one sequence, and a token at the best batch**\n\n" + markdown(head, rows)


def _method(found: Measurement) -> str:
    grid, energy = found.grid, found.facts["energy"]
    shape = f"width {grid['dim']}, {grid['heads']} heads"
    shape += f", MLP ratio {grid['mlp_ratio']:g}" if grid["level"] in ("block", "model") else ""
    shape += f", {grid['depth']} blocks, task {grid['task']}" if grid["level"] == "model" else ""
    budget = f"{grid['memory_gib']:g} GiB"
    largest = (
        f"The largest batch is the most that {budget} of PyTorch's CUDA memory hold, found by doubling and bisection"
        if grid["device"] == "cuda"
        else f"The largest batch is for {budget}, by the line through what PyTorch held at two batches, with weights and inputs"
    )
    meter = f"of all that ran, and at rest ({energy['meter']})" if energy["meter"] else f"not measured ({energy['reason']})"
    said = [
        f"{WORDS[grid['level']]}. {shape[0].upper()}{shape[1:]}, {grid['precision']}, eager unless said",
        "Each point lives in a process of its own; a failure is a cell with its reason; ~ marks what is unstable",
        "The best batch is that of the highest throughput among powers of two, sought until memory, two doublings without a gain "
        f"or a step of {grid['batch_seconds']:g} s, and timed anew in the rounds",
        "Held at once: by PyTorch's allocations",
        largest,
        f"Energy: {meter}",
    ]
    return f"{'. '.join(said)}. {conditions(found)}"
