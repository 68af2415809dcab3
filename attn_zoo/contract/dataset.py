"""Published data that tasks read: under which names its files may lie in the data folder, and who can fetch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from attn_zoo.contract.errors import DamagedDataError, MissingDataError

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Layout(Generic[Content]):
    """One form in which the files of a data set are found."""

    title: str
    """Such as ``JSON lines`` or ``as published``."""
    files: tuple[tuple[str, ...], ...]
    """What is needed: for every file or folder the names it may have, below the data folder."""
    read: Callable[[Sequence[Path]], Content]
    """Content of the files, given in the order of ``files``. Raises DamagedDataError."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Digests of files as they are usually passed on, by name; others are no error, their content is what counts."""

    def missing(self, root: Path) -> list[str]:
        """Names of what is not there, the first name of each."""
        return [names[0] for names in self.files if not any((root / name).exists() for name in names)]

    def paths(self, root: Path) -> list[Path]:
        """What is there, in the order of ``files``, under the first name that exists."""
        return [next(root / name for name in names if (root / name).exists()) for names in self.files]


@dataclass(frozen=True, slots=True)
class DataSet(Generic[Content]):
    """A published data set. Tasks take its content; the files stay where they are and are never changed."""

    name: str
    title: str
    """As tables name it."""
    source: str
    licence: str
    layouts: tuple[Layout[Content], ...]
    """Tried in this order."""
    download: Callable[[Path], None] | None = None
    """Puts it below a data folder in one of the layouts, its checksum proved; None where no library offers that."""
    obtain: str = ""
    """Where a person gets it, when nothing downloads it."""

    def layout(self, root: Path) -> Layout[Content] | None:
        """The first layout that is there whole, if any."""
        return next((layout for layout in self.layouts if not layout.missing(root)), None)

    def load(self, root: Path) -> Content:
        """Its content.

        Raises:
            MissingDataError: no layout is there whole; the message says what to put where.
            DamagedDataError: a file is not what it must be.
        """
        layout = self.layout(root)
        if layout is None:
            raise MissingDataError(self._what_is_missing(root))
        paths = layout.paths(root)
        try:
            return layout.read(paths)
        except DamagedDataError as error:
            raise DamagedDataError(f"{self.title}: {error}; fetch it again, or see 'attn-zoo data verify {self.name}'") from error

    def _what_is_missing(self, root: Path) -> str:
        begun = [layout for layout in self.layouts if len(layout.missing(root)) < len(layout.files)]
        if begun:
            lacking = " and ".join(begun[0].missing(root))
            what = f"{lacking} is missing below {root}, the rest of {begun[0].title} is there"
        else:
            forms = "; or ".join(
                f"{', '.join(' or '.join(names) for names in layout.files)} ({layout.title})" for layout in self.layouts
            )
            what = f"no data found below {root}; put there {forms}"
        how = f"'attn-zoo data prepare {self.name}' fetches it" if self.download else self.obtain or f"it comes from {self.source}"
        return (
            f"{self.title}: {what}. {how}. Another folder is named with data.root=FOLDER or the environment variable ATTN_ZOO_DATA"
        )
