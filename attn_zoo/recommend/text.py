"""Recommendation as text, table, or plain data."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from attn_zoo.leaderboard import Estimate
from attn_zoo.recommend.need import DIRECTIONS
from attn_zoo.recommend.ranking import Choice, Recommendation

_STANDINGS = {"holds": "", "unknown": "accuracy not recorded", "falls": "below softmax"}


def verdict(found: Recommendation) -> str:
    """Verdict in two sentences: the best layer with the reason, and its doubts."""
    if not found.ranked:
        return "Nothing in the zoo holds what is needed. The reasons stand below."
    best = found.ranked[0]
    if best.reading is None and best.standing != "holds":
        order = f"By counted FLOPs alone {best.layer.label} comes first, with {_flops(best, found.need.direction)}"
        return f"{order}: an order and no recommendation, as it was not measured. {_doubts(found, best)}."
    return f"Take {best.layer.label}: {_advantages(found, best)}. {_doubts(found, best)}."


def _advantages(found: Recommendation, best: Choice) -> str:
    if best.reading is None:
        facts = [f"{_flops(best, found.need.direction)} counted, and nothing was measured of it"]
    else:
        facts = [f"{_milliseconds(best)} ms for {DIRECTIONS[found.need.direction]}, {best.reading.basis} on {_where(found)}"]
    if best.is_softmax:
        return f"{facts[0]}; {_softmax_wins(found)}"
    if best.times_softmax is not None:
        facts.append(f"{_ratio(best.times_softmax)} softmax")
    if best.accuracy is not None and best.accuracy.margin is not None:
        facts.append(
            f"{_points(best.accuracy.margin)} points against softmax on {best.accuracy.task} ({_seeds(best.accuracy.margin)})"
        )
    return "; ".join(facts)


def _softmax_wins(found: Recommendation) -> str:
    cheaper = [choice for choice in found.ranked[1:] if choice.times_softmax is not None and choice.times_softmax > 1]
    if not found.recorded or not cheaper:
        return (
            "nothing that is measured beside it costs less" if len(_measured(found)) > 1 else "nothing else is shown to be better"
        )
    reasons = [
        text
        for standing, text in (("falls", "fall below it in accuracy"), ("unknown", "have no accuracy recorded beside it"))
        if any(choice.standing == standing for choice in cheaper)
    ]
    return f"those that cost less {' or '.join(reasons)}"


def _doubts(found: Recommendation, best: Choice) -> str:
    doubts = list(best.doubts)
    if found.machine is not None and not found.here:
        doubts.insert(0, "the times are not of this machine")
    if not found.recorded:
        doubts.append("no records were given, so accuracy had no part in this")
    if best.reading is not None and not best.is_softmax and best.times_softmax is None:
        doubts.append("softmax was not measured beside it")
    if best.is_softmax and (of_others := _doubts_of_others(found)):
        doubts.append(f"what is said of the accuracy of others rests on {of_others}")
    if best.standing == "falls":
        doubts.insert(0, "all that hold what is needed are below softmax in accuracy")
    overlapping = [choice.layer.label for choice in found.ranked[1:] if choice.standing == best.standing and _overlap(best, choice)]
    if overlapping:
        doubts.append(f"its time cannot be told apart from {' and '.join(overlapping)}")
    return f"In doubt: {'; '.join(doubts)}" if doubts else "Nothing that was looked at speaks against it"


def _doubts_of_others(found: Recommendation) -> str:
    """Weaknesses of the recorded accuracies that ranked faster mechanisms behind softmax."""
    cheaper = [choice.accuracy for choice in found.ranked[1:] if choice.standing == "falls" and (choice.times_softmax or 0) > 1]
    known = [accuracy for accuracy in cheaper if accuracy is not None and accuracy.margin is not None]
    one_seed = any(accuracy.margin is not None and accuracy.margin.count == 1 for accuracy in known)
    lengths = sorted({accuracy.length for accuracy in known if accuracy.length != found.need.length})
    weak = ["one seed"] if one_seed else []
    weak += [f"other lengths ({', '.join(f'{n:,}' for n in lengths)} tokens)"] if lengths else []
    return " and ".join(weak)


def _overlap(one: Choice, other: Choice) -> bool:
    """Return whether the interquartile ranges of two times overlap."""
    if one.reading is None or other.reading is None:
        return False
    return other.reading.seconds[0] <= one.reading.seconds[2] and one.reading.seconds[0] <= other.reading.seconds[2]


def as_text(found: Recommendation) -> str:
    """Text with the verdict, the table, evidence and doubts of each layer, refused layers, and notes."""
    parts = [verdict(found), f"Asked: {found.need.describe()}."]
    if found.ranked:
        parts.append(_table(found))
        parts.append("\n".join(line for choice in found.ranked for line in _evidence(choice)))
    if found.refused:
        parts.append("\n".join(["Refused:", *(f"- {item.label}: {item.reason}" for item in found.refused)]))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in [_legend(found), *found.notes])])


def as_json(found: Recommendation) -> str:
    """JSON of the whole recommendation."""
    data = {
        "verdict": verdict(found),
        "need": asdict(found.need),
        "machine": None if found.machine is None else asdict(found.machine),
        "here": found.here,
        "recorded": found.recorded,
        "ranked": [_plain(at, choice) for at, choice in enumerate(found.ranked, 1)],
        "refused": [asdict(item) for item in found.refused],
        "notes": list(found.notes),
    }
    return json.dumps(data, indent=1)


def _plain(place: int, choice: Choice) -> dict[str, Any]:
    return {
        "place": place,
        "label": choice.layer.label,
        **asdict(choice.layer),
        "reading": None if choice.reading is None else asdict(choice.reading),
        "counted": asdict(choice.counted),
        "times_softmax": choice.times_softmax,
        "accuracy": None if choice.accuracy is None else asdict(choice.accuracy),
        "standing": choice.standing,
        "doubts": list(choice.doubts),
    }


def _table(found: Recommendation) -> str:
    head = [
        "",
        "attention",
        "time (ms)",
        "against softmax",
        "memory (MiB)",
        "FLOPs counted",
        "accuracy against softmax (points)",
        "",
    ]
    rows = [
        [
            str(at),
            choice.layer.label,
            _milliseconds(choice),
            "-" if choice.times_softmax is None else f"{choice.times_softmax:.2f} x as fast",
            "-" if choice.reading is None or choice.reading.bytes is None else f"{choice.reading.bytes / 2**20:,.0f}",
            _flops(choice, found.need.direction),
            _accuracy(choice),
            _STANDINGS[choice.standing],
        ]
        for at, choice in enumerate(found.ranked, 1)
    ]
    return tabulate(rows, head, tablefmt="simple", disable_numparse=True)


def _evidence(choice: Choice) -> list[str]:
    times = "times: not measured" if choice.reading is None else f"times: {choice.reading.basis}, {', '.join(choice.reading.files)}"
    scores = [] if choice.accuracy is None else [f"accuracy: {choice.accuracy.label} in {', '.join(choice.accuracy.files)}"]
    doubts = [f"    in doubt: {'; '.join(choice.doubts)}"] if choice.doubts else []
    return [f"{choice.layer.label}", f"    {'; '.join([times, *scores])}", *doubts]


def _legend(found: Recommendation) -> str:
    counted = "FLOPs are counted of the mechanism alone, without projections"
    if found.machine is None:
        return f"nothing was measured: give --measured FILE, or --measure to do it now; {counted}"
    return f"times are of one layer with its projections on {_where(found)}, median ± half the interquartile range; {counted}"


def _where(found: Recommendation) -> str:
    return f"this machine ({found.machine})" if found.here else str(found.machine)


def _measured(found: Recommendation) -> list[Choice]:
    return [choice for choice in found.ranked if choice.reading is not None]


def _milliseconds(choice: Choice) -> str:
    if choice.reading is None:
        return "-"
    low, middle, high = choice.reading.seconds
    return f"{1e3 * middle:,.1f} ± {500 * (high - low):,.1f}"


def _ratio(times: float) -> str:
    return f"{times:.1f} times as fast as" if times >= 1 else f"{1 / times:.1f} times as slow as"


def _flops(choice: Choice, direction: str) -> str:
    training = choice.counted.training_flops
    if direction == "training" and training is not None:
        return f"{training / 1e9:,.3g} GFLOPs"
    return f"{choice.counted.flops / 1e9:,.3g} GFLOPs" + (" (forward alone)" if direction == "training" else "")


def _accuracy(choice: Choice) -> str:
    if choice.accuracy is None:
        return "-"
    where = f"{choice.accuracy.task}, {choice.accuracy.length:,} tokens"
    if choice.accuracy.margin is None:
        return f"itself {100 * choice.accuracy.score.mean:.1f} % ({where}, {_seeds(choice.accuracy.score)})"
    return f"{_points(choice.accuracy.margin)} ({where}, {_seeds(choice.accuracy.margin)})"


def _points(margin: Estimate) -> str:
    return f"{100 * margin.mean:+.1f}" + ("" if margin.half_width is None else f" ± {100 * margin.half_width:.1f}")


def _seeds(estimate: Estimate) -> str:
    return f"{estimate.count} seed{'' if estimate.count == 1 else 's'}"
