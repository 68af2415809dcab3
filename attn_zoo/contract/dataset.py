"""Published data sets that tasks read: the files in the data folder, how to read them and how to download them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from attn_zoo.contract.errors import DamagedDataError, MissingDataError

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Layout(Generic[Content]):
    """One form in which a data set can be stored in the data folder: the names of its files, and how to read them."""

    title: str
    """Name of this form, such as ``JSON lines`` or ``as published``."""
    files: tuple[tuple[str, ...], ...]
    """Required files and folders in the data folder. Each is given by a tuple of the names that it may have."""
    read: Callable[[Sequence[Path]], Content]
    """Function that reads the content, given the paths in the order of ``files``. It raises DamagedDataError for damaged
    content.
    """
    read_rest: Callable[[Content], None] | None = None
    """Function that reads and checks everything that ``read`` leaves for later. None if ``read`` reads all files."""

    def missing(self, root: Path) -> list[str]:
        """Return the required files that the data folder ``root`` lacks. A file that may have several names is listed under its
        first name.
        """
        return [names[0] for names in self.files if not any((root / name).exists() for name in names)]

    def paths(self, root: Path) -> list[Path]:
        """Return the paths of the files in the order of ``files``. For a file that may have several names, the first name that
        exists is used.
        """
        return [next(root / name for name in names if (root / name).exists()) for names in self.files]


@dataclass(frozen=True, slots=True)
class DataSet(Generic[Content]):
    """Published data set in one of several layouts. Tasks read its content, and never change its files."""

    name: str
    title: str
    """Name of the data set in tables."""
    source: str
    licence: str
    layouts: tuple[Layout[Content], ...]
    """Accepted layouts. The first one that is complete is used."""
    download: Callable[[Path], None] | None = None
    """Function that downloads the data into the data folder, in one of the layouts, and verifies the checksum. None if no library
    offers the data.
    """
    obtain: str = ""
    """Where to get the data by hand, if there is no function for the download."""

    def layout(self, root: Path) -> Layout[Content] | None:
        """Return the first layout whose files are all in the data folder ``root``, or None if no layout is complete."""
        return next((layout for layout in self.layouts if not layout.missing(root)), None)

    def load(self, root: Path) -> Content:
        """Return the content of the data set, read from the data folder ``root``.

        Raises:
            MissingDataError: no layout is complete; the message says what to put where.
            DamagedDataError: a file cannot be read, or does not hold the expected content.
        """
        layout = self.layout(root)
        if layout is None:
            raise MissingDataError(self._what_is_missing(root))
        paths = layout.paths(root)
        try:
            return layout.read(paths)
        except DamagedDataError as error:
            raise DamagedDataError(
                f"{self.title}: {error}. Fetch it again, or check it with: attn-zoo data prepare {self.name}"
            ) from error

    def _what_is_missing(self, root: Path) -> str:
        begun = [layout for layout in self.layouts if len(layout.missing(root)) < len(layout.files)]
        if begun:
            lacking = " and ".join(begun[0].missing(root))
            what = f"{lacking} is missing below {root}, where the rest of {begun[0].title} is present"
        else:
            forms = "; or ".join(
                f"{', '.join(' or '.join(names) for names in layout.files)} ({layout.title})" for layout in self.layouts
            )
            what = f"no data found below {root}; this folder must contain {forms}"
        how = f"'attn-zoo data prepare {self.name}' fetches it" if self.download else self.obtain or f"it comes from {self.source}"
        return (
            f"{self.title}: {what}. {how}. To use another folder, set the environment variable ATTN_ZOO_DATA or, for a run, give "
            "data.root=FOLDER"
        )
