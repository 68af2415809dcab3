"""Downloads with torchvision. They show a progress bar and compare the checksum before anything is saved."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from attn_zoo.contract import DamagedDataError, MissingDataError


def fetch_archive(url: str, md5: str, root: Path, folder: str) -> None:
    """Download an archive, extract its ``folder`` into ``root``, and delete the archive.

    Args:
        md5: published checksum of the archive.

    Raises:
        MissingDataError: the archive cannot be downloaded.
        DamagedDataError: the download has a wrong checksum, or the archive lacks the folder.
    """
    from torchvision.datasets.utils import extract_archive

    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".fetching-") as temporary:  # so that incomplete files are never used
        archive = _fetch([url], md5, Path(temporary))
        extract_archive(str(archive), temporary)
        extracted = Path(temporary) / folder
        if not extracted.is_dir():
            raise DamagedDataError(f"{url} must hold the folder {folder}, but does not")
        shutil.rmtree(root / folder, ignore_errors=True)
        os.replace(extracted, root / folder)


def fetch_files(mirrors: Sequence[str], md5: Mapping[str, str], folder: Path) -> None:
    """Download files into ``folder``. Each file comes from the first mirror that has it.

    Args:
        mirrors: addresses that end in a slash.
        md5: checksums by file name.

    Raises:
        MissingDataError: a file cannot be downloaded.
        DamagedDataError: a download has a wrong checksum.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as temporary:
        for name, checksum in md5.items():
            os.replace(_fetch([mirror + name for mirror in mirrors], checksum, Path(temporary)), folder / name)


def _fetch(urls: Sequence[str], md5: str, folder: Path) -> Path:
    from torchvision.datasets.utils import download_url

    errors = []
    for url in urls:
        path = folder / url.rsplit("/", 1)[-1]
        try:
            download_url(url, str(folder), path.name, md5)
        except OSError as error:  # URLError is a subclass
            errors.append(f"{url}: {error}")
        except RuntimeError as error:  # torchvision raises it for a wrong checksum
            raise DamagedDataError(
                f"the file from {url} must have the MD5 sum {md5}, but has another one, so it was deleted. Fetch it again"
            ) from error
        else:
            return path
    raise MissingDataError(f"the data could not be fetched ({'; '.join(errors)}). Check the network, then try again")
