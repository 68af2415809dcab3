"""Cases, results and reports of the conformance tests, for mechanisms and tasks alike."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import SkipTest

import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from attn_zoo.conformance.causes import likeliest_cause
from attn_zoo.contract import UnknownNameError, UnsupportedError
from attn_zoo.escapes import error_text, terminal
from attn_zoo.plugin_imports import apart

TORCH, KIT = Path(torch.__file__).parent, Path(__file__).parent

Status = Literal["passed", "failed", "skipped", "waived"]
"""Outcome of a check; ``waived`` is a failure that the caller expected."""


class Violation(AssertionError):
    """Error that a check raises if a mechanism or task fails. The message says what was found and how far off it is."""


class NotApplicable(SkipTest):
    """Error that a check raises if it does not apply to a mechanism or task. The message is the reason. Test runners report the
    check as skipped."""


class Partly(str):
    """Remark of a check that passed but did not test everything. Reports print only remarks of this class."""


def require(holds: object, message: str) -> None:
    """Raise ``Violation`` with ``message`` unless the argument ``holds`` is true. Unlike ``assert``, this function also works under
    ``python -O``.
    """
    if not holds:
        raise Violation(message)


def require_finite(numbers: Tensor, what: str) -> None:
    """Require that all numbers of a tensor are finite.

    Args:
        what: description of the tensor. The message begins with it.

    Raises:
        Violation: some numbers are NaN or infinite; the message counts them.
    """
    bad = int((~numbers.isfinite()).sum())
    require(bad == 0, f"{what}: {bad} of {numbers.numel()} numbers are NaN or infinite")


@contextmanager
def blamed(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Return a context in which an error of one of these classes becomes a ``Violation``. Its message begins with ``what``."""
    try:
        yield
    except errors as error:
        raise Violation(f"{what}: {type(error).__name__}: {error}") from error


def must_refuse(what: str, request: Callable[[], object]) -> None:
    """Require that a request outside the capabilities of a card raises ``UnsupportedError``; see ``must_raise``."""
    must_raise(UnsupportedError, f"{what} is not declared on the card, so it", request)


def must_raise(expected: type[Exception], what: str, call: Callable[[], object]) -> None:
    """Require that a call raises an error of the expected class.

    Raises:
        Violation: the call ran, or raised another exception.
    """
    try:
        call()
    except (expected, TypeCheckError):  # TypeCheckError where annotations are checked at run time
        return
    except Exception as error:
        raise Violation(f"{what} must raise {expected.__name__}; got {type(error).__name__}: {error}") from error
    raise Violation(f"{what} must raise {expected.__name__}, but it ran")


def seed_generators(seed: int) -> None:
    """Seed PyTorch's global generators of the CPU and, if CUDA is already in use, of the GPUs."""
    # torch.manual_seed stores a stack trace in each call if CUDA is not in use, which took a sixth of the time of all checks.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@dataclass(frozen=True, slots=True)
class Case:
    """One check of one mechanism or task, with one variant of its options and one implementation. Calling the case runs the check,
    which returns a remark or None, or raises ``Violation``."""

    subject: str
    check: str
    contract: str
    """Rule that the check tests, as a sentence."""
    run: Callable[[], str | None]
    variant: str = "default"
    implementation: str = ""
    """Implementation that is checked; empty for a task."""
    unavailable: str | None = None
    """Reason why this machine cannot run the case, or None."""

    @property
    def setting(self) -> str:
        """Name of the form ``variant-implementation-check``, by which an expected failure can name this case."""
        return "-".join(part for part in (self.variant, self.implementation, self.check) if part)

    @property
    def id(self) -> str:
        """Unique name of the case, of the form ``name[variant]-implementation-check``."""
        return f"{self.subject}[{self.variant}]" + self.setting.removeprefix(self.variant)

    def __call__(self) -> str | None:
        """Run the check on one thread. Afterwards, restore the caller's number of threads and random state.

        Raises:
            Violation: the mechanism or task fails the check.
            NotApplicable: the check does not apply, or this machine cannot run the case.
        """
        if self.unavailable:
            raise NotApplicable(self.unavailable)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # at the sizes of a check, threads mostly wait for each other
        try:
            with torch.random.fork_rng():
                return self.run()
        finally:
            torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a case. Its ``detail`` is the violation, the reason why the case was skipped, or the remark of the check."""

    case: Case
    status: Status
    detail: str
    seconds: float
    raised_at: str = ""
    """File and line of an exception that the plugin raised, outside of torch and the conformance tests; empty if it raised none."""

    def __str__(self) -> str:
        return f"{self.status:8}{self.case.id}" + (f": {self.detail}" if self.detail else "")


def unbuildable(name: str, variant: str, error: Exception, contract: str | None, implementation: str = "") -> Case:
    """Return a failing case of the check ``card_is_complete``, for a variant whose options cannot be built."""

    def run() -> None:
        raise Violation(f"the options of {variant!r} cannot be built: {type(error).__name__}: {error}")

    return Case(name, "card_is_complete", " ".join((contract or "").split()), run, variant, implementation)


@dataclass(frozen=True, slots=True)
class Report:
    """Results of the conformance tests of one mechanism or task, in the order in which the cases ran."""

    subject: str
    results: tuple[Result, ...]
    note: str = ""
    """Sentence at the end of the report, such as the sizes that were drawn."""
    unknown: str = ""
    """Text for the summary line about what was not tested; empty if nothing was left out."""

    @property
    def ok(self) -> bool:
        """True if nothing failed and at least one case passed."""
        return not self.failures and any(result.status == "passed" for result in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """Results of the cases that failed, including cases that were expected to fail but did not."""
        return tuple(result for result in self.results if result.status == "failed")

    def raise_on_failure(self) -> None:
        """Raise ``Violation`` if a case failed or no case passed.

        Raises:
            Violation: the message is the report.
        """
        if not self.ok:
            raise Violation(str(self))

    def __str__(self) -> str:
        """Format the summary line, the likeliest cause, failures, expected failures, remarks, reasons of skipped checks, and the
        note."""
        count = Counter(result.status for result in self.results)
        seconds = sum(result.seconds for result in self.results)
        parts = [f"{count[status]} {status}" for status in ("passed", "failed", "waived", "skipped") if count[status]]
        unknown = f"; {self.unknown}" if self.unknown else ""
        lines = [f"{self.subject}: {', '.join(parts) or 'no check ran'} in {seconds:.1f} s{unknown}"]
        if cause := likeliest_cause(self.failures):
            lines.append(f"  {cause}")
        details = Counter((result.status, result.detail) for result in self.results if result.status in ("failed", "waived"))
        for (status, detail), times in details.items():
            first = next(result for result in self.results if (result.status, result.detail) == (status, detail))
            lines.append(f"  {status:8}{first.case.id}{f' and {times - 1} more' if times > 1 else ''}: {detail}")
        lines += [f"  {result}" for result in self.results if isinstance(result.detail, Partly)]
        skipped = [result for result in self.results if result.status == "skipped"]
        for reason, times in Counter(result.detail for result in skipped).items():
            checks = dict.fromkeys(result.case.check for result in skipped if result.detail == reason)
            lines.append(f"  skipped {', '.join(checks)}{f' ({times} times)' if times > 1 else ''}: {reason}")
        return "\n".join(map(terminal, [*lines, *([f"  {self.note}"] if self.note else [])]))


def waivers_of(subject: str, cases: Iterable[Case], expected_failures: Mapping[str, str] | None) -> dict[str, str]:
    """Return the expected failures; for the meaning and the error, see ``run_cases``."""
    known = {name for case in cases for name in (case.check, case.setting)}
    for name in expected_failures or {}:
        if name not in known:
            raise UnknownNameError(f"check of {subject}", name, known)
    return dict(expected_failures or {})


def run_cases(
    subject: str,
    cases: Iterable[Case],
    expected_failures: Mapping[str, str] | None = None,
    note: str = "",
    *,
    unknown: str = "",
    tell: Callable[[Case, int], object] = lambda case, done: None,
) -> Report:
    """Run every case and return the report. An expected failure that does not occur counts as a failure.

    Args:
        subject: name of the mechanism or task.
        cases: cases to run, in this order.
        expected_failures: reasons of expected failures, by the name of a check, or by ``variant-implementation-check`` for one case
            only. An expected failure has the status ``waived``.
        note: sentence at the end of the report.
        unknown: text for the summary line about what the checks cannot test.
        tell: function that is called before each case, with the case and the number of results so far.

    Raises:
        UnknownNameError: ``expected_failures`` names a check that ``subject`` does not have.
    """
    cases = list(cases)
    waivers = waivers_of(subject, cases, expected_failures)
    used: set[str] = set()
    results: list[Result] = []
    for case in cases:
        tell(case, len(results))
        with apart(subject, f"in the check {case.check}"):
            result = _run(case)
        key = case.setting if case.setting in waivers else case.check
        if key in waivers and result.status == "failed":
            used.add(key)
            result = Result(case, "waived", f"{waivers[key]} (found: {result.detail})", result.seconds)
        results.append(result)
    for name in waivers.keys() - used:
        case = next(case for case in cases if name in (case.check, case.setting))
        found = {result.status for result in results if name in (result.case.check, result.case.setting)}
        ending = "was skipped" if found == {"skipped"} else "holds"
        detail = f"expected to fail ({waivers[name]}), but {name} {ending}; remove it from expected_failures"
        results.append(Result(case, "failed", detail, 0.0))
    return Report(subject, tuple(results), note, unknown)


def _run(case: Case) -> Result:
    start = time.perf_counter()
    status: Status
    place = ""
    try:
        status, detail = "passed", case() or ""
    except NotApplicable as reason:
        status, detail = "skipped", str(reason)
    except Violation as fault:
        status, detail = "failed", str(fault)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the entry may raise anything, and other checks still run
        file, line = _place_of(error)
        status, detail = "failed", f"{error_text(error)} ({file.name}:{line})"
        place = "" if file.is_relative_to(KIT) else f"{file}:{line}"
    return Result(case, status, detail, time.perf_counter() - start, place)


def _place_of(error: BaseException) -> tuple[Path, int]:
    """Return the file and line of an error: of the last frame outside torch, because the fault may be how torch was called."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not Path(frame.filename).is_relative_to(TORCH)]
    frame = (outside or frames)[-1]
    return Path(frame.filename), frame.lineno or 0
