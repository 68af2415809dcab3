"""``attn-zoo records``: what can be said of a folder of records."""

from __future__ import annotations

import argparse

from attn_zoo.cli import rerun
from attn_zoo.cli.records_of import FOLDER
from attn_zoo.escapes import terminal_lines
from attn_zoo.records.verify import Finding, verify
from attn_zoo.terminal import wrap


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    checking = actions.add_parser(
        "verify",
        help="find damaged, doubled, edited and foreign files",
        description="Read every record and name what is damaged, doubled, edited by hand, of other data or another protocol, or "
        "left by an interrupted write. Nothing is changed. Ends with 0 where all is well, 1 where something is not. Folders are "
        "merged by copying their files together.",
    )
    checking.add_argument("--records", default=FOLDER, metavar="FOLDER", help=f"folder of records (default: {FOLDER})")
    checking.set_defaults(handler=_verify)
    rerun.fill(actions.add_parser("rerun", help="do some of the runs anew and compare scores bit for bit"))


def _verify(parsed: argparse.Namespace) -> int:
    verdict = verify(parsed.records)
    wrong = sum(not finding.harmless for finding in verdict.findings)
    said = "nothing is wrong" if verdict.clean else f"{wrong} finding{'' if wrong == 1 else 's'}"
    print(wrap(f"{parsed.records}: {verdict.records} records of {verdict.runs} runs; {said}"))
    for finding in verdict.findings:
        print(wrap(terminal_lines(_told(finding))))
    return 0 if verdict.clean else 1


def _told(finding: Finding) -> str:
    """One line, and the files beneath; of what is harmless only how many and the first."""
    if finding.harmless and len(finding.files) > 1:
        return f"({finding.kind}) {finding.words}: {len(finding.files)} files, such as {finding.files[0]}"
    name = f"({finding.kind})" if finding.harmless else f"{finding.kind}:"
    return "\n".join([f"{name} {finding.words}", *(f"    {file}" for file in finding.files)])
