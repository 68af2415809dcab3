"""Digits and MNIST: splits, scaling, and clear messages about missing or damaged files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from attn_zoo.tasks import mnist
from attn_zoo.tasks.datasets import images as published
from attn_zoo.tasks.parts.arrays import ArrayExamples, standardise

from attn_zoo import build_task
from attn_zoo.contract import DamagedDataError, MissingDataError
from attn_zoo.data.images import Expected


def test_digits_use_every_image_once_and_keep_the_shares():
    task = build_task("digits")
    parts = [task.examples(split) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == 1797
    for part in parts:
        counts = torch.bincount(part.labels(), minlength=10)
        assert counts.max() - counts.min() <= 0.08 * len(part)
    everything = torch.cat([part.batch(range(len(part))).inputs for part in parts])
    assert len(everything.flatten(1).unique(dim=0)) == 1797, "an image stands twice, so two splits may share it"
    pixels = parts[0].batch(range(len(parts[0]))).inputs
    assert pixels.mean().item() == pytest.approx(0, abs=1e-5)
    assert pixels.std().item() == pytest.approx(1, abs=1e-3)


def test_digits_come_in_random_order_and_the_first_stand_for_all():
    """The training score uses only the first examples of the split, so these must contain every class."""
    for split in ("train", "valid", "test"):
        first = build_task("digits").examples(split).labels()[:100]
        assert torch.bincount(first, minlength=10).min() > 0


def test_standardised_pixels_agree_with_numpy_and_are_exact():
    pixels = np.random.RandomState(0).randint(0, 256, (500, 28, 28)).astype(np.uint8)
    train, other = standardise(pixels[:400], pixels[400:])
    mean, deviation = pixels[:400].astype(np.float64).mean(), pixels[:400].astype(np.float64).std()
    np.testing.assert_allclose(train.numpy(), (pixels[:400] - mean) / deviation, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.numpy(), (pixels[400:] - mean) / deviation, rtol=1e-6, atol=1e-6)
    assert train.dtype == other.dtype == torch.float32
    shuffled, _ = standardise(pixels[:400][::-1], pixels[400:])
    assert torch.equal(shuffled.flip(0), train), "the order of summation must not matter, to the last bit"


def test_a_digest_is_of_type_shape_inputs_and_labels():
    inputs, labels = torch.zeros(4, 6, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    digest = ArrayExamples(inputs, labels).digest()
    assert digest == ArrayExamples(inputs.clone(), labels.clone()).digest()
    assert digest == ArrayExamples(torch.zeros(6, 4, dtype=torch.uint8).mT, labels).digest(), "strides are no content"
    others = [
        ArrayExamples(inputs.to(torch.int16), labels),
        ArrayExamples(inputs[:, :5], labels),
        ArrayExamples(inputs.view(4, 3, 2), labels),
        ArrayExamples(inputs, 1 - labels),
        ArrayExamples(inputs + 1, labels),
    ]
    assert len({digest, *(other.digest() for other in others)}) == 6
    with pytest.raises(ValueError, match="as many labels as inputs"):
        ArrayExamples(inputs, labels[:3])
    with pytest.raises(ValueError, match="at least one"):
        ArrayExamples(inputs[:0], labels[:0])


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Folder with IDX files like the published ones, of 40 training and 20 test images."""
    monkeypatch.setitem(published.EXPECTED, "mnist", Expected(40, 20, 1, 28, 28, 10))
    generator = np.random.RandomState(0)
    (tmp_path / "mnist").mkdir()
    for name in published.IDX:
        count = 40 if name.startswith("train") else 20
        shape = (count,) if "labels" in name else (count, 28, 28)
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
    raw = {name: gzip.decompress((small / "mnist" / f"{name}.gz").read_bytes()) for name in published.IDX}
    images = np.frombuffer(raw["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(40, 28, 28).astype(np.float64)
    expected = (images[30:] - images[:30].mean()) / images[:30].std()
    np.testing.assert_allclose(parts[1].batch(range(10)).inputs[:, 0].numpy(), expected, rtol=1e-6, atol=1e-6)
    assert parts[1].labels().tolist() == list(raw["train-labels-idx1-ubyte"][8 + 30 :])
    assert parts[2].labels().tolist() == list(raw["t10k-labels-idx1-ubyte"][8:])


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
    with pytest.raises(MissingDataError, match=r"MNIST: no data found below .*mnist/train-images-idx3-ubyte.gz or "):
        build_task("mnist", root=str(small / "nowhere"), valid=10).examples("train")
    path = small / "mnist" / "t10k-labels-idx1-ubyte.gz"
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole[:-5]))
    with pytest.raises(DamagedDataError, match="must hold 20 values, but holds 15; it is truncated"):
        build_task("mnist", root=str(small), valid=10).examples("test")
    path.write_bytes(gzip.compress(b"\0" + whole[1:3] + b"\7" + whole[4:]))
    with pytest.raises(DamagedDataError, match="must begin with the header of"):
        build_task("mnist", root=str(small), valid=10).examples("test")
    path.write_bytes(gzip.compress(whole[:-1] + b"\x0a"))
    with pytest.raises(DamagedDataError, match=r"t10k-labels-idx1-ubyte.gz: labels must be from 0 to 9; got 10"):
        build_task("mnist", root=str(small), valid=10).examples("test")
    packed = gzip.compress(whole)
    for damaged in (packed[:-6], packed[:12] + b"\xff\xff\xff\xff" + packed[16:]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=r"t10k-labels-idx1-ubyte.gz is not a whole file"):
            build_task("mnist", root=str(small), valid=10).examples("test")
    path.write_bytes(b"not gzip at all")
    with pytest.raises(DamagedDataError, match=r"t10k-labels-idx1-ubyte.gz is not a whole file"):
        build_task("mnist", root=str(small), valid=10).examples("test")
    path.unlink()
    with pytest.raises(
        MissingDataError, match=r"t10k-labels-idx1-ubyte.gz is missing .* where the rest of idx files in mnist is present"
    ):
        build_task("mnist", root=str(small), valid=10).examples("test")
