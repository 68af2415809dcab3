"""Pathfinder: solved from its pixels, the same bytes on every machine, without shortcuts; and files of Long Range Arena."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from attn_zoo.tasks import pathfinder
from attn_zoo.tasks.parts import contours, stamps
from attn_zoo.tasks.parts.contours import Draughtsman, Plan
from pathfinder_solver import solve
from PIL import Image

from attn_zoo import build_task
from attn_zoo.cli import main
from attn_zoo.contract import SPLITS, DamagedDataError, MissingDataError, Tokens
from attn_zoo.registry import task_card

SIXTEEN = Plan(16, 6, 2, 60, 1.0)
SMALL = {"side": 16, "contour": 6, "distractors": 2, "turn": 60}
PLANS = {
    SIXTEEN: 400,
    Plan(16, 4, 1, 45, 0.2): 100,
    Plan(32, 14, 5, 45, 1.0): 100,
    Plan(32, 6, 10, 30, 0.1): 100,
    Plan(64, 14, 5, 45, 0.5): 80,
    Plan(128, 14, 8, 45, 1.0): 50,
    Plan(256, 14, 7, 45, 0.3): 10,
}


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "-".join(map(str, plan)))
def test_every_image_is_solved_from_its_pixels_alone(plan):
    images, labels = Draughtsman(plan).images(PLANS[plan], "solved")
    assert images.shape == (PLANS[plan], plan.side, plan.side)
    assert labels.mean() == 0.5
    assert (solve(images) == labels).all()
    assert (solve(np.flip(images, axis=(1, 2))) == labels).all()
    assert (solve(images.transpose(0, 2, 1)) == labels).all()


def pieces(lit, reach):
    """Return the connected components of lit pixels, where pixels at a distance of at most ``reach`` are connected."""
    left = {(int(y), int(x)) for y, x in zip(*lit.nonzero(), strict=True)}
    found = []
    while left:
        todo, piece = [left.pop()], set()
        while todo:
            y, x = todo.pop()
            piece.add((y, x))
            close = {(v, u) for v, u in left if max(abs(v - y), abs(u - x)) <= reach}
            left -= close
            todo += close
        found.append(piece)
    return found


@pytest.mark.parametrize("plan", [SIXTEEN, Plan(32, 9, 4, 45, 1.0), Plan(64, 9, 3, 45, 1.0)], ids=lambda plan: str(plan.side))
def test_paths_are_dashed_and_keep_their_distance(plan):
    pen = stamps.PENS[plan.side]
    images, labels = Draughtsman(plan).images(12, "apart")
    for image, label in zip(images, labels, strict=True):
        paths = pieces(image > 0, pen.reach)
        assert len(paths) == 2 + plan.distractors
        assert len(pieces(image > 0, pen.apart)) == len(paths), "two paths come nearer than they may"
        dots = pieces(image == contours.DOT, 1)
        assert len(dots) == 2
        assert label == any(all(dot <= path for dot in dots) for path in paths)
        dashes = len(pieces(image > 0, 1))
        wanted = 2 * plan.contour + plan.distractors * max(2, plan.contour // 3)
        assert wanted - 2 <= dashes <= wanted, "dots may touch the second dash of their path"


def test_simple_statistics_tell_nothing():
    """Brightness, the histogram of grey levels, the distance of the dots and their positions predict labels only near chance."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    images, labels = Draughtsman(SIXTEEN).images(1600, "statistics")
    dots = [np.array(sorted(pieces(image == contours.DOT, 1), key=min), dtype=object) for image in images]
    centres = np.array([[np.mean(list(dot), axis=0) for dot in two] for two in dots])
    far = np.hypot(*(centres[:, 0] - centres[:, 1]).T)
    features = {
        "brightness": images.mean(axis=(1, 2))[:, None],
        "grey levels": np.stack([np.bincount(image.ravel() // 16, minlength=16) for image in images]),
        "distance of the dots": np.stack([far, far**2, far**3], axis=1),
        "places of the dots": np.concatenate([centres.reshape(-1, 4), np.abs(centres - 7.5).reshape(-1, 4)], axis=1),
    }
    for name, values in features.items():
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(values[:800], labels[:800])
        score = model.score(values[800:], labels[800:])
        assert abs(score - 0.5) < 0.07, f"{name} gives {score:.1%} of the labels away"
    means = [far[labels == label].mean() for label in (0, 1)]
    assert means[0] == pytest.approx(means[1], abs=0.3)


def test_tokens_are_levels_and_one_more():
    task = build_task("pathfinder", **SMALL, train=30, valid=10, test=20)
    part = task.examples("test")
    batch = part.batch([3, 1, 3])
    assert batch.inputs.shape == (3, 256)
    assert batch.inputs.dtype == torch.long
    assert batch.valid is None
    assert (int(batch.inputs.min()), int(batch.inputs.max())) == (1, 256)
    assert task.spec.length == 256
    assert task.spec.inputs == Tokens(257)
    everything = part.batch(range(20))
    images = (everything.inputs - 1).view(-1, 16, 16).numpy().astype(np.uint8)
    assert (solve(images) == everything.labels.numpy()).all()
    drawn = pathfinder.render(batch.inputs[0]).splitlines()
    assert [len(line) for line in drawn] == [32] * 16
    assert "@" in "".join(drawn)
    assert task.data_title == "generated"


def test_contrast_changes_grey_levels_and_not_paths():
    bright, faint = (Draughtsman(SIXTEEN._replace(contrast=share)).images(20, "contrast")[0] for share in (1.0, 0.3))
    assert ((bright > 0) == (faint > 0)).all()
    assert (faint <= bright).all()
    assert (faint < bright).any()


def test_no_image_is_drawn_twice():
    draughtsman = Draughtsman(SIXTEEN)
    first, _ = draughtsman.images(40, "again")
    second, _ = draughtsman.images(40, "again")
    assert len(np.unique(np.concatenate([first, second]).reshape(80, -1), axis=0)) == 80


def test_levels_have_the_published_lengths():
    levels = task_card("pathfinder").levels
    assert build_task("pathfinder", **levels["lra"].options).spec.length == 1024
    assert [build_task("pathfinder", side=side).spec.length for side in (64, 128)] == [4096, 16_384]


@pytest.fixture
def released(monkeypatch, tmp_path):
    """Folder like the published one, with 40 images in two lists; two images are equal, and one file is empty."""
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))
    images, labels = Draughtsman(Plan(32, 6, 2, 45, 1.0)).images(40, "released")
    level = tmp_path / "lra_release" / "pathfinder32" / "curv_contour_length_14"
    (level / "metadata").mkdir(parents=True)
    images[1] = images[0]
    labels[1] = labels[0]
    for batch in (2, 10):
        (level / "imgs" / str(batch)).mkdir(parents=True)
        rows = []
        for at in range(20):
            number = at + (20 if batch == 10 else 0)
            path = level / "imgs" / str(batch) / f"sample_{at}.png"
            Image.fromarray(images[number]).save(path)
            rows.append(f"imgs/{batch} sample_{at}.png {at} {labels[number]} 1.0 14 4 2 0.5 1 1\n")
        (level / "metadata" / f"{batch}.npy").write_text("".join(rows))
    (level / "imgs" / "10" / "sample_7.png").write_bytes(b"")
    pathfinder._published.cache_clear()
    yield level, np.delete(images, 27, axis=0), np.delete(labels, 27)
    pathfinder._published.cache_clear()


def lra(level: Path, **options):
    return build_task("pathfinder", **{"files": "lra", "contour": 14, "root": str(level.parents[2]), **options})


def test_the_files_of_long_range_arena_are_read_whole(released):
    level, images, labels = released
    task = lra(level)
    assert task.data_title == "LRA Pathfinder-32 (14 dashes)"
    parts = [task.examples(split) for split in SPLITS]
    assert [len(parts[1]), len(parts[2])] == [4, 4]
    assert len(parts[0]) in (30, 31)
    theirs = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    found = {}
    for part in parts:
        batch = part.batch(range(len(part)))
        assert batch.valid is None
        for ids, label in zip((batch.inputs - 1).numpy().astype(np.uint8), batch.labels.tolist(), strict=True):
            found[ids.tobytes()] = label
    assert found == theirs
    few = lra(level, train=7)
    assert few.examples("train").batch(range(7)).inputs.equal(parts[0].batch(range(7)).inputs)
    assert few.examples("test").digest() == parts[2].digest()
    assert lra(level, data_seed=1).examples("test").digest() != parts[2].digest()


def test_twins_never_stand_in_train_and_test(released):
    level, images, _ = released
    for seed in range(12):
        task = lra(level, data_seed=seed)
        parts = [task.examples(split).batch(range(len(task.examples(split)))).inputs for split in SPLITS]
        there = [any(((part - 1).numpy() == images[0].ravel()).all(axis=1)) for part in parts]
        assert sum(there) == 1


def test_a_list_that_numpy_wrote_is_refused_because_it_may_hold_objects(released):
    level, _, _ = released
    path = next((level / "metadata").iterdir())
    np.save(path, np.array([line.split() for line in path.read_text().splitlines()], dtype=object), allow_pickle=True)
    with pytest.raises(DamagedDataError, match=rf"{path.name} is not a list of images"):
        lra(level).examples("test")


def edit(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda level: (level / "imgs/10/sample_3.png").unlink(),
            r"imgs/10/sample_3.png does not exist, but row 4 of .*10.npy names it",
        ),
        (lambda level: edit(level / "metadata/2.npy", b"imgs/2", b"imgs/9"), r"imgs/9/sample_0.png does not exist"),
        (
            lambda level: (level / "metadata/2.npy").write_text("imgs/2 sample_0.png 0"),
            r"2.npy, row 1 must hold a folder, a file, a number",
        ),
        (
            lambda level: (level / "metadata/2.npy").write_text("imgs/2 sample_0.png 0 7"),
            r"2.npy, row 1 must hold .* label of 0 or 1",
        ),
        (lambda level: (level / "metadata/2.npy").write_bytes(b"\xff\xfe"), r"2.npy is not a list of images"),
        (lambda level: (level / "imgs/2/sample_5.png").write_bytes(b"\x89PNG"), r"sample_5.png is not a grey PNG of 32 x 32"),
        (
            lambda level: (level / "imgs/2/sample_5.png").write_bytes((level / "imgs/2/sample_5.png").read_bytes()[:60]),
            r"sample_5.png is not a grey PNG of 32 x 32 pixels, or is damaged or cut short",
        ),
        (
            lambda level: Image.new("L", (32, 31)).save(level / "imgs/2/sample_5.png"),
            r"sample_5.png must be a grey image of 32 x 32 pixels; got mode L and 32 x 31",
        ),
        (lambda level: [path.unlink() for path in (level / "metadata").iterdir()], r"metadata must hold lists named 0.npy"),
        (lambda level: level.rename(level.parent / "other"), r"pathfinder32 must hold at least one of the folders curv_baseline"),
    ],
)
def test_damaged_files_are_named(released, damage, message):
    level, _, _ = released
    damage(level)
    with pytest.raises(DamagedDataError, match=message):
        lra(level).examples("train")


def test_the_command_that_prepares_data_reads_the_images_too(released, capsys):
    level, _, _ = released
    words = ["data", "prepare", "pathfinder32", "--root", str(level.parents[2])]
    assert main(words) == 0 and "pathfinder32: sound" in capsys.readouterr().out
    (level / "imgs/2/sample_5.png").write_bytes(b"\x89PNG")
    assert main(words) == 1
    assert "sample_5.png is not a grey PNG" in " ".join(capsys.readouterr().out.split())


def test_missing_files_are_named(released, tmp_path):
    level, _, _ = released
    with pytest.raises(
        MissingDataError, match=r"no folder curv_baseline, which must hold the images whose long paths have 6 dashes.*contour=14"
    ):
        lra(level, contour=6).examples("train")
    with pytest.raises(
        MissingDataError, match=r"LRA Pathfinder-64: no data found below .*this folder must contain lra_release/pathfinder64"
    ):
        lra(level, side=64).examples("train")


def test_a_level_of_a_few_images_is_refused(released):
    level, _, _ = released
    (level / "metadata/10.npy").unlink()
    path = level / "metadata/2.npy"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    with pytest.raises(DamagedDataError, match="must list enough images for three splits, but lists only 9"):
        lra(level).examples("train")


def test_the_test_split_does_not_depend_on_the_size_of_the_others():
    one, other = (build_task("pathfinder", **SMALL, train=n, valid=n, test=20) for n in (10, 30))
    assert one.examples("test").digest() == other.examples("test").digest()
    assert one.examples("train").digest() != other.examples("train").digest()
