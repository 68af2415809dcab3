"""Program that runs all checks and timings that need a GPU, in at most ten minutes: ``python benchmarks/gpu.py OUT``."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from linformer_table3 import table3_report
from zoo_times import ZooTimes, all_timed

from attn_zoo.bench.measurement import Measurement
from attn_zoo.cli.config import compose
from attn_zoo.cli.words import Word
from attn_zoo.contract import UnknownNameError
from attn_zoo.records import describe_environment
from attn_zoo.registry import attentions, card
from attn_zoo.result_files import write_json
from attn_zoo.rows import read_rows

PARTS = {"kit": 0.22, "times": 0.26, "kernels": 0.15, "table3": 0.12, "profile": 0.25}
"""Parts in their order, each with its share of the time; unused time goes to later parts."""
AT_A_TIME = 6
"""Number of processes with conformance tests that run at the same time. The tests hardly load a GPU."""
TRAINED_AT_A_TIME = 16
"""Number of training processes that run at the same time. Models of the ability profile are small."""
PROFILES = ("profile3_encoder", "profile3_decoder")

ATTN_ZOO = ("-m", "attn_zoo.cli")
HERE = Path(__file__).parent


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    parser = argparse.ArgumentParser("gpu.py")
    parser.description = (
        "Run on one GPU: the conformance kit on every implementation, times of every attention's auto beside fused softmax, "
        "Linformer's kernels beside their targets, Table 3 of the Linformer paper, and each cell of the profile once. Results are "
        "JSON files in OUT; the same command continues after an interrupt. --device cpu rehearses everything at tiny sizes."
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cuda, or cpu for a rehearsal (default: cuda)")
    parser.add_argument("--seconds", type=float, default=570.0, help="total time in seconds (default: 570)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run (default: all)")
    parser.add_argument(
        "--attentions", nargs="+", metavar="NAME", help="attentions of the parts kit, times and profile (default: all)"
    )
    return parser


def main(words: Sequence[str]) -> int:
    """Run the selected parts (conformance tests and several measurements), and return the exit status: 0 if every part succeeded,
    1 if one failed, 2 for bad input."""
    try:
        return _run(parser().parse_args(words))
    except (ValueError, UnknownNameError, OSError) as error:
        print(f"gpu.py: {error}", file=sys.stderr)
        return 2


def _run(parsed: argparse.Namespace) -> int:
    """Run all parts; exit status 0 if every part succeeded, else 1.

    Raises:
        UnknownNameError: no such mechanism.
        ValueError: there is no GPU.
        OSError: OUT cannot be written.
    """
    if parsed.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there must be a CUDA device, and this machine has none. Use --device cpu to try everything at tiny sizes")
    names = list(parsed.attentions or attentions())
    for name in names:
        card(name)
    parsed.out.mkdir(parents=True, exist_ok=True)
    _begin(parsed.out / "environment.json", {**describe_environment(parsed.device), "device": parsed.device})
    deadline, well = time.monotonic() + parsed.seconds, True
    left = [part for part in PARTS if part in parsed.parts]
    while left:
        part, *_ = left
        share = PARTS[part] / sum(PARTS[other] for other in left)
        seconds = share * (deadline - time.monotonic())
        print(f"== {part}: at most {seconds:.0f} s", flush=True)
        well &= _PARTS[part](parsed.out, parsed.device, names, seconds)
        left.remove(part)
    return 0 if well else 1


def _begin(file: Path, environment: dict[str, Any]) -> None:
    """Write the environment, after a check that earlier results in the folder are of the same device, code and PyTorch.

    Raises:
        ValueError: they are of others.
    """
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        differing = [name for name in ("device", "gpu", "commit", "torch") if before.get(name) != environment.get(name)]
        if differing:
            raise ValueError(f"{file.parent} already holds results with another {' and '.join(differing)}. Name another folder")
    write_json(file, environment)


def _kit(out: Path, device: str, names: Sequence[str], seconds: float) -> bool:
    """Run ``attn-zoo check`` on each attention not proved before, each in its own process, with one report each in OUT/kit."""
    folder, file, deadline = out / "kit", out / "kit.json", time.monotonic() + seconds
    folder.mkdir(exist_ok=True)
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def prove(name: str) -> str:
        if before.get(name) in ("proved", "proved before"):
            return "proved before"
        words = ["check", name, "--device", device, "--defaults"]
        status, told = _python([*ATTN_ZOO, *words], deadline - time.monotonic())
        if status is None:
            return "no time left"
        (folder / f"{name}.txt").write_text(told, encoding="utf-8")
        return "proved" if status == 0 else "FAILED"

    with ThreadPoolExecutor(AT_A_TIME if device == "cuda" else 1) as pool:
        found = dict(zip(names, pool.map(prove, names), strict=True))
    write_json(file, before | found)
    counts = {word: sum(told == word for told in found.values()) for word in dict.fromkeys(found.values())}
    print("; ".join(f"{word}: {many}" for word, many in counts.items()), flush=True)
    for name, told in found.items():
        if told == "FAILED":
            print((folder / f"{name}.txt").read_text(encoding="utf-8"), flush=True)
    return set(found.values()) <= {"proved", "proved before"}


def _times(out: Path, device: str, names: Sequence[str], seconds: float) -> bool:
    """Time every attention's ``auto`` beside fused softmax, into OUT/times.json."""
    file = out / "times.json"
    if (before := _finished(file)) and before.settings["attention"] == list(names):
        print(ZooTimes.report(before), flush=True)
        return all_timed(before)
    words = [str(HERE / "zoo_times.py"), f"device={device}", f"attention={','.join(names)}"]
    words += [f"output={file}", f"seconds={max(1.0, seconds):.0f}"]
    tiny = ["lengths=64,128", "tokens=128", "dim=32", "heads=2", "rounds=1", "repeat_seconds=0.001", "precision=fp32"]
    if not _told([*words, *(tiny if device == "cpu" else [])], seconds + 30):
        return False
    return all_timed(Measurement.from_dict(json.loads(file.read_text(encoding="utf-8"))))


def _finished(file: Path) -> Measurement | None:
    """Return the measurement that a file holds if it is finished, so that it is not measured again."""
    found = Measurement.from_dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
    return found if found and found.finished else None


def _kernels(out: Path, device: str, names: Sequence[str], seconds: float) -> bool:
    """Check results of Linformer's Triton kernels and time them beside their targets; on a CPU check in Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        print("left out: the package triton is not installed")
        return device == "cpu"
    command = [str(HERE / "linformer_kernels.py"), str(out / "linformer_kernels.json"), "--seconds", f"{seconds:.0f}"]
    if device == "cpu":
        command += ["--device", "interpreter"]
    environment = {**os.environ, "TRITON_INTERPRET": str(int(device == "cpu"))}
    return _told(command, seconds + 30, environment)


def _table3(out: Path, device: str, names: Sequence[str], seconds: float) -> bool:
    """Measure Table 3 of the Linformer paper."""
    if before := _finished(out / "linformer_table3.json"):
        print(table3_report(before), flush=True)
        return True
    return _told([str(HERE / "linformer_table3.py"), *table3_words(out, device)], seconds)


def table3_words(out: Path, device: str) -> list[str]:
    """Return the command-line arguments of the program that measures Table 3 of the Linformer paper.

    Args:
        out: folder of the result.
        device: ``cuda``, or ``cpu`` for tiny sizes.
    """
    words = [f"device={device}", f"output={out / 'linformer_table3.json'}"]
    if device == "cuda":
        return [*words, "rounds=3", "repeat_seconds=0.05"]
    tiny = ["lengths=64", "projected_lengths=16", "dim=32", "heads=2", "tokens=64", "rounds=1", "repeat_seconds=0.001"]
    return [*words, *tiny]


def _profile(out: Path, device: str, names: Sequence[str], seconds: float) -> bool:
    """Train each cell of the profile once, with one learning rate for all; each record goes to OUT/profile as its run ends."""
    deadline = time.monotonic() + seconds

    def train(words: list[str]) -> int | None:
        status, told = _python(words, deadline - time.monotonic())
        if status:
            print(told, flush=True)
        return status

    with ThreadPoolExecutor(TRAINED_AT_A_TIME if device == "cuda" else 1) as pool:
        found = list(pool.map(train, profile_words(out, device, names)))
    print(f"trained: {found.count(0)} of {len(found)} cells; no time left: {found.count(None)}", flush=True)
    return set(found) <= {0, None}


def profile_words(out: Path, device: str, names: Sequence[str]) -> list[list[str]]:
    """Return one command per run of the ability profile, as lists of words: all mechanisms on the first task, then on the second,
    and so on.

    Args:
        out: folder of the records.
        device: ``cuda``, or ``cpu`` for two steps each.
        names: mechanisms to train.
    """
    cells = []
    for experiment in PROFILES:
        config = compose([Word("experiment", experiment, experiment)]).config
        shared = [f"level={config.level}", "seed=1", f"device={device}", "threads=1", f"records={out / 'profile'}", "report=false"]
        shared += ["budget.until=criterion", "budget.learning_rate=0.003"]
        shared += ["budget.steps=2", "budget.evaluate_every=1"] if device == "cpu" else []
        rows = list(dict.fromkeys(row.attention for text in config.tuning.attention for row in read_rows(text)))
        for place, task in enumerate(config.tuning.task):
            for row in (row for row in rows if row in names):
                sizes = [f"dials.{row}.{key}={value}" for key, value in config.dials.get(row, {}).items()]
                cells.append((place, [*ATTN_ZOO, "run", f"attention={row}", f"task={task}", *shared, *sizes]))
    return [words for _, words in sorted(cells, key=itemgetter(0))]


_PARTS = {"kit": _kit, "times": _times, "kernels": _kernels, "table3": _table3, "profile": _profile}


def _told(words: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> bool:
    status, told = _python(words, seconds, environment)
    print(told if status is not None else f"{told}\nstopped after {seconds:.0f} s; the same command goes on", flush=True)
    return status == 0


def _python(words: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> tuple[int | None, str]:
    """Exit status and output of a Python process; None as the status where it took longer than ``seconds``."""
    command = [sys.executable, *words]
    if seconds <= 0:
        return None, ""
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(
            command, timeout=seconds, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True, check=False
        )
    except subprocess.TimeoutExpired as stopped:
        out = stopped.stdout or ""
        return None, out.decode() if isinstance(out, bytes) else out
    return done.returncode, done.stdout


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
