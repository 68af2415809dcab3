"""Published data sets of labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from attn_zoo.contract import DamagedDataError, DataSet, Layout
from attn_zoo.data.images import Expected, ImageSplits, read_cifar_binary, read_idx_files, read_npz
from attn_zoo.data.torchvision import fetch_archive, fetch_files

EXPECTED = {
    "mnist": Expected(60_000, 10_000, 1, 28, 28, 10),
    "fashion_mnist": Expected(60_000, 10_000, 1, 28, 28, 10),
    "cifar10": Expected(50_000, 10_000, 3, 32, 32, 10),
    "cifar100": Expected(50_000, 10_000, 3, 32, 32, 100),
}
"""For each data set: required image shape, number of images and number of classes."""

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
"""Names of the four files of a data set in the format of MNIST."""

CIFAR_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
NO_PICKLE = "the binary version as published; the Python version is a pickle, which is never loaded"


def _read_idx(name: str, paths: Sequence[Path]) -> ImageSplits:
    return read_idx_files(paths, EXPECTED[name])


def _read_npz(name: str, paths: Sequence[Path]) -> ImageSplits:
    return _even(name, read_npz(paths[0], EXPECTED[name]), paths[0])


def _read_binary(name: str, label_bytes: int, paths: Sequence[Path]) -> ImageSplits:
    return _even(name, read_cifar_binary(paths[:-1], paths[-1], EXPECTED[name], label_bytes), paths[0].parent)


def _even(name: str, splits: ImageSplits, where: Path) -> ImageSplits:
    """Check that all classes have the same number of images, as in both splits of both CIFAR data sets."""
    classes = EXPECTED[name].classes
    for part, images in (("training", splits.train), ("test", splits.test)):
        counts = np.bincount(images.labels, minlength=classes)
        if (counts != len(images.labels) // classes).any():
            raise DamagedDataError(
                f"{where} must hold {len(images.labels) // classes} {part} images per class, but holds {counts.min()} to "
                f"{counts.max()}"
            )
    return splits


def _idx_layouts(name: str, *folders: str) -> tuple[Layout[ImageSplits], ...]:
    read = partial(_read_idx, name)
    return tuple(
        Layout(f"idx files in {folder}", tuple((f"{folder}/{file}.gz", f"{folder}/{file}") for file in IDX), read)
        for folder in folders
    )


MNIST: DataSet[ImageSplits] = DataSet(
    name="mnist",
    title="MNIST",
    source="LeCun, Cortes and Burges 1998; the four idx files as published",
    licence="usually given as CC BY-SA 3.0",
    layouts=_idx_layouts("mnist", "mnist", "MNIST/raw"),
    download=lambda root: fetch_files(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        root / "MNIST/raw",
    ),
)

FASHION_MNIST: DataSet[ImageSplits] = DataSet(
    name="fashion_mnist",
    title="Fashion-MNIST",
    source="Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747; the four idx files as published",
    licence="MIT",
    layouts=_idx_layouts("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    download=lambda root: fetch_files(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        root / "FashionMNIST/raw",
    ),
)

CIFAR10: DataSet[ImageSplits] = DataSet(
    name="cifar10",
    title="CIFAR-10",
    source="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images, https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none given; its author asks to be cited",
    layouts=(
        Layout("one .npz", (("cifar10.npz", "cifar10/cifar10.npz"),), partial(_read_npz, "cifar10")),
        Layout(
            NO_PICKLE,
            tuple((f"cifar-10-batches-bin/{file}.bin",) for file in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")),
            partial(_read_binary, "cifar10", 1),
        ),
    ),
    download=lambda root: fetch_archive(
        CIFAR_ADDRESS + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", root, "cifar-10-batches-bin"
    ),
)

CIFAR100: DataSet[ImageSplits] = DataSet(
    name="cifar100",
    title="CIFAR-100",
    source=CIFAR10.source,
    licence=CIFAR10.licence,
    layouts=(
        Layout("one .npz", (("cifar100.npz", "cifar100/cifar100.npz"),), partial(_read_npz, "cifar100")),
        Layout(NO_PICKLE, (("cifar-100-binary/train.bin",), ("cifar-100-binary/test.bin",)), partial(_read_binary, "cifar100", 2)),
    ),
    download=lambda root: fetch_archive(
        CIFAR_ADDRESS + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", root, "cifar-100-binary"
    ),
)
