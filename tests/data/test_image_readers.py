"""Readers of images: the contents of each file format, and clear errors for files that hold something else."""

from __future__ import annotations

import hashlib
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from attn_zoo.contract import DamagedDataError, MissingDataError
from attn_zoo.data.images import Expected, read_cifar_binary, read_idx, read_npz
from attn_zoo.data.torchvision import fetch_archive, fetch_files

COLOUR = Expected(30, 20, 3, 8, 6, 5)


def arrays(channels: int = 3) -> dict[str, Any]:
    """Return the arrays of an .npz file: 30 training and 20 test images with labels."""
    chance = np.random.RandomState(0)
    shape = (8, 6, 3)[: 2 if channels == 1 else 3]
    made = {}
    for part, count in (("train", 30), ("test", 20)):
        made[f"{part}_images"] = chance.randint(0, 256, (count, *shape)).astype(np.uint8)
        made[f"{part}_labels"] = np.arange(count).astype(np.uint8) % 5
    return made


def test_an_npz_gives_channels_first(tmp_path):
    made = arrays()
    np.savez(tmp_path / "a.npz", **made, names=np.array(["other arrays are not looked at"]))
    found = read_npz(tmp_path / "a.npz", COLOUR)
    for part, images in (("train", found.train), ("test", found.test)):
        assert np.array_equal(images.levels, made[f"{part}_images"].transpose(0, 3, 1, 2))
        assert images.levels.flags.c_contiguous
        assert images.labels.dtype == np.int64 and np.array_equal(images.labels, made[f"{part}_labels"])


def test_an_npz_of_grey_images_needs_no_channels_and_any_count_can_be_taken(tmp_path):
    made = arrays(channels=1)
    np.savez_compressed(tmp_path / "a.npz", **made)
    found = read_npz(tmp_path / "a.npz", Expected(0, 0, 1, 8, 6, 5))
    assert found.train.levels.shape == (30, 1, 8, 6) and found.test.levels.shape == (20, 1, 8, 6)
    assert np.array_equal(found.train.levels[:, 0], made["train_images"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": None}, "must hold train_images; it holds train_labels, test_images, test_labels"),
        ({"test_images": np.zeros((20, 8, 6, 3))}, r"test_images must be of type uint8, because levels are 0 to 255; got float64"),
        ({"test_images": np.zeros((20, 6, 8, 3), np.uint8)}, r"20 images of .* \(3, 8, 6\); it holds 20 of shape \(3, 6, 8\)"),
        ({"test_images": np.zeros((20, 8), np.uint8)}, r"must have shape \(images, height, width, channels\); got \(20, 8\)"),
        ({"train_images": np.zeros((29, 8, 6, 3), np.uint8)}, "train_images must hold 30 images .*; it holds 29"),
        (
            {"train_labels": np.zeros(29, np.uint8)},
            r"must hold 30 integers in one dimension; got labels of type uint8 and shape \(29,\)",
        ),
        ({"train_labels": np.zeros(30)}, "labels of type float64"),
        ({"train_labels": np.arange(30)}, "train_labels: labels must be from 0 to 4; got 29"),
        ({"test_labels": -np.arange(20)}, "test_labels: labels must be from 0 to 4; got -19"),
        ({"train_labels": np.array([{}] * 30)}, "Object arrays cannot be loaded"),
    ],
)
def test_an_npz_of_something_else_is_named(tmp_path, change, message):
    made = {name: array for name, array in {**arrays(), **change}.items() if array is not None}
    np.savez(tmp_path / "a.npz", **made)
    with pytest.raises(DamagedDataError, match=f"a.npz.*{message}"):
        read_npz(tmp_path / "a.npz", COLOUR)


def test_a_damaged_npz_is_named(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **arrays())
    whole = (tmp_path / "a.npz").read_bytes()
    np.save(tmp_path / "single.npy", np.zeros(3))
    single = (tmp_path / "single.npy").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    for damaged in (whole[:-30], whole[: len(whole) // 2], bytes(flipped), b"", b"not a zip at all", single):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=r"a\.npz is not an .npz with train_images"):
            read_npz(tmp_path / "a.npz", COLOUR)


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifars_binary_version_is_labels_then_channels(tmp_path, label_bytes):
    made = arrays()

    def records(part: str, at: slice) -> bytes:
        images, labels = made[f"{part}_images"][at], made[f"{part}_labels"][at]
        groups = [bytes([200])] * (label_bytes - 1)
        return b"".join(
            b"".join([*groups, bytes([y])]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(images, labels, strict=True)
        )

    paths = [tmp_path / f"data_batch_{n}.bin" for n in range(1, 4)]
    for n, path in enumerate(paths):
        path.write_bytes(records("train", slice(10 * n, 10 * n + 10)))
    test = tmp_path / "test_batch.bin"
    test.write_bytes(records("test", slice(None)))
    found = read_cifar_binary(paths, test, COLOUR, label_bytes)
    assert np.array_equal(found.train.levels, made["train_images"].transpose(0, 3, 1, 2))
    assert np.array_equal(found.train.labels, made["train_labels"])
    assert np.array_equal(found.test.levels, made["test_images"].transpose(0, 3, 1, 2))
    whole, record = test.read_bytes(), label_bytes + 144
    test.write_bytes(whole[:-1])
    with pytest.raises(
        DamagedDataError, match=f"test_batch.bin must hold {20 * record} bytes .* but holds {20 * record - 1}; it is truncated"
    ):
        read_cifar_binary(paths, test, COLOUR, label_bytes)
    test.write_bytes(whole + b"\0")
    with pytest.raises(DamagedDataError, match="another file"):
        read_cifar_binary(paths, test, COLOUR, label_bytes)
    test.write_bytes(whole[: label_bytes - 1] + b"\7" + whole[label_bytes:])
    with pytest.raises(DamagedDataError, match=r"test_batch.bin: labels must be from 0 to 4; got 7"):
        read_cifar_binary(paths, test, COLOUR, label_bytes)


def test_an_idx_file_that_is_too_long_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + b"abcd")
    with pytest.raises(DamagedDataError, match="must hold 3 values, but holds 4; it is truncated or too long"):
        read_idx(tmp_path / "x", (3,))


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def server(tmp_path):
    """Address of an HTTP server of the files in ``tmp_path / "here"``."""
    (tmp_path / "here").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "here"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}/"
        serving.shutdown()


def test_files_are_fetched_from_the_first_mirror_that_has_them_and_kept_if_their_checksum_fits(tmp_path, server):
    (tmp_path / "here" / "a.gz").write_bytes(b"content")
    mirrors = (server + "nowhere/", server)
    fetch_files(mirrors, {"a.gz": md5(b"content")}, tmp_path / "there")
    assert (tmp_path / "there" / "a.gz").read_bytes() == b"content"
    with pytest.raises(DamagedDataError, match=r"the file from .*a.gz must have the MD5 sum 0{32}, but has another one"):
        fetch_files(mirrors, {"a.gz": "0" * 32}, tmp_path / "other")
    with pytest.raises(MissingDataError, match=r"could not be fetched \(http:.*nowhere/b.gz.*404.*Check the network"):
        fetch_files(mirrors, {"b.gz": "0" * 32}, tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_of_an_archive_the_folder_is_kept(tmp_path, server):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "x.bin").write_bytes(b"content")
    packed = tmp_path / "here" / "a.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "records", "records")
    url, checksum, root = server + "a.tar.gz", md5(packed.read_bytes()), tmp_path / "data"
    for _ in range(2):  # the second fetch replaces the first
        fetch_archive(url, checksum, root, "records")
        assert (root / "records" / "x.bin").read_bytes() == b"content"
        assert [path.name for path in root.iterdir()] == ["records"]
    with pytest.raises(DamagedDataError, match="must hold the folder others"):
        fetch_archive(url, checksum, root, "others")
    with pytest.raises(DamagedDataError, match="must have the MD5 sum"):
        fetch_archive(url, "0" * 32, root, "records")
    assert [path.name for path in root.iterdir()] == ["records"]
