"""From docstrings and values to Markdown."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from tabulate import tabulate

from attn_zoo.contract import length_rules

_HEADING = re.compile(r"([A-Z][a-z]+):(?:\s+|$)(.*)")
_CODE = re.compile(r"(``.+?``)", re.DOTALL)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|$~])")
_RULE = re.compile(r"\|(-+\|)+")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A house docstring taken apart: paragraphs, then parts with a heading such as ``Paper:`` or ``Differs:``."""

    paragraphs: tuple[str, ...]
    parts: dict[str, str]


def docstring(of: Any) -> Docstring:
    """The docstring of a class or function, as Markdown."""
    paragraphs: list[str] = []
    parts: dict[str, str] = {}
    for block in re.split(r"\n\s*\n", inspect.getdoc(of) or ""):
        lines = block.splitlines()
        if not lines or not _HEADING.match(lines[0]):
            paragraphs.append(prose(" ".join(line.strip() for line in lines)))
            continue
        name = ""
        for line in lines:
            if found := _HEADING.match(line):
                name = found[1]
                parts[name] = found[2]
            else:
                parts[name] += f" {line.strip()}"
    return Docstring(tuple(paragraphs), {name: prose(text.strip()) for name, text in parts.items()})


def prose(text: str) -> str:
    """Plain text with code in double backticks, as Markdown that shows just that; arXiv identifiers become links."""
    pieces = _CODE.split(text)
    pieces = [piece if piece.startswith("``") else _SPECIAL.sub(r"\\\1", piece) for piece in pieces]
    return _ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", "".join(pieces))


def value(given: Any) -> str:
    """An option's value as it is typed on a command line, as code; a dash for an empty one."""
    plain = str(given.value if isinstance(given, Enum) else given)
    return f"`{plain}`" if plain else "-"


def values(given: Any) -> str:
    """Several, ``key=value``."""
    return ", ".join(f"`{name}={getattr(chosen, 'value', chosen)}`" for name, chosen in given.items()) or "-"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A Markdown table; columns named in ``right`` are aligned so."""
    align = ["right" if name in right else "left" for name in head]
    return tabulate(rows, head, tablefmt="pipe", disable_numparse=True, colalign=align if rows else None)


def aligned(text: str) -> str:
    """Tables whose columns are set to the right by blanks alone, as a terminal shows them, are so on a page as well; the page of
    columns becomes a link."""
    lines = re.sub(r"\b([Cc]olumns(?: and \w+)?): docs/([\w/.#-]+\w)", r"[\1](/\2)", text).splitlines()
    for at, line in enumerate(lines[1:], 1):
        if _RULE.fullmatch(line):
            heads, rules = lines[at - 1].strip("|").split("|"), line.strip("|").split("|")
            to_right = [len(cell) - len(cell.lstrip()) > len(cell) - len(cell.rstrip()) for cell in heads]
            lines[at] = "|" + "|".join(f"{rule[:-1]}:" if r else rule for rule, r in zip(rules, to_right, strict=True)) + "|"
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Option:
    """A field of an options class."""

    name: str
    default: str
    choices: str
    """Of an enum, with what each means; empty for others."""
    means: str


def options(kind: type) -> list[Option]:
    """The fields of an options dataclass with the words beneath each, in the classes it inherits from as well."""
    found = []
    words, rules = _field_docs(kind), length_rules(kind)
    for field in fields(kind):
        default = rules[field.name].words if field.name in rules else field.default
        said = words.get(field.name, "")
        if isinstance(default, Enum) and not said:
            said = " ".join((inspect.getdoc(type(default)) or "").partition("\n\n")[0].split())
        found.append(Option(field.name, value(default), _choices(default), prose(said)))
    return found


def field_docs(kind: type) -> dict[str, str]:
    """The words beneath each field of a class itself, as Markdown."""
    return {name: prose(words) for name, words in _field_docs(kind).items()}


def _choices(default: Any) -> str:
    if not isinstance(default, Enum):
        return ""
    words = _field_docs(type(default))
    return "; ".join(value(m) + (f": {prose(words[m.name]).rstrip('.')}" if m.name in words else "") for m in type(default))


def _field_docs(kind: type) -> dict[str, str]:
    """Strings that stand right after an assignment in the body of a class, which Python itself does not keep."""
    found: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith(kind.__module__.partition(".")[0])]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for assigned, after in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)):
                continue
            targets = [assigned.target] if isinstance(assigned, ast.AnnAssign) else getattr(assigned, "targets", [])
            found.update({t.id: " ".join(after.value.value.split()) for t in targets if isinstance(t, ast.Name)})
    return found
