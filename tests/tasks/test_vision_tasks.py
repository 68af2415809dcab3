"""Fashion-MNIST, CIFAR and pixels: the same splits from every form of the data, disjoint, and no pickle loaded."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attn_zoo.tasks import image_arrays, pixels
from attn_zoo.tasks.datasets import images as published
from attn_zoo.tasks.parts.images import channel_scale, published_splits, split_images
from PIL import Image

from attn_zoo import build_task, task_card
from attn_zoo.contract import SPLITS, DamagedDataError, MissingDataError
from attn_zoo.data.images import Expected, Images, ImageSplits

CACHES = (published_splits, image_arrays._splits, pixels._splits)


def random_images(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Images:
    """Return random images, equally many of each class, in random order."""
    chance = np.random.RandomState(seed)
    levels = chance.randint(0, 256, (count, *shape)).astype(np.uint8)
    return Images(levels, chance.permutation(count).astype(np.int64) % classes)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Empty data folder, for data sets like the published ones but with 100 training and 40 test images."""
    for name, shape in (("cifar10", (3, 32, 32)), ("cifar100", (3, 32, 32)), ("fashion_mnist", (1, 28, 28))):
        monkeypatch.setitem(published.EXPECTED, name, Expected(100, 40, *shape, 20 if name == "cifar100" else 10))
    monkeypatch.setenv("ATTN_ZOO_DATA", str(tmp_path))
    for cache in CACHES:
        cache.cache_clear()
    yield tmp_path
    for cache in CACHES:
        cache.cache_clear()


def cifar(classes: int = 10) -> ImageSplits:
    return ImageSplits(random_images(100, (3, 32, 32), classes, 0), random_images(40, (3, 32, 32), classes, 1))


def write_npz(path: Path, found: ImageSplits) -> None:
    made: dict[str, Any] = {}
    for name, part in (("train", found.train), ("test", found.test)):
        made |= {f"{name}_images": part.levels.transpose(0, 2, 3, 1), f"{name}_labels": part.labels.astype(np.uint8)}
    np.savez(path, **made)


def write_binary(root: Path, found: ImageSplits, names: list[str], groups: bool) -> None:
    """Write images in CIFAR's binary format; the last name is that of the test file."""
    root.mkdir()
    share = len(found.train.labels) // (len(names) - 1)
    for at, name in enumerate(names):
        part, first = (found.test, 0) if name == names[-1] else (found.train, at * share)
        count = len(found.test.labels) if name == names[-1] else share
        rows = range(first, first + count)
        data = b"".join(bytes([0][:groups]) + bytes([part.labels[row]]) + part.levels[row].tobytes() for row in rows)
        (root / f"{name}.bin").write_bytes(data)


BATCHES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


def test_every_form_of_cifar_gives_the_same_examples(small):
    found = cifar()
    write_npz(small / "cifar10.npz", found)
    task = build_task("cifar10", valid=20)
    assert task.data_title == "CIFAR-10" and task.card.locations == ("root",)
    digests = [task.examples(split).digest() for split in SPLITS]
    assert [len(task.examples(split)) for split in SPLITS] == [80, 20, 40]
    (small / "cifar10.npz").unlink()
    published_splits.cache_clear()
    write_binary(small / "cifar-10-batches-bin", found, BATCHES, groups=False)
    assert [build_task("cifar10", valid=20).examples(split).digest() for split in SPLITS] == digests


def test_cifar_is_divided_by_content_class_by_class_and_standardised_channel_by_channel(small):
    found = cifar()
    write_npz(small / "cifar10.npz", found)
    task = build_task("cifar10", valid=20)
    parts = [task.examples(split) for split in SPLITS]
    assert torch.bincount(parts[1].labels()).tolist() == [2] * 10
    images = [(image.tobytes(), int(y)) for x in (found.train, found.test) for image, y in zip(x.levels, x.labels, strict=True)]
    wanted = dict(images)
    train = parts[0].batch(range(80)).inputs
    torch.testing.assert_close(train.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)
    own = channel_scale(split_images(found, valid=20)[0].levels)
    for part in parts:
        batch = part.batch(range(len(part)))
        levels = torch.stack([torch.searchsorted(own[c], batch.inputs[:, c].contiguous()) for c in range(3)], 1).to(torch.uint8)
        for image, label in zip(levels, batch.labels, strict=True):
            assert wanted.pop(image.numpy().tobytes()) == label, "an image lost its label, or stands twice"
    assert not wanted
    assert len(build_task("cifar10", valid=20, train=30).examples("train")) == 30


def test_equal_images_stay_in_one_split_and_the_test_is_never_shortened():
    train, test = random_images(100, (1, 4, 4), 5, 0), random_images(40, (1, 4, 4), 5, 1)
    train.levels[10:20] = test.levels[0]
    train.levels[30:35] = train.levels[29]
    test.levels[7] = test.levels[8]
    parts = split_images(ImageSplits(train, test), valid=20)
    assert [len(part.labels) for part in parts] == [100 - 10 - 5 - 20, 20, 40]
    contents = [Counter(image.tobytes() for image in part.levels) for part in parts]
    assert not (contents[0] & contents[1] or contents[0] & contents[2] or contents[1] & contents[2])
    assert max((contents[0] + contents[1]).values()) == 1 and max(contents[2].values()) == 2
    with pytest.raises(ValueError, match=r"train must be at most 65, the number of images left after .*; got 66"):
        split_images(ImageSplits(train, test), valid=20, train=66)


def test_cifar_100_takes_the_second_label(small):
    found = cifar(classes=20)
    write_binary(small / "cifar-100-binary", found, ["train", "test"], groups=True)
    task = build_task("cifar100", valid=20)
    assert task.spec.classes == 20 and task_card("cifar100").datasets[0].title == "CIFAR-100"
    assert sorted(task.examples("test").labels().tolist()) == sorted(found.test.labels.tolist())
    labels = torch.cat([task.examples(split).labels() for split in SPLITS])
    assert torch.bincount(labels).tolist() == [7] * 20


def test_classes_of_unlike_size_are_no_cifar(small):
    found = cifar()
    found.train.labels[np.flatnonzero(found.train.labels == 3)[0]] = 4
    write_npz(small / "cifar10.npz", found)
    with pytest.raises(
        DamagedDataError, match=r"CIFAR-10: .*cifar10.npz must hold 10 training images per class, but holds 9 to 11"
    ):
        build_task("cifar10", valid=20).examples("test")


def test_the_pickle_is_not_taken_for_data(small):
    folder = small / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"\x80\x02cos\nsystem\nX\x04\0\0\0exitq\0\x85R.")
    with pytest.raises(MissingDataError, match=r"CIFAR-10: no data found .*the Python version is a pickle, which is never loaded"):
        build_task("cifar10", valid=20).examples("test")


def test_fashion_mnist_reads_both_folders(small):
    found = ImageSplits(random_images(100, (1, 28, 28), 10, 0), random_images(40, (1, 28, 28), 10, 1))
    digests = []
    for folder, ending in (("fashion-mnist", ".gz"), ("FashionMNIST/raw", "")):
        (small / folder).mkdir(parents=True)
        for name in published.IDX:
            part = found.train if name.startswith("train") else found.test
            array = part.labels.astype(np.uint8) if "labels" in name else part.levels[:, 0]
            head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            data = head + array.tobytes()
            (small / folder / (name + ending)).write_bytes(gzip.compress(data) if ending else data)
        task = build_task("fashion_mnist", valid=20)
        digests.append([task.examples(split).digest() for split in SPLITS])
        published_splits.cache_clear()
        for path in (small / folder).iterdir():
            path.unlink()
    assert digests[0] == digests[1]


def test_grey_is_pillows_to_the_last_bit():
    levels = np.random.RandomState(0).randint(0, 256, (4, 3, 64, 64)).astype(np.uint8)
    levels[0, :, 0, :2] = [[255, 0]] * 3
    expected = [np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L")) for image in levels]
    assert np.array_equal(pixels.grey(levels)[:, 0], np.stack(expected))


def test_a_pixel_is_its_level_and_one_more_row_after_row(small):
    found = cifar()
    found.test.levels[:, :, :2] = [[[0]], [[0]], [[0]]]
    found.test.levels[:, :, 2:4] = 255
    write_npz(small / "cifar10.npz", found)
    task: Any = build_task("pixels", valid=20)
    assert (task.spec.length, task.spec.classes, task.spec.inputs.vocabulary) == (1024, 10, 257)
    batch = task.examples("test").batch(range(40))
    assert batch.valid is None and batch.inputs.dtype == torch.long and batch.inputs.shape == (40, 1024)
    assert (batch.inputs[:, :64] == 1).all() and (batch.inputs[:, 64:128] == 256).all()
    rows = {row.tobytes(): int(y) for row, y in zip(pixels.grey(found.test.levels).reshape(40, -1), found.test.labels, strict=True)}
    assert {(ids - 1).to(torch.uint8).numpy().tobytes(): int(y) for ids, y in zip(batch.inputs, batch.labels, strict=True)} == rows


def test_smaller_pictures_are_means(small):
    write_npz(small / "cifar10.npz", cifar())
    levels = np.random.RandomState(0).randint(0, 256, (5, 1, 32, 32)).astype(np.uint8)
    assert pixels.means(levels, 32) is levels
    for side in (16, 8):
        made = pixels.means(levels, side).astype(float)
        blocks = levels.reshape(5, 1, side, 32 // side, side, 32 // side).mean(axis=(3, 5))
        assert made.shape == (5, 1, side, side) and np.abs(made - blocks).max() <= 0.5
        task = build_task("pixels", side=side, valid=20)
        assert task.spec.length == side**2 == task.examples("test").batch([0]).inputs.shape[1]


def test_arrays_of_ones_own(small):
    found = ImageSplits(random_images(100, (1, 12, 8), 3, 0), random_images(40, (1, 12, 8), 3, 1))
    write_npz(small / "mine.npz", found)
    given = {"path": "mine.npz", "title": "Mine", "channels": 1, "height": 12, "width": 8, "classes": 3, "valid": 10}
    task = build_task("image_arrays", **given)
    assert task.data_title == "Mine" and task.spec.length == 6
    assert [len(task.examples(split)) for split in SPLITS] == [90, 10, 40]
    digest = task.examples("test").digest()
    (small / "mine.npz").rename(small / "elsewhere.npz")
    image_arrays._splits.cache_clear()
    elsewhere = build_task("image_arrays", **{**given, "path": str(small / "elsewhere.npz")})
    assert elsewhere.examples("test").digest() == digest and set(task.card.locations) == {"path", "root"}
    with pytest.raises(MissingDataError, match=r"the file .*mine.npz does not exist. Put an .npz file with train_images"):
        build_task("image_arrays", **given).examples("test")
    with pytest.raises(DamagedDataError, match=r"elsewhere.npz: train_labels: labels must be from 0 to 1; got 2"):
        build_task("image_arrays", **{**given, "path": "elsewhere.npz", "classes": 2}).examples("test")


def test_patch_size_sets_the_length():
    assert [build_task("cifar10", patch=p).spec.length for p in (1, 2, 4, 8)] == [1024, 256, 64, 16]
    assert [build_task("fashion_mnist", patch=p).spec.length for p in (2, 4, 7, 14)] == [196, 49, 16, 4]
    assert [build_task("digits", patch=p).spec.length for p in (1, 2, 4)] == [64, 16, 4]
