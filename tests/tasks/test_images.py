"""Digits and MNIST: splits, scaling, and clear words about files that are missing or damaged."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
import torch
from attn_zoo.tasks import mnist

from attn_zoo import build_task


def test_digits_use_every_image_once_and_keep_the_shares():
    task = build_task("digits")
    parts = [task.examples(split) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == 1797
    for part in parts:
        counts = torch.bincount(part.labels(), minlength=10)
        assert counts.max() - counts.min() <= 0.08 * len(part)
    pixels = parts[0].batch(range(len(parts[0]))).inputs
    assert pixels.mean().item() == pytest.approx(0, abs=1e-5)
    assert pixels.std().item() == pytest.approx(1, abs=1e-3)


def test_digits_patches():
    assert [build_task("digits", patch=p).spec.length for p in (1, 2, 4)] == [64, 16, 4]
    with pytest.raises(ValueError, match="patch must be 1, 2 or 4"):
        build_task("digits", patch=3)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Idx files like the published ones, but of 40 and 20 images."""
    shapes = {name: ((40 if name.startswith("train") else 20), *shape[1:]) for name, shape in mnist.FILES.items()}
    monkeypatch.setattr(mnist, "FILES", shapes)
    generator = np.random.RandomState(0)
    (tmp_path / "mnist").mkdir()
    for name, shape in shapes.items():
        head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
        body = generator.randint(0, 10 if "labels" in name else 256, shape).astype(np.uint8).tobytes()
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(gzip.compress(head + body))
    mnist._splits.cache_clear()
    yield tmp_path
    mnist._splits.cache_clear()


def test_mnist_reads_the_published_files_and_keeps_the_last_for_validation(small):
    task = build_task("mnist", root=str(small), valid=10)
    parts = [task.examples(split) for split in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [30, 10, 20]
    assert parts[0].batch([0]).inputs.shape == (1, 1, 28, 28)
    assert len(build_task("mnist", root=str(small), valid=10, train=7).examples("train")) == 7


def test_mnist_reads_torchvisions_folder_and_plain_files(small, monkeypatch):
    raw = small / "MNIST" / "raw"
    raw.mkdir(parents=True)
    before = build_task("mnist", root=str(small), valid=10).examples("test").digest()
    for path in (small / "mnist").iterdir():
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    mnist._splits.cache_clear()
    monkeypatch.setenv("ATTN_ZOO_DATA", str(small))
    assert build_task("mnist", valid=10).examples("test").digest() == before


def test_missing_and_damaged_files_are_named(small):
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\(.gz\).*put the four published idx files there"):
        build_task("mnist", root=str(small / "nowhere")).examples("train")
    path = small / "mnist" / "t10k-labels-idx1-ubyte.gz"
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole[:-5]))
    with pytest.raises(ValueError, match="holds 15 values where 20 belong; it is truncated"):
        build_task("mnist", root=str(small), valid=10).examples("test")
    path.write_bytes(gzip.compress(b"\0" + whole[1:3] + b"\7" + whole[4:]))
    with pytest.raises(ValueError, match="does not begin as"):
        build_task("mnist", root=str(small), valid=10).examples("test")
    path.write_bytes(b"not gzip at all")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        build_task("mnist", root=str(small), valid=10).examples("test")


@pytest.mark.skipif("ATTN_ZOO_DATA" not in os.environ, reason="the real MNIST files are read where ATTN_ZOO_DATA says they are")
def test_the_real_mnist_has_its_known_content():
    task = build_task("mnist")
    assert [len(task.examples(split)) for split in ("train", "valid", "test")] == [55_000, 5_000, 10_000]
    assert torch.bincount(task.examples("test").labels()).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
