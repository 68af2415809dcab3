"""Property-based tests of damaged records and bad calls: no traceback, and no record is read that ``verify`` rejects."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make import make_record

from attn_zoo import MultiHeadAttention, build_attention
from attn_zoo.contract import Geometry, Patches, TaskSpec, Tokens, UnknownNameError
from attn_zoo.leaderboard import leaderboard, tables
from attn_zoo.leaderboard.advise.table import use_cases
from attn_zoo.leaderboard.page import ResultSet, html_page
from attn_zoo.records import Budget, ModelSpec, RecordError, RunRecord, Store
from attn_zoo.records.spec import digest_of
from attn_zoo.records.verify import verify
from attn_zoo.registry import build_task, card, task_card

FEW, MANY = 10, 1000
"""Number of generated examples in the short tests, and in the long tests of the tier ``exhaustive``."""

HOSTILE = ["", "\x1b[31m", "a\n\\input{x}", "=1+1", "| a | b", "<script>", "../../x", "\u202e", "nan", "0", "x" * 300]
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 2**63, 10**400, 0.0, -0.5, 1e-300, 1e18, 1e308, *HOSTILE]),
    # Copied, as a later change of the same record may add to it.
    st.sampled_from([[], {}, [1], {"a": 1}, [[1]], {"step": 1}, ["x"], {"digest": "x", "examples": 3}]).map(deepcopy),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(place for name, item in items for place in places(item, (*path, name)))]


WHOLE = json.loads(json.dumps(make_record("performer", seed=3, warnings=("doubt",)).to_dict()))
PLACES = places(WHOLE)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a record's file with changed, removed or added fields, a correct, missing or stale digest, and at times flipped bits."""
    data = json.loads(json.dumps(WHOLE))
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        part = data
        try:
            for name in place[:-1]:
                part = part[name]
            kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
            if kind == "remove":
                del part[place[-1]]
            elif kind == "add" and isinstance(part, dict):
                part[draw(st.text(max_size=5))] = draw(VALUES)
            else:
                part[place[-1]] = draw(VALUES)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed this path
    if draw(st.integers(0, 4)):
        rest = {name: value for name, value in data.items() if name != "digest"}
        data = {**rest, "digest": digest_of(rest)} if draw(st.booleans()) else rest
    text = bytearray(json.dumps(data, indent=1).encode())
    for bit in draw(st.lists(st.integers(0, 8 * len(text) - 1), max_size=draw(st.sampled_from([0, 0, 0, 2])))):
        text[bit // 8] ^= 1 << bit % 8
    return bytes(text)


@cache
def sound_files() -> dict[str, bytes]:
    """Return the files of two valid records, by name."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in (1, 2):
            Store(folder).add(make_record(seed=seed))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def check_damaged(content: bytes, draws: bool) -> None:
    """Check that every reader accepts a folder with this file and loads exactly the records that ``verify`` accepts.

    Args:
        draws: draw the page's figures too, which takes longer than all other readers.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, sound in sound_files().items():
            (Path(folder) / name).write_bytes(sound)
        (Path(folder) / f"performer-{WHOLE['run_id']}.json").write_bytes(content)
        records, left_out = Store(folder).load()
        assert len(records) + len(left_out) == 3
        faults = {name for finding in verify(folder).findings if finding.kind in ("damaged", "edited") for name in finding.files}
        assert faults == {item.path.name for item in left_out if item.kind != "no record"}
        for format in ("terminal", "github", "latex", "csv", "json"):
            leaderboard(folder, format=format)
        made = tables(records)
        use_cases(made)
        if draws and not left_out:  # figures of the two valid records would be the same each time
            html_page([ResultSet(made, records)], left_out)
        else:
            html_page([ResultSet([], [])], left_out)


FIELDS = [field.name for field in fields(RunRecord) if field.name not in ("source", "spec", "tuning")]
NESTED = st.recursive(
    VALUES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3))
)
ODD = [float("nan"), float("inf"), "\udc9b", b"x", Path("x"), {1: 2}, ("a",), 2**70, "long" * 5000]
NAMES = ["softmax", "nam\udc9be", "x" * 300]


@st.composite
def odd_records(draw: st.DrawFn) -> RunRecord:
    """Draw a record some of whose fields, options or entries hold values of any kind, as a faulty plugin might return them."""
    odd = st.one_of(NESTED, st.sampled_from(ODD))
    record = make_record(draw(st.sampled_from(NAMES)), test=draw(st.sampled_from([0.5, 1, 0.0, 2.0])))
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=2)):
        value = getattr(record, name)
        changed: Any = draw(odd)
        if isinstance(value, Mapping) and draw(st.booleans()):
            changed = {**value, draw(st.sampled_from([*value, "new", "\udc9b"])): changed}
        with suppress(RecordError, TypeError):
            record = replace(record, **{name: changed})
    if draw(st.booleans()):
        spec = replace(record.spec, options={**record.spec.options, draw(st.sampled_from(["dial", "\udc9b"])): draw(odd)})
        with suppress(TypeError, ValueError):
            record = replace(record, spec=spec, run_id=spec.run_id("1"))
    return record


def check_added(record: RunRecord) -> None:
    """Check that a record is refused before anything is written, or is read back by every reader."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        try:
            store.add(record)
        except RecordError:
            assert list(Path(folder).iterdir()) == []
            return
        (read,), left_out = store.load()
        assert not left_out and read.run_id == record.run_id
        assert {finding.kind for finding in verify(folder).findings} <= {"foreign protocol", "old protocol"}
        leaderboard(folder, format="csv")


CALLS: dict[str, Callable[[Any], object]] = {
    "length": lambda value: TaskSpec(Tokens(4), value, 2),
    "classes": lambda value: TaskSpec(Tokens(4), 8, value),
    "inputs": lambda value: TaskSpec(value, 8, 2),
    "labels": lambda value: TaskSpec(Tokens(4), 8, 2, labels=value),
    "vocabulary": Tokens,
    "patch": lambda value: Patches(1, 8, 8, value),
    "heads": lambda value: Geometry(value, 8, 16, 16),
    "causal": lambda value: Geometry(2, 8, 16, 16, value),
    "card": card,
    "task card": task_card,
    "attention": lambda value: build_attention(value, Geometry(2, 8, 16, 16)),
    "geometry": lambda value: build_attention("linformer", value),
    "implementation": lambda value: build_attention("linformer", Geometry(2, 8, 16, 16), implementation=value),
    "option": lambda value: build_attention("linformer", Geometry(2, 8, 16, 16), projected_length=value),
    "rate": lambda value: build_attention("softmax", Geometry(2, 8, 16, 16), dropout=value),
    "task option": lambda value: build_task("digits", patch=value),
    "split": lambda value: build_task("digits").slices(value),
    "dim": lambda value: MultiHeadAttention(value, 1, length=8),
    "layer's length": lambda value: MultiHeadAttention(8, 2, length=value),
    "context": lambda value: MultiHeadAttention(8, 2, length=8, context_length=value),
    "bias": lambda value: MultiHeadAttention(8, 2, length=8, bias=value),
    "order": lambda value: MultiHeadAttention(8, 2, length=8, order=value),
    "model": lambda value: ModelSpec(dim=value, heads=1),
    "positions": lambda value: ModelSpec(positions=value),
    "budget": lambda value: Budget(steps=value),
    "rate of learning": lambda value: Budget(learning_rate=value),
    "schedule": lambda value: Budget(schedule=value),
}
ARGUMENTS = st.one_of(
    st.sampled_from(
        [None, True, False, [], {}, [1], ("a",), b"x", object(), float("nan"), float("inf"), 2.5, 2**31, 10**23, *HOSTILE]
    ),
    st.integers(-5, 64),
    st.floats(),
    st.text(max_size=8),
)


def check_call(name: str, value: Any) -> None:
    """Check that a call succeeds, or raises a ValueError or an UnknownNameError."""
    with suppress(ValueError, UnknownNameError):
        CALLS[name](value)


DRAWN = st.integers(0, 4).map(lambda value: value == 0)
"""Strategy that is True for about one example in five, whose figures are drawn."""

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
few = settings(max_examples=FEW, deadline=None, derandomize=True, suppress_health_check=SLOW, database=None)
many = settings(max_examples=MANY, deadline=None, suppress_health_check=SLOW, database=None)


def test_damaged_records_end_no_command():
    few(given(damaged(), st.just(True))(check_damaged))()


def test_bad_calls_end_in_words():
    few(given(st.sampled_from(sorted(CALLS)), ARGUMENTS)(check_call))()


def test_what_is_added_is_read():
    few(given(odd_records())(check_added))()


@pytest.mark.exhaustive
def test_a_thousand_added_records_are_read():
    many(given(odd_records())(check_added))()


@pytest.mark.exhaustive
def test_a_thousand_damaged_records_end_no_command():
    many(given(damaged(), DRAWN)(check_damaged))()


@pytest.mark.exhaustive
def test_a_thousand_bad_calls_end_in_words():
    many(given(st.sampled_from(sorted(CALLS)), ARGUMENTS)(check_call))()
