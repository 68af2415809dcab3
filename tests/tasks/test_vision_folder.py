"""Image folders: decoding on demand, digests of content, and damaged files named before training."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from attn_zoo.tasks import image_folder
from PIL import Image

from attn_zoo import build_task, task_card
from attn_zoo.conformance import check_task
from attn_zoo.contract import SPLITS, DamagedDataError, MissingDataError
from attn_zoo.data.image_folder import load_image

FORMS = ("png", "jpg", "webp", "bmp")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder of two classes, with 24 and 16 images in train and 6 each in val; four formats, not all square, one grey per class."""
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))
    chance = np.random.RandomState(0)
    for part, counts in (("train", (24, 16)), ("val", (6, 6))):
        for label, count in enumerate(counts):
            inside = tmp_path / "pets" / part / ("cat", "dog")[label]
            inside.mkdir(parents=True)
            for at in range(count):
                shape = (24 + at, 40, 3)[: 2 if at == 3 else 3]
                image = Image.fromarray(chance.randint(0, 256, shape).astype(np.uint8))
                image.save(inside / f"{at:02d}.{FORMS[at % 4]}")
            (inside / "notes.txt").write_text("not an image")
    image_folder._splits.cache_clear()
    yield tmp_path / "pets"
    image_folder._splits.cache_clear()


def build(folder, **options):
    image_folder._splits.cache_clear()
    given = {"classes": 2, "side": 16, "patch": 4, "valid": 0.25, **options}
    return build_task("image_folder", path=str(folder), **given)


def sizes(task) -> list[int]:
    return [len(task.examples(split)) for split in SPLITS]


def test_val_is_the_test_and_validation_is_cut_from_train(folder):
    task = build(folder, title="Pets")
    assert task.data_title == "Pets" and task.spec.length == 16
    assert sizes(task) == [30, 10, 12]
    assert torch.bincount(task.examples("valid").labels()).tolist() == [6, 4]
    batch = task.examples("test").batch([3, 0])
    assert batch.inputs.shape == (2, 3, 16, 16) and batch.valid is None
    assert torch.equal(batch.labels, task.examples("test").labels()[[3, 0]])


def test_a_folder_with_its_own_validation_keeps_it(folder):
    shutil.copytree(folder / "val", folder / "test")
    for path in folder.glob("test/*/0[0-3].*"):
        path.unlink()
    task = build(folder)
    assert sizes(task) == [40, 8, 4], "what stands in val and in test is left out of val"
    shutil.move(folder / "val", folder / "valid")
    assert sizes(build(folder)) == [40, 8, 4]


def test_the_shorter_side_is_scaled_and_the_middle_taken(folder):
    task = build(folder, crop=0.5)
    examples = task.examples("test")
    for at in (0, 5):
        path = examples._paths[at]
        image = Image.open(path).convert("RGB")
        scale = 32 / min(image.size)
        size = tuple(round(length * scale) for length in image.size)
        left, top = ((length - 16) // 2 for length in size)
        pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC))[top : top + 16, left : left + 16]
        expected = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        np.testing.assert_allclose(examples.batch([at]).inputs[0].permute(1, 2, 0).numpy(), expected, atol=1e-5)
        assert examples.labels()[at] == (path.parent.name == "dog")


def test_the_digest_is_of_content_and_not_of_place_or_name(folder):
    task = build(folder)
    digests = [task.examples(split).digest() for split in SPLITS]
    shutil.copytree(folder, folder.parent / "other")
    moved = folder.parent / "other" / "train" / "cat"
    (moved / "00.png").rename(moved / "zz.PNG")
    assert [build(folder.parent / "other").examples(split).digest() for split in SPLITS] == digests
    assert build(folder, side=20).examples("test").digest() != digests[2]
    Image.new("RGB", (30, 30)).save(moved / "new.png")
    assert build(folder.parent / "other").examples("train").digest() != digests[0]


def test_equal_files_stay_in_one_split(folder):
    shutil.copy(folder / "val/cat/00.png", folder / "train/cat/90.png")
    shutil.copy(folder / "train/cat/00.png", folder / "train/dog/91.png")
    assert sum(sizes(build(folder))[:2]) == 40
    assert sizes(build(folder))[2] == 12


@pytest.mark.parametrize("form", FORMS)
def test_damaged_images_are_named_before_training(folder, form):
    path = next((folder / "train/dog").glob(f"*.{form}"))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not an image"):
        path.write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=f"{re.escape(str(path))} is not an image, or is damaged or cut short"):
            build(folder).examples("test")
    path.write_bytes(whole)
    assert sizes(build(folder)) == [30, 10, 12]


def test_a_whole_file_with_something_after_its_end_is_an_image(folder):
    path = folder / "train/dog/01.jpg"
    path.write_bytes(path.read_bytes() + b"trailing")
    assert sizes(build(folder)) == [30, 10, 12]


def test_folders_that_do_not_fit_are_named(folder):
    with pytest.raises(MissingDataError, match=r"nowhere must hold the folders train and test \(or val\).*no such folder"):
        build(folder.parent / "nowhere").examples("test")
    with pytest.raises(DamagedDataError, match="train must hold 3 folders, one per class; got 2"):
        build(folder, classes=3).examples("test")
    (folder / "val/dog").rename(folder / "val/dogs")
    with pytest.raises(
        DamagedDataError, match="the folders train and test must have the same classes, but only one of the two has the class dog"
    ):
        build(folder).examples("test")
    shutil.rmtree(folder / "val/dogs")
    (folder / "val/dog").mkdir()
    with pytest.raises(DamagedDataError, match=r"val.dog must hold an image, but no file in it ends in one of .bmp"):
        build(folder).examples("test")
    shutil.rmtree(folder / "val")
    with pytest.raises(MissingDataError, match="it holds train"):
        build(folder).examples("test")


def test_files_are_read_once_and_again_when_they_change(folder, monkeypatch):
    build(folder).examples("test")
    monkeypatch.setattr("attn_zoo.data.image_folder._digest", lambda path: pytest.fail(f"{path} was read again"))
    build(folder).examples("test")
    path = folder / "train/cat/00.png"
    os.utime(path, ns=(0, 0))
    with pytest.raises(pytest.fail.Exception, match="was read again"):
        build(folder).examples("test")


def test_a_folder_like_another_one_has_digests_of_its_own(folder):
    """Archives often give all files the same time, and images without compression have the same size."""
    other = folder.parent / "others"
    shutil.copytree(folder, other)
    for at, path in enumerate(sorted(other.rglob("*.bmp"))):
        data = bytearray(path.read_bytes())
        data[-8] ^= 1 + at % 255
        path.write_bytes(data)
    for path in (*folder.rglob("*.*"), *other.rglob("*.*")):
        os.utime(path, (0, 0))
    assert build(folder).examples("test").digest() != build(other).examples("test").digest()


@pytest.mark.parametrize(("form", "dtype"), [("png", np.uint16), ("tif", np.uint16), ("tif", np.float32)])
def test_images_of_more_than_256_levels_are_refused(folder, form, dtype):
    """Pillow would turn nearly all their pixels white."""
    path = folder / "train" / "cat" / f"deep.{form}"
    Image.fromarray(np.arange(64).reshape(8, 8).astype(dtype) * 1000).save(path)
    with pytest.raises(DamagedDataError, match=re.escape(str(path)) + " must have levels from 0 to 255, but has"):
        build(folder).examples("train")
    with pytest.raises(DamagedDataError, match="Convert it to 8 bits"):
        load_image(path, 8, 1.0)


def test_it_passes_the_kit(folder):
    @dataclass
    class Here(image_folder.Options):  # type: ignore[misc]  # tasks are checked under another name
        path: str = str(folder)
        classes: int = 2
        side: int = 16
        patch: int = 4
        valid: float = 0.25

    check_task(replace(task_card("image_folder"), options=Here)).raise_on_failure()
