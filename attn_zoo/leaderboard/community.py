"""Results submitted by other people, and the text of the page that shows them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from tabulate import tabulate

from attn_zoo.escapes import escaped, file_words, markdown
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.refusals import beside, check_printed_name
from attn_zoo.leaderboard.table import Table
from attn_zoo.leaderboard.text import render
from attn_zoo.records import RunRecord, Store, frame
from attn_zoo.records.files import NAME, SUFFIX, pack

COMMUNITY = Path("results") / "community"
"""Folder of submissions in the repository."""
FILE, CODE, TEXT = "submission.toml", "code", "README.md"
"""Names in the folder of a submission: the file on the submitter, the folder of code, and the text of the pull request."""
AGAIN = "again"
"""Name of the folder with repetitions of submitted runs, one packed file per submission. It stands beside the folders of the
submissions."""
WITHIN = 0.02
"""Largest difference at which the scores of a run and of its repetition on another machine agree (2 points of accuracy)."""


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"day": "date"}):
    """Submitter, paper and date of a submission of records."""

    name: str
    paper: str
    day: date

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("paper", self.paper)):
            if rule := check_printed_name(text):
                raise ValueError(f"names: the {what} of a submission {rule}; got {text!a}")

    def write(self, folder: Path) -> None:
        """Write the submission to the file ``submission.toml`` in ``folder``."""
        lines = [f"{key} = {json.dumps(text, ensure_ascii=False)}\n" for key, text in (("name", self.name), ("paper", self.paper))]
        (folder / FILE).write_text(f"{''.join(lines)}date = {self.day.isoformat()}\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Submission:
        """Read the submission from the file ``submission.toml`` in ``folder``.

        Raises:
            ValueError: the file is not TOML with two strings (``name``, ``paper``) and a date (``date``), or
                ``check_printed_name`` rejects a string.
            OSError: the file cannot be read.
        """
        path = folder / FILE
        try:
            return msgspec.toml.decode(path.read_bytes(), type=cls)
        except ValueError as error:
            raise ValueError(
                f"{path} must be TOML with exactly the keys name and paper (both strings) and date (YYYY-MM-DD, without quotes): "
                f"{ascii(str(error))[1:-1]:.200}. Write it again with attn-zoo submit"
            ) from error


@dataclass(frozen=True, slots=True)
class Submitted:
    """Submission together with its records."""

    folder: Path
    about: Submission
    records: Sequence[RunRecord]
    again: Sequence[RunRecord]
    """Repetitions of the submission's runs, by CI or by us."""

    @property
    def mark(self) -> str:
        """Label of the submission in tables: ``run again`` if any run was repeated, and every repetition's test score is within
        ``WITHIN`` of the submitted score; else ``self-run``.
        """
        scores = {record.run_id: record.scores.get("test") for record in self.records}
        pairs = [(scores.get(record.run_id), record.scores.get("test")) for record in self.again]
        agree = [ours is not None and theirs is not None and abs(ours - theirs) <= WITHIN for theirs, ours in pairs]
        return "run again" if agree and all(agree) else "self-run"


def submissions(root: Path) -> list[Submitted]:
    """Return the submissions in the subfolders of ``root``, the newest first. If ``root`` does not exist, the list is empty.

    Raises:
        ValueError: a file ``submission.toml`` is malformed, or the records of a submission are damaged.
    """
    found = []
    for file in root.glob(f"*/{FILE}"):
        folder, again = file.parent, root / AGAIN / f"{file.parent.name}{SUFFIX}"
        records = Store(folder / NAME).load()[0]
        found.append(Submitted(folder, Submission.read(folder), records, Store(again).load()[0] if again.exists() else []))
    return sorted(found, key=lambda one: (-one.about.day.toordinal(), one.folder.name))


def community_tables(found: Sequence[Submitted], shipped: Sequence[RunRecord]) -> list[Table]:
    """Return leaderboard tables of all submitted records and our own results. Submitted rows show the submitter, and whether
    their runs were repeated. If a submitter has several submissions of a mechanism, they also show the folder."""
    folders = grouped(((record.spec.attention, one.about.name), one.folder.name) for one in found for record in one.records)
    named = []
    for one in found:
        for record in one.records:
            several = len(set(folders[record.spec.attention, one.about.name])) > 1
            mark = one.mark + f", {one.folder.name}" * several
            spec = replace(record.spec, attention=f"{record.spec.attention} by {one.about.name} ({mark})")
            named.append(replace(record, spec=spec, source=f"{one.folder.name}/{record.source}"))
    return beside(named, shipped)


def community_text(found: Sequence[Submitted], shipped: Sequence[RunRecord]) -> str:
    """Return a dated list of the submissions and their tables as GitHub Markdown, or one sentence if there are no submissions."""
    if not found:
        return "There is no submission yet."
    rows = [
        [one.about.day.isoformat(), one.folder.name, one.about.name, one.about.paper, str(len(one.records)), one.mark]
        for one in found
    ]
    head = ["date", "folder", "submitted by", "paper", "records", "mark"]
    cells = [[escaped(cell, "github") for cell in row] for row in rows]
    history = tabulate(cells, head, tablefmt="github", disable_numparse=True)
    made = community_tables(found, shipped)
    return f"{history}\n\n{render(made, 'github', overview=True)}" if made else history


def folder_name(about: Submission, records: Sequence[RunRecord]) -> str:
    """Return the folder name of a submission, made of its date and its mechanisms."""
    return file_words("-".join(map(str, [about.day, *dict.fromkeys(record.spec.attention for record in records)])), 60)


def write_submission(
    folder: Path, about: Submission, records: Sequence[RunRecord], code: Sequence[Path], places: Sequence[str]
) -> None:
    """Write the folder of a submission. If there is an error, nothing is written.

    Args:
        code: files and folders of the submitted plugins; only Python files are copied.
        places: sentences that say where the submitted rows stand in the tables.

    Raises:
        OSError: the folder cannot be written, or a file cannot be read.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".submit-") as temporary:
        made = Path(temporary) / folder.name
        made.mkdir()
        about.write(made)
        (made / TEXT).write_text(_request(folder.name, about, records, code, places), encoding="utf-8")
        pack(records, made / NAME)
        for path in code:
            for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
                copy = made / CODE / path.name / file.relative_to(path) if path.is_dir() else made / CODE / path.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        made.rename(folder)


def _request(name: str, about: Submission, records: Sequence[RunRecord], code: Sequence[Path], places: Sequence[str]) -> str:
    """Return the text of the pull request in Markdown."""
    at = f"{COMMUNITY.as_posix()}/{name}"
    plugins = "".join(f" --plugin {shlex.quote(f'{at}/{CODE}/{path.name}')}" for path in code)
    machines = frame(records)["machine"].unique().sort().to_list()
    lines = [
        f"# {markdown(', '.join(dict.fromkeys(record.spec.attention for record in records)))} by {markdown(about.name)}\n",
        f"- Paper: {markdown(about.paper)}",
        f"- Date: {about.day.isoformat()}",
        f"- Records: {len(records)}, made on {markdown('; '.join(machines))}",
        *(f"- {markdown(words)}" for words in places),
        "\nThese commands check the folder and run one of its runs again:\n",
        f"```bash\nattn-zoo submit {at}",
        f"attn-zoo records rerun --records {at}/{NAME} --cells 1 --within {WITHIN} --into again{plugins}\n```\n",
        "The rows are marked *self-run* until CI or a maintainer has run a sample again.\n",
    ]
    return "\n".join(lines)
