"""Bad arguments of the public API are refused by a ValueError that names them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attn_zoo import MultiHeadAttention, build_attention, join_layers
from attn_zoo.attention.dense.softmax import Softmax
from attn_zoo.contract import Frames, Geometry, Patches, TaskSpec, Tokens
from attn_zoo.integrations.timm import attention_layer
from attn_zoo.leaderboard import leaderboard, tables
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.registry import build_task, card, register_attention, register_task, task_card

GEOMETRY = Geometry(2, 8, 16, 16)
X = torch.zeros(1, 2, 16, 8)
LAYER = MultiHeadAttention(16, 2, length=8)
STEPS = MultiHeadAttention(16, 2, attention="linear", length=8, causal=True)


def registered(attention: object = Softmax, **changes: object) -> None:
    """Register an attention with the facts of softmax, some of them replaced by ``changes``."""
    own = {"title": "t", "paper": "p", "equation": "e", "can": card("softmax").can, "cost": card("softmax").cost}
    facts: dict[str, Any] = {**own, "time": "n", "memory": "n", "options": card("softmax").options, **changes}
    register_attention("never_registered", **{name: fact for name, fact in facts.items() if fact != "left out"})(attention)  # type: ignore[type-var]


CALLS = {
    "classes": lambda: TaskSpec(Tokens(4), 8, classes=0),
    "length": lambda: TaskSpec(Tokens(4), 2.5, classes=2),  # type: ignore[arg-type]
    "length ": lambda: TaskSpec(Tokens(4), True, classes=2),
    "labels": lambda: TaskSpec(Tokens(4), 8, classes=2, labels="row"),  # type: ignore[arg-type]
    "causal": lambda: TaskSpec(Tokens(4), 8, classes=2, labels="position", causal="yes"),  # type: ignore[arg-type]
    "problem": lambda: TaskSpec(Tokens(4), 8, classes=2, problem="guessing"),  # type: ignore[arg-type]
    "frames.channels": lambda: Frames(2.0),  # type: ignore[arg-type]
    "inputs": lambda: TaskSpec("tokens", 8, classes=2),  # type: ignore[arg-type]
    "vocabulary": lambda: Tokens(0),
    "patch": lambda: Patches(1, 8, 8, 2.0),  # type: ignore[arg-type]
    "geometry.heads": lambda: Geometry(True, 8, 16, 16),
    "geometry.keys": lambda: Geometry(2, 8, 16, 10**23),
    "geometry.causal": lambda: Geometry(2, 8, 16, 16, causal=1),  # type: ignore[arg-type]
    "geometry": lambda: build_attention("softmax", (2, 8, 16, 16)),  # type: ignore[arg-type]
    "geometry ": lambda: build_attention("softmax", None),  # type: ignore[arg-type]
    "implementation": lambda: build_attention("softmax", GEOMETRY, implementation=None),  # type: ignore[arg-type]
    "projected_length": lambda: build_attention("linformer", GEOMETRY, projected_length=4.0),
    "projected_length ": lambda: build_attention("linformer", GEOMETRY, projected_length=True),
    "dropout": lambda: build_attention("softmax", GEOMETRY, dropout=math.nan),
    "dropout ": lambda: build_attention("softmax", GEOMETRY, dropout="much"),
    "dtype        ": lambda: build_attention("softmax", GEOMETRY, dtype=torch.int32),
    "dtype ": lambda: build_attention("linear", GEOMETRY, implementation="eager", dtype="float32"),  # type: ignore[arg-type]
    "dtype  ": lambda: MultiHeadAttention(16, 2, length=8, dtype=torch.int32),
    "dtype   ": lambda: STEPS.initial_state(1, dtype=torch.int32),
    "dtype    ": lambda: STEPS.mechanism.initial_state(1, dtype=torch.complex64),
    "dtype     ": lambda: attention_layer("linformer", length=8)(16, 2, dtype=torch.int32),
    "dtype      ": lambda: build_attention("softmax", GEOMETRY, dtype=torch.float8_e4m3fn),
    "the name of an attention": lambda: card(None),  # type: ignore[arg-type]
    "the name of an attention ": lambda: build_attention(7, GEOMETRY),  # type: ignore[arg-type]
    "the name of a task": lambda: task_card(None),  # type: ignore[arg-type]
    "the name of a task ": lambda: build_task(["digits"]),  # type: ignore[arg-type]
    "split": lambda: build_task("digits").examples("foo"),  # type: ignore[arg-type]
    "split ": lambda: build_task("needle").slices(None),  # type: ignore[arg-type]
    "dim": lambda: MultiHeadAttention(16.0, 2, length=8),  # type: ignore[arg-type]
    "heads": lambda: MultiHeadAttention(16, True, length=8),
    "length of a layer": lambda: MultiHeadAttention(16, 2, length=2.5),  # type: ignore[arg-type]
    "context_length": lambda: MultiHeadAttention(16, 2, length=8, context_length="all"),  # type: ignore[arg-type]
    "output_dropout": lambda: MultiHeadAttention(16, 2, length=8, output_dropout=None),  # type: ignore[arg-type]
    "bias": lambda: MultiHeadAttention(16, 2, length=8, bias=0),  # type: ignore[arg-type]
    "short_convolution": lambda: MultiHeadAttention(16, 2, length=8, short_convolution=1.5),  # type: ignore[arg-type]
    "model.dim": lambda: ModelSpec(dim=64.0),  # type: ignore[arg-type]
    "model.depth": lambda: ModelSpec(depth=True),
    "model.mlp_ratio": lambda: ModelSpec(mlp_ratio=math.inf),
    "budget.learning_rate": lambda: Budget(learning_rate=math.inf),
    "budget.weight_decay": lambda: Budget(weight_decay=math.nan),
    "budget.seconds": lambda: Budget(seconds=math.inf),
    "budget.steps": lambda: Budget(steps=10.0),  # type: ignore[arg-type]
    "budget.batch_size": lambda: Budget(batch_size=10**20),
    "tokens": lambda: LAYER([[0.0]]),
    "tokens ": lambda: LAYER(torch.zeros(1, 8, 16, dtype=torch.long)),
    "key_valid": lambda: LAYER(torch.zeros(1, 8, 16), key_valid=[True] * 8),
    "batch": lambda: STEPS.initial_state(-1),
    "batch ": lambda: STEPS.initial_state(2.5),  # type: ignore[arg-type]
    "dtype": lambda: STEPS.initial_state(1, dtype="float32"),  # type: ignore[arg-type]
    "model": lambda: join_layers([LAYER]),  # type: ignore[arg-type]
    "query": lambda: build_attention("softmax", GEOMETRY)(X.numpy(), X, X),
    "key": lambda: build_attention("softmax", GEOMETRY)(X, X.bool(), X),
    "value": lambda: build_attention("softmax", GEOMETRY)(X, X, None),
    "value ": lambda: build_attention("softmax", GEOMETRY)(X, X, X.to(torch.complex64)),
    "subclass of Attention": lambda: registered(5),
    "titel": lambda: registered(titel="t"),
    "can": lambda: registered(can=None),
    "cost": lambda: registered(cost=None),
    "paper": lambda: registered(paper="left out"),
    "time": lambda: registered(time=5),
    "options": lambda: registered(options=int),
    "variants": lambda: registered(variants=["a"]),
    "reads": lambda: registered(reads=("queries",)),
    "format": lambda: leaderboard("nowhere", format="word"),
    "by": lambda: leaderboard("nowhere", by="luck"),
    "at": lambda: leaderboard("nowhere", at=[math.nan]),
    "at ": lambda: leaderboard("nowhere", at="10"),  # type: ignore[arg-type]
    "equal": lambda: leaderboard("nowhere", equal={"time": -1.0}),
    "records": lambda: tables(None),  # type: ignore[arg-type]
    "records ": lambda: tables(["linformer"]),  # type: ignore[list-item]
    "a spec": lambda: RunSpec.from_dict({"attention": "softmax"}),
    "a spec ": lambda: RunSpec.from_dict(None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("name", "call"), CALLS.items(), ids=CALLS)
def test_a_bad_argument_is_refused_by_name(name, call):
    with pytest.raises(ValueError) as refused:
        call()
    assert name.strip().removesuffix(" of a layer") in str(refused.value)


@pytest.mark.parametrize(
    "name", ["../../x", "", "a b,c=1", "5", 5, None, "a-b", "null", "true", "x" * 65, "ソフト", "\x1b[31m", "a\n"]
)
def test_names_are_identifiers(name):
    for register, kind in ((register_attention, "an attention"), (register_task, "a task")):
        with pytest.raises(ValueError, match=f"the name of {kind} must be an identifier"):
            register(name, **({"time": "n", "memory": "n"} if register is register_attention else {}))(torch.nn.Identity)  # type: ignore[type-var]
