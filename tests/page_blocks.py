"""Code blocks of Markdown pages, and a program that runs those of one page as its reader would.

``python tests/page_blocks.py PAGE`` runs, in the order of the page and in the current folder, every block of Python in one
namespace and every block of bash in its own shell, which stops at the first failure. A block marked ``python FILE`` is written to
that file instead. A block marked ``text output`` right after
another holds the output of that block; ``...`` matches anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from mdit_py_plugins.front_matter import front_matter_plugin

RUN = ("python", "bash")
"""Languages of blocks that are run."""
PARSED: Mapping[str, Callable[[str], Any]] = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}
OUTPUT = "text output"
_ALIASES = dict.fromkeys(("py", "python3", "ipython", "pycon"), "python") | dict.fromkeys(("sh", "shell", "zsh"), "bash")
_CODE_DIRECTIVES = ("{code-block}", "{code}", "{sourcecode}")
_SHOWN = ("{literalinclude}", "{toctree}", "{include}", "{figure}", "{image}")
"""Directives without Markdown inside."""
_PARSER = MarkdownIt("commonmark").use(front_matter_plugin)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its info string, its content, and the line of the page on which the content begins, counted from 1."""

    info: str
    content: str
    line: int
    output: str | None = None
    """Printed output, if the page shows it."""

    @property
    def language(self) -> str:
        """First word of the info string."""
        return self.info.partition(" ")[0]

    @property
    def file(self) -> str:
        """File that the block is to be written to; empty if it is run."""
        return self.info.partition(" ")[2] if self.language == "python" else ""


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page in order, including those inside directives.

    Raises:
        ValueError: a block of code is written so that it would not be run, or an output has no block before it.
    """
    found: list[Block] = []
    for block in _fences(text, 1):
        if block.info == OUTPUT:
            if not found or found[-1].language not in RUN:
                raise ValueError(f"line {block.line}: an output stands right after a block that is run")
            found[-1] = Block(found[-1].info, found[-1].content, found[-1].line, block.content)
        else:
            found.append(block)
    return found


def front_matter(text: str) -> Mapping[str, Any]:
    """Front matter of a page, the YAML between dashes at its top; empty if there is none."""
    for token in _PARSER.parse(text):
        if token.type == "front_matter":
            return yaml.safe_load(token.content) or {}
    return {}


def _fences(text: str, first_line: int) -> Iterator[Block]:
    for token in _PARSER.parse(text):
        if token.type != "fence":
            continue
        assert token.map is not None
        info, line = token.info.strip(), first_line + token.map[0] + 1
        directive, _, argument = info.partition(" ")
        if directive in _CODE_DIRECTIVES and (argument in RUN or argument in _ALIASES):
            raise ValueError(f"line {line}: write a fence of {_ALIASES.get(argument, argument)}, so that it is run")
        if directive == "{eval-rst}":
            if re.search(r"\.\. (code-block|code|sourcecode):: *(python|bash)", token.content):
                raise ValueError(f"line {line}: code in reStructuredText is not run; write a fence in Markdown")
        elif info in _ALIASES:
            raise ValueError(f"line {line}: call it {_ALIASES[info]}, so that it is run")
        elif directive.startswith("{") and directive not in (*_CODE_DIRECTIVES, *_SHOWN):
            yield from _fences(token.content, line)
        else:
            yield Block(info, token.content, line)


def run_page(page: Path) -> None:
    """Run the page's blocks in the current folder.

    Raises:
        RuntimeError: a shell failed, or the output of a block differs from the page's.
        Exception: any error of a block of Python.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language not in RUN:
            continue
        where = f"{page.name}:{block.line}"
        print(f"== {where} ({block.info})", flush=True)
        if block.file:
            Path(block.file).write_text(block.content, encoding="utf-8")
            continue
        printed = _python(block, page, namespace) if block.language == "python" else _bash(block, where)
        print(printed, end="", flush=True)
        if block.output is not None and not doctest.OutputChecker().check_output(block.output, printed, doctest.ELLIPSIS):
            raise RuntimeError(f"{where}: the page says that this is printed:\n{block.output}\nbut it was:\n{printed}")


def _python(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    padded = "\n" * (block.line - 1) + block.content  # so that tracebacks name lines of the page
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(padded, str(page), "exec"), namespace)
    return out.getvalue()


def _bash(block: Block, where: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = ["bash", "-euo", "pipefail", "-c", block.content]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path}, check=False)
    if done.returncode:
        raise RuntimeError(f"{where}: status {done.returncode} after printing:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
