"""Downloads through torchvision: a progress bar, and a checksum proved before anything is kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from attn_zoo.contract import DamagedDataError, MissingDataError


def fetch_archive(url: str, md5: str, root: Path, folder: str) -> None:
    """Put ``folder``, which an archive holds, below ``root``; the archive itself is not kept.

    Args:
        md5: of the archive, as its publisher gives it.

    Raises:
        MissingDataError: it cannot be had.
        DamagedDataError: what came has another checksum.
    """
    from torchvision.datasets.utils import extract_archive

    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".fetching-") as beside:  # so that nothing half done is ever found
        archive = _fetch([url], md5, Path(beside))
        extract_archive(str(archive), beside)
        found = Path(beside) / folder
        if not found.is_dir():
            raise DamagedDataError(f"{url} holds no folder {folder}")
        shutil.rmtree(root / folder, ignore_errors=True)
        os.replace(found, root / folder)


def fetch_files(mirrors: Sequence[str], md5: Mapping[str, str], folder: Path) -> None:
    """Put files into ``folder``, each from the first mirror that has it.

    Args:
        mirrors: addresses that end in a slash.
        md5: checksums by file name.

    Raises:
        MissingDataError: a file cannot be had.
        DamagedDataError: what came has another checksum.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as beside:
        for name, checksum in md5.items():
            os.replace(_fetch([mirror + name for mirror in mirrors], checksum, Path(beside)), folder / name)


def _fetch(urls: Sequence[str], md5: str, folder: Path) -> Path:
    from torchvision.datasets.utils import download_url

    said = []
    for url in urls:
        path = folder / url.rsplit("/", 1)[-1]
        try:
            download_url(url, str(folder), path.name, md5)
        except OSError as error:  # URLError is one
            said.append(f"{url}: {error}")
        except RuntimeError as error:  # torchvision says so of a checksum
            raise DamagedDataError(f"{url} sent a file whose md5 is not {md5}; nothing was kept of it") from error
        else:
            return path
    raise MissingDataError(f"cannot be fetched ({'; '.join(said)}); is there a network?")
