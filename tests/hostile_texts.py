"""Hostile texts, and records, files and sources that hold one of them in every place where foreign text can enter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from make import make_record

from attn_zoo.published import SCORE, Figure, Protocol, Source
from attn_zoo.records import RunRecord, Store, Tuning

TEXTS = {
    **{f"control {sign:#04x}": f"nam{chr(sign)}e" for sign in (0x00, 0x01, 0x07, 0x08, 0x09, 0x0B, 0x0C, 0x1B, 0x1F, 0x7F)},
    **{f"control {sign:#04x}": f"nam{chr(sign)}e" for sign in (0x80, 0x85, 0x90, 0x9B, 0x9C, 0x9D, 0x9F)},
    "line feed": "name\nattn-zoo: nothing is wrong",
    "carriage return": "name\rattn-zoo: nothing is wrong",
    "both": "name\r\nattn-zoo: nothing is wrong",
    "line separator": "name\u2028line",
    "paragraph separator": "name\u2029line",
    "colour": "\x1b[31mname\x1b[0m",
    "clear the screen": "\x1b[2J\x1b[Hname",
    "window title": "\x1b]0;name\x07",
    "link of a terminal": "\x1b]8;;http://x\x1b\\name\x1b]8;;\x1b\\",
    "right to left": "\u202ename\u202c",
    "isolates": "\u2066name\u2069",
    "right-to-left mark": "na\u200fme",
    "zero width": "na\u200b\u200c\u200d\u2060me",
    "byte order mark": "\ufeffname",
    "soft hyphen": "na\u00adme",
    "blank letter": "name\u3164\u115f",
    "tag letters": "name\U000e0041",
    "noncharacters": "name\ufffe\uffff",
    "half of a pair": "name\udc9b",
    "tag": "name<script>alert(1)</script>",
    "end of a comment": "name--><svg onload=x>]]>",
    "quotes": """name" onload="x' y=`z`""",
    "entity": "name&lt;&#27;&nbsp;",
    "style": "name</style></script></title>",
    "template": "name{{ 7 * 7 }}{% raw %}",
    "formula": "=cmd|' /C calc'!A0 name",
    "sum": "+1+name",
    "difference": "-1-name",
    "at": "@SUM(name)",
    "formula after a tab": "\t=name()",
    "formula after spaces": "  =name()",
    "wide formula": "\uff1dname()",
    "comma and quote": 'name","b\n"c;d',
    "pipe": "name|a\\|b|",
    "link of Markdown": "[name](javascript:x) ![a](b)",
    "mathematics": r"name$\frac{a}$ $\undefined{$",
    "LaTeX": r"name\input{/etc/passwd}%_^&#~",
    "underscore": "_name",
    "format": "name%s{0}{x!r}%n",
    "path": "../../name/.\\x:y*?",
    "long": "name" + "t" * 300,
    "wide letters": "name\u30bd\u30d5\u30c8\U0001f9ea",
    "combining": "name" + "\u0301" * 40,
    "empty": "",
    "spaces": "  name  ",
}
"""Texts by kind; all but the empty one hold ``name`` or its letters ``nam``, ``na`` and ``me``."""


def storable(text: str) -> str:
    """Return the text as a record can hold it: half of a surrogate pair only occurs in file names."""
    return text.encode(errors="backslashreplace").decode()


def hostile_record(
    text: str, attention: str, seed: int, status: str = "done", *, task: str = "task", tuning: Tuning | None = None
) -> RunRecord:
    """Return a record with ``text`` in every place that takes text, of an attention whose name begins with ``attention``."""
    name, task = attention + text, task + text
    options = {f"dial{text}": text, "size": 3}
    record = make_record(name, task, seed, status=status, spec_options=options, spec_implementation=text)
    return replace(
        record,
        attention_card={**dict.fromkeys(("title", "paper", "equation", "origin", "time", "memory"), text), "name": name}
        | {"control": attention == "none", "length_rules": {f"dial{text}": text}, f"more{text}": text},
        task_card={**record.task_card, **dict.fromkeys(("title", "summary", "source", "licence", "data"), text)},
        data={**record.data, f"split{text}": {"examples": 3, "digest": text}},
        scores={**record.scores, f"test: {text}": 0.5} if record.scores else {},
        counted={**record.counted, f"count{text}": 3},
        reason=f"ValueError: {text}" if record.reason else None,
        measured={**record.measured, f"seconds{text}": 3.0},
        environment={**record.environment, **dict.fromkeys(("cpu", "gpu", "torch", "command", "commit"), text)}
        | {f"more{text}": text, "plugins": {text: text}, "resumed": [{"command": text}]},
        implementation=text,
        warnings=(text, f"a warning: {text}"),
        tuning=tuning,
    )


def hostile_folder(folder: Path, text: str) -> Path:
    """Fill a folder with finished, failed and tuned runs, and a damaged file, all of which hold ``text``."""
    kept = storable(text)
    store = Store(folder)
    for seed in (1, 2, 3):
        for attention in ("softmax", "none", "mine"):
            path = store.add(hostile_record(kept, attention, seed))
            if attention == "mine":
                path.rename(path.with_name(f"{as_file_name(text)}{path.name}"))
    store.add(hostile_record(kept, "softmax", 4, "failed"))
    tuning = Tuning(study=f"study{kept}", space={f"attention.dial{kept}": kept, "attention.size": "1,3"}, trials=2, best_trial=0)
    for seed in (1, 2, 3):
        store.add(hostile_record(kept, "tuned", seed, tuning=tuning))
    (folder / f"{as_file_name(text)}damaged.json").write_text(json.dumps({"schema": 5, kept: kept}), encoding="utf-8")
    return folder


def hostile_source(text: str) -> Figure:
    """Return a published figure with ``text`` in every place that takes text."""
    source = Source(text, text, text, 2026, text, text, flaws=(text,))
    protocol = Protocol(data=text, optimiser=text, schedule=text, chosen_on=text, flaws=(text,))
    return Figure(source, text, text, text, SCORE, text, "97.5", "softmax", "task", {text: text}, protocol, (text,))


def as_file_name(text: str) -> str:
    """Return the part of a text that a file name can hold."""
    return text.replace("/", "").replace("\0", "")[:40].lstrip(".")
