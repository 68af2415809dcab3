"""Lint of words: turns of phrase that a reader stumbles over, in the lines that differ from the main branch.

Run as a program (``python tests/language.py [BASE]``) it prints each finding with its remedy, and exits with status 1 if there are
any. BASE is a commit; by default it is the merge base with ``origin/main``. Without a merge base nothing is read.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = ("tests/language.py", "tests/test_language.py", "docs/reference/glossary.md")
"""Files that quote what they warn of."""
PRIVATE = "ability profile|deciding task|implementation group|mutant|recommended initialisation|size option"
"""Pattern of terms that only this project uses in its sense; a page that uses one must link to the glossary."""
PAGE = re.compile(r"docs/([\w-]+/)*[\w-]+\.md|README\.md")
"""Pages to which the rule on private terms applies."""


@dataclass(frozen=True)
class Rule:
    """Pattern of a line, what to write instead, and a line that it finds with its correction, which it does not find."""

    name: str
    pattern: str
    remedy: str
    found: str
    better: str


RULES = (
    Rule(
        "fragment",
        r'^\s*[rR]?"""(Of|What|Whatever|Whichever|Whether|Who|Whose) [a-z]',
        "begin with a verb (Return ...) or, for a property, with a noun",
        '    """Whether a mask is given."""',
        '    """Return True if a mask is given."""',
    ),
    Rule(
        "no for not a",
        r"(?<![Tt]here )\b(is|are) no (?!more|less|one|such|longer|better|worse|lower|higher|larger|smaller|\w+er than)\w+",
        "write 'is not a ...' or 'are not ...'",
        "raise ValueError('the word is no pair')",
        "raise ValueError('the word is not a pair')",
    ),
    Rule(
        "at a task",
        r"[0-9%] at (a|the|each|every) task\b|(?<!fails )(?<!fail )\bat (copying|recall|induction|counting|retrieval)\b",
        "scores are on a task",
        "It scores 83 % at recall.",
        "It scores 83 % on recall.",
    ),
    Rule(
        "where for if",
        r"\bNone where\b|\bwhere (it|they|there|an?|the|no) ([\w`.]+ ){0,5}(is|are) (not )?(given|known|set|asked|named)\b",
        "write 'if' or 'when'; 'where' is for places",
        "The default is used where no seed is given.",
        "The default is used if no seed is given.",
    ),
    Rule(
        "surely",
        r"\bsurely\b|\bbeyond noise\b",
        "give the interval, or say what was tested",
        "It is surely within 5 points.",
        "It loses at most 5 points, with 95 % confidence.",
    ),
    Rule(
        "comma in a name",
        r'^\s*title="[^"]*,',
        "leave commas out of names: 'State tracking (causal)'",
        '    title="State tracking, causal",',
        '    title="State tracking (causal)",',
    ),
    Rule(
        "rule as a fact",
        r"^(?!.*\bmust\b).*\b(is|are) (one of|a share|an integer|a whole number)\b.*; got",
        "write 'must be'",
        'raise ValueError(f"kind is one of a, b; got {kind!r}")',
        'raise ValueError(f"kind must be one of a, b; got {kind!r}")',
    ),
    Rule(
        "private term",
        rf"(?i)\b({PRIVATE})s?\b",
        "link the page to the glossary: [mutants](glossary.md)",
        "Each check catches its mutants.",
        "Each check catches its broken attentions.",
    ),
)
"""Rules of LANGUAGE that a machine can see. The last one concerns pages without a link to the glossary only."""


def findings(path: str, lines: Mapping[int, str], page: str = "", before: str = "") -> Iterator[str]:
    """Yield each finding in some lines of a file, as file:line, rule, line and remedy.

    Args:
        path: path of the file, relative to the root.
        lines: text by line number.
        page: whole text of the file, in which a link to the glossary may stand.
        before: removed text; turns of phrase that stand in it are not new.
    """
    for number, line in () if path in OWN else lines.items():
        for rule in RULES:
            match = re.search(rule.pattern, line)
            linked = rule.name == "private term" and (not PAGE.fullmatch(path) or "glossary.md" in page)
            if match and not linked and line[max(0, match.start() - 10) : match.end() + 10] not in before:
                yield f"{path}:{number}: {rule.name}: {line.strip()[:120]}\n    {rule.remedy}"


def changed(difference: str) -> tuple[dict[str, dict[int, str]], str]:
    """Return the added lines of a unified diff without context, by file and line number, and the removed text."""
    path, number, added = "", 0, dict[str, dict[int, str]]()
    removed = list[str]()
    for line in difference.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif line.startswith("@@"):
            number = int(re.split(r"\+|,| ", line.partition("+")[2])[0])
        elif line.startswith("+"):
            added.setdefault(path, {})[number] = line[1:]
            number += 1
        elif line.startswith("-") and not line.startswith("--- "):
            removed.append(line[1:])
    return added, "\n".join(removed)


def main(words: list[str], root: Path = ROOT) -> int:
    """Print the findings in what differs from BASE, and return 1 if there are any."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout

    base = words[0] if words else git("merge-base", "HEAD", "origin/main").strip()
    added, before = changed(git("diff", "-U0", "--no-color", "--no-ext-diff", base, "--", "*.py", "*.md") if base else "")
    found = [
        each for path, lines in added.items() for each in findings(path, lines, (root / path).read_text(encoding="utf-8"), before)
    ]
    print("\n".join(found) or f"words: nothing found in {len(added)} changed files")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
