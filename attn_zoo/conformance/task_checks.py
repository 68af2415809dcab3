"""Conformance tests of tasks, mostly of the examples in each split."""

from __future__ import annotations

import copy
import hashlib
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from attn_zoo.conformance.another_process import digests_elsewhere, forgotten
from attn_zoo.conformance.harness import Case, NotApplicable, Report, blamed, require, run_cases, unbuildable
from attn_zoo.contract import (
    METRICS,
    SPLITS,
    Batch,
    Examples,
    Frames,
    Labels,
    Pairs,
    Patches,
    Task,
    TaskCard,
    TaskSpec,
    Tokens,
    scored,
)
from attn_zoo.registry import make_options, task_card

TaskCheck = Callable[[Task], "str | None"]
TASK_CHECKS: dict[str, TaskCheck] = {}


def task_check(function: TaskCheck) -> TaskCheck:
    """Register a function as a check of tasks, under its name. Its docstring is the rule that the check tests."""
    TASK_CHECKS[function.__name__] = function
    return function


def task_checks(task: str | TaskCard) -> Iterator[Case]:
    """Yield every check of a task as a case that can be called, with the default options and with each set of options in
    ``card.variants``.

    Raises:
        UnknownNameError: no task has this name.
    """
    card = task_card(task) if isinstance(task, str) else task
    for variant, given in {"default": {}, **card.variants}.items():
        try:
            built = card.build(make_options(f"task {card.name}", card.options, given))
        except Exception as error:  # a card may hold anything; other variants are still checked
            yield unbuildable(card.name, variant, error, TASK_CHECKS["card_is_complete"].__doc__)
            continue
        for name, check in TASK_CHECKS.items():
            contract = " ".join((check.__doc__ or "").split())
            yield Case(card.name, name, contract, partial(_prove, check, built), variant=variant)


def check_task(task: str | TaskCard, *, expected_failures: Mapping[str, str] | None = None) -> Report:
    """Run the conformance tests on a task and return the report. For ``expected_failures``, see ``run_cases``.

    Raises:
        UnknownNameError: no task or check has this name.
    """
    name = task if isinstance(task, str) else task.name
    return run_cases(name, task_checks(task), expected_failures)


def _prove(check: TaskCheck, task: Task) -> str | None:
    """Run a check, or skip it if the data are missing. The data are opened only here, not when checks are listed."""
    try:
        task.examples("test")
    except FileNotFoundError as error:
        raise NotApplicable(str(error)) from error
    return check(task)


@task_check
def card_is_complete(task: Task) -> None:
    """The card of the task has all its texts and at least one preset. Its metric fits the kind of problem (such as classification)
    and, if it is F1, there are two classes. A task that reads data sets can be given the data folder. Every option has a default,
    and the task accepts the options of every preset."""
    for name in ("name", "title", "version", "summary", "source", "licence", "metric"):
        require(getattr(task.card, name), f"the card's {name} must not be empty")
    fit = METRICS[task.spec.problem]
    require(task.card.metric in fit, f"the metric {task.card.metric!r} does not fit {task.spec.problem}; choose {', '.join(fit)}")
    two = task.card.metric != "f1" or task.spec.classes == 2
    require(two, f"the metric f1 is for two classes, but the task has {task.spec.classes}; choose accuracy")
    require(
        not task.card.datasets or "root" in task.card.locations,
        "the card names datasets, so its locations must name an option root, the data folder; without it, data.root=FOLDER has no "
        "effect",
    )
    type(task.options)()
    require(task.card.levels, "the card must have at least one level (preset), which says how long a run trains")
    for name, level in task.card.levels.items():
        with blamed(f"the options of level {name} are not valid options of the task", LookupError, ValueError):
            make_options(f"task {task.card.name}", task.card.options, level.options)
    require(task.data_title, "data_title is empty; tables print it to name the data of a score")


@task_check
def splits_are_disjoint(task: Task) -> str:
    """No input occurs in two splits."""
    seen = {split: set(_contents(task.examples(split))) for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        shared = len(seen[one] & seen[other])
        require(not shared, f"{shared} inputs are in both {one} and {other}")
    return ", ".join(f"{len(task.examples(split))} {split}" for split in SPLITS)


@task_check
def labels_fit_the_spec(task: Task) -> str:
    """Labels have the kind and shape that the task's ``spec`` states. Every split has a scored label. If labels belong to
    positions, every example has a scored label.

    The train split has every class, unless the metric is perplexity. The valid and test splits have more than one class. In
    regression, each number of a label varies in the train split.
    """
    spec = task.spec
    for split in SPLITS:
        examples = task.examples(split)
        labels = examples.labels()
        require(
            len(examples) == len(labels) > 0,
            f"{split} has {len(examples)} examples and {len(labels)} labels; the numbers must be equal and above 0",
        )
        _require_labels(split, labels, spec)
        asked = scored(labels)
        if spec.labels == "position":
            require(asked.any(dim=1).all(), f"{split} has an example without a scored position")
        require(asked.any(), f"{split} has no scored label")
        _require_values(split, labels[asked], spec)
        if spec.problem == "classification" and split != "train":  # of which every class is asked below
            require(
                len(labels[asked].unique()) > 1,
                f"{split} must have more than one class, because a score on one class tells nothing",
            )
    trained = task.examples("train").labels()
    return _require_variety(trained[scored(trained)], task)


def _require_labels(split: str, labels: Labels, spec: TaskSpec) -> None:
    """Require that a split's labels have the dtype and the axes of the spec."""
    axes, several = 1 + (spec.labels == "position"), spec.problem != "classification"
    kind = "floating-point numbers" if several else "integers"
    fits = labels.is_floating_point() if several else labels.dtype == torch.long
    require(
        fits and labels.dim() == axes + several,
        f"{split} labels are {labels.dtype} of shape {tuple(labels.shape)}, not {kind} with {axes + several} axes",
    )
    if several:
        require(
            labels.shape[-1] == spec.classes, f"{split} has {labels.shape[-1]} numbers per label, but the spec says {spec.classes}"
        )
    if spec.labels == "example":
        require(not labels.isnan().any(), f"{split} has labels that are NaN; only labels of positions may be NaN")


def _require_values(split: str, asked: Labels, spec: TaskSpec) -> None:
    """Require that scored labels are classes, 0 or 1 for each class, or finite numbers."""
    low, high, classes = float(asked.min()), float(asked.max()), spec.classes
    if spec.problem == "regression":
        require(asked.isfinite().all(), f"{split} has labels that are not finite")
    elif spec.problem == "multi_label":
        require(((asked == 0) | (asked == 1)).all(), f"{split} labels run from {low:g} to {high:g}; each must be 0 or 1")
    else:
        require(low >= 0 and high < classes, f"{split} labels run from {low:g} to {high:g}, outside 0 to {classes - 1}")


def _require_variety(trained: Labels, task: Task) -> str:
    """Require that training labels hold every class, or several values of every number. Return the finding in words."""
    if task.spec.problem == "regression":
        alike = (trained == trained[0]).all(dim=0)
        require(
            not alike.any(),
            f"every number of a label must vary in train; these are the same in all of train: {alike.nonzero()[:, 0].tolist()}",
        )
        return f"the variance in train is {', '.join(f'{float(v):.4g}' for v in trained.double().var(dim=0))}"
    if task.spec.problem == "multi_label":
        shares = trained.double().mean(dim=0)
        constant = ((shares == 0) | (shares == 1)).nonzero()[:, 0].tolist()
        require(
            not constant,
            f"every class must be in some, but not all training labels; these are in none, or in all of them: {constant}",
        )
        return f"a class is in {100 * float(shares.min()):.1f} to {100 * float(shares.max()):.1f} % of train"
    counts = torch.bincount(trained, minlength=task.spec.classes)
    if task.card.metric != "perplexity":  # rare words of a vocabulary may be in no training example
        require(
            counts.all(), f"every class must have a training example; these have none: {(counts == 0).nonzero()[:, 0].tolist()}"
        )
    return f"the largest class is {100 * float(counts.max() / counts.sum()):.1f} % of train"


@task_check
def inputs_fit_the_spec(task: Task) -> None:
    """Token ids are smaller than the vocabulary size. Frames and images have the stated shape and finite values. Padding comes
    after the real positions. Training inputs without padding are as long as the spec says."""
    kind, length = task.spec.inputs, task.spec.length
    for split in SPLITS:
        for batch in _pieces(task.examples(split)):
            _require_inputs(split, batch, task.spec)
            width = batch.inputs.shape[1 if isinstance(kind, Frames) else -1]
            if split == "train" and not isinstance(kind, Patches) and batch.valid is None:
                stated = task.spec.in_training.length
                require(width == stated, f"training inputs have {width} positions, but the spec says {stated} (see train_length)")
    if isinstance(kind, Patches):
        positions = (kind.height // kind.patch) * (kind.width // kind.patch)
        require(length == positions, f"the spec says {length} positions, but an image has {positions} patches")


def _require_inputs(what: str, batch: Batch, spec: TaskSpec) -> None:
    if isinstance(spec.inputs, Patches):
        _require_images(what, batch, spec.inputs)
    elif isinstance(spec.inputs, Frames):
        _require_frames(what, batch, spec.inputs, spec.length)
    else:
        _require_tokens(what, batch, spec.inputs, spec.length)


def _pieces(examples: Examples, size: int = 2048) -> Iterator[Batch]:
    """Iterate over all examples in batches that fit a small memory."""
    for at in range(0, len(examples), size):
        yield examples.batch(range(at, min(at + size, len(examples))))


def _require_images(split: str, batch: Batch, kind: Patches) -> None:
    shape = (kind.channels, kind.height, kind.width)
    require(batch.inputs.shape[1:] == shape, f"{split} images have shape {tuple(batch.inputs.shape[1:])}, not {shape}")
    require(batch.inputs.is_floating_point(), f"{split} images are {batch.inputs.dtype}, not floating point")
    require(batch.inputs.isfinite().all(), f"{split} holds values that are not finite")
    require(batch.valid is None, f"{split} has a padding mask; images are never padded, so valid must be None")


def _require_frames(split: str, batch: Batch, kind: Frames, length: int) -> None:
    frames = batch.inputs
    require(frames.is_floating_point(), f"{split} frames are {frames.dtype}, not floating point")
    require(
        frames.dim() == 3 and frames.shape[1] <= length and frames.shape[2] == kind.channels,
        f"{split} frames have shape {tuple(frames.shape)}, not up to {length} frames of {kind.channels} channels",
    )
    require(frames.isfinite().all(), f"{split} holds values that are not finite")
    real = torch.ones(frames.shape[:2], dtype=torch.bool) if batch.valid is None else batch.valid
    _require_padding(split, batch, real)
    require(not frames[~real].any(), f"{split}: a frame of padding must be 0 in every channel")


def _require_padding(split: str, batch: Batch, real: Tensor) -> None:
    """Require that padding is at the end only, and that no label at padding is scored."""
    require(not (real[..., 1:] & ~real[..., :-1]).any(), f"{split} has padding before a real position")
    require(real.any(dim=-1).all(), f"{split} has an example of padding only")
    asked = scored(batch.labels)
    if asked.dim() == 2:
        require(asked.shape == real.shape, f"{split} labels have shape {tuple(batch.labels.shape)}, positions {tuple(real.shape)}")
        require(real[asked].all(), f"{split} has a scored label at padding")


def _require_tokens(split: str, batch: Batch, kind: Tokens | Pairs, length: int) -> None:
    ids, axes = batch.inputs, 3 if isinstance(kind, Pairs) else 2
    require(
        ids.dtype == torch.long and ids.dim() == axes and ids.shape[-1] <= length,
        f"{split} tokens are {ids.dtype} of shape {tuple(ids.shape)}, not integers with {axes} axes and up to {length} long",
    )
    if axes == 3:
        require(ids.shape[1] == 2, f"{split} pairs hold {ids.shape[1]} sequences, not 2")
    low, high, vocabulary = int(ids.min()), int(ids.max()), kind.vocabulary
    require(low >= 0 and high < vocabulary, f"{split} tokens run from {low} to {high}, outside the vocabulary of {vocabulary}")
    real = torch.ones_like(ids, dtype=torch.bool) if batch.valid is None else batch.valid
    require((ids != 0).eq(real).all(), f"{split}: token 0 must stand for padding only, and valid must be False exactly there")
    _require_padding(split, batch, real)


@task_check
def batches_keep_the_order(task: Task) -> None:
    """A batch contains the requested examples in the requested order. Each example is the same as when it is requested alone."""
    for split in SPLITS:
        examples = task.examples(split)
        requested = [len(examples) - 1, 0, len(examples) // 2, 0]
        batch = examples.batch(requested)
        require(_same(batch.labels, examples.labels()[requested]), f"{split}: labels of a batch are not those of its indices")
        for row, index in enumerate(requested):
            alone = examples.batch(torch.tensor([index]))
            require(torch.equal(alone.inputs[0], batch.inputs[row]), f"{split}: example {index} differs in a batch and alone")
            require((alone.valid is None) == (batch.valid is None), f"{split}: valid is None for some batches and not for others")
            if alone.valid is not None and batch.valid is not None:
                require(torch.equal(alone.valid[0], batch.valid[row]), f"{split}: example {index} is padded differently in a batch")


@task_check
def examples_are_reproducible(task: Task) -> str:
    """A task that is built again without caches has the same examples and digests (hashes). Splits with different content have
    different digests."""
    made = {split: task.examples(split) for split in SPLITS}
    with forgotten(task):
        anew = type(task)(task.options)
        for split, first in made.items():
            again = anew.examples(split)
            require(list(_contents(first)) == list(_contents(again)), f"{split} holds other inputs when the task is built again")
            require(_same(first.labels(), again.labels()), f"{split} holds other labels when the task is built again")
            require(first.digest() == again.digest(), f"{split} has another digest though its content is the same")
            shown = f"{split} has the digest {first.digest()!r}, not a SHA-256 in hexadecimal"
            require(re.fullmatch("[0-9a-f]{64}", first.digest()), shown)
    digests = {first.digest() for first in made.values()}
    require(len(digests) == len(SPLITS), "splits of different content have the same digest")
    return f"test digest {made['test'].digest()[:12]}"


@task_check
def another_process_agrees(task: Task) -> None:
    """A new process with a different hash seed, which changes the order of Python sets, computes the same digests (hashes) of the
    examples as the present process."""
    if task.options != type(task.options)():
        raise NotApplicable("this check runs with the default options only, because it takes seconds")
    try:
        sent = pickle.dumps((type(task), task.options))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NotApplicable(f"the task cannot be sent to another process: {error}") from error
    status, theirs, message = digests_elsewhere(sent)
    if message.startswith("cannot be imported"):
        raise NotApplicable(f"in another process the task {message}")
    require(status == 0, f"another process fails to make the examples: {message}")
    ours = [task.examples(split).digest() for split in SPLITS]
    differing = [split for split, one, other in zip(SPLITS, ours, theirs, strict=True) if one != other]
    require(not differing, f"another process finds other content in {', '.join(differing)}; draw only from a seeded generator")


@task_check
def augmentation_is_reproducible(task: Task) -> None:
    """Augmentation keeps the shapes and labels of a batch, and its inputs and padding still fit the spec. It depends on the given
    random generator and on no other."""
    batch = task.examples("train").batch(range(min(8, len(task.examples("train")))))
    before = torch.random.get_rng_state()
    made = [task.augment(copy.deepcopy(batch), torch.Generator().manual_seed(5)) for _ in range(2)]
    require(torch.equal(before, torch.random.get_rng_state()), "augmentation draws from torch's global generator")
    for one in made:
        require(one.inputs.shape == batch.inputs.shape and one.inputs.dtype == batch.inputs.dtype, "augmentation changes shapes")
        require(_same(one.labels, batch.labels), "augmentation changes labels")
        _require_inputs("augmented train", one, task.spec)
    require(torch.equal(made[0].inputs, made[1].inputs), "the same generator gives another augmentation")


def _same(one: Labels, other: Labels) -> bool:
    """Return True if labels are equal; NaN equals NaN."""
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(torch.inf), other.nan_to_num(torch.inf))


@task_check
def data_seed_changes_the_data(task: Task) -> None:
    """A different data seed gives different examples in every split. A task whose examples are generated has the option
    ``data_seed``, because a run that trains until a criterion is met sets it."""
    if "data_seed" not in {f.name for f in fields(type(task.options))}:
        require(not task.generated, "the task must have the option data_seed, because its property generated is True")
        raise NotApplicable("the data have no seed")
    other = type(task)(replace(task.options, data_seed=task.options.data_seed + 1))
    for split in SPLITS:
        same = other.examples(split).digest() == task.examples(split).digest()
        require(not same, f"another data_seed gives the same {split} split")


@task_check
def slices_fit_their_split(task: Task) -> str:
    """A task may name parts of a split that get their own scores. Each part is a boolean mask of the split, with one value per
    example or per label."""
    if not (names := list(task.slices("test"))):
        require(task.card.distant is None, f"distant must be None, because slices() names no part; got {task.card.distant!r}")
        raise NotApplicable("this check needs a task that scores parts of a split separately")
    require(task.card.distant in (None, *names), f"distant must be one of {', '.join(names)}; got {task.card.distant!r}")
    for split in SPLITS:
        asked = scored(task.examples(split).labels())
        for name, members in task.slices(split).items():
            require(
                members.dtype == torch.bool and members.shape in (asked.shape[:1], asked.shape),
                f"{split}: part {name!r} is {members.dtype} of shape {tuple(members.shape)}; it must be boolean, with one number "
                f"per example, or one per label of {tuple(asked.shape)}",
            )
            unasked = members & ~asked if members.dim() == 2 else torch.zeros(1)
            require(not unasked.any(), f"{split}: part {name!r} marks {int(unasked.sum())} positions that are not scored")
            told = members.any() or split != "test" or name != task.card.distant
            require(told, f"the part {name!r}, which needs distant tokens, marks nothing of the test split")
    return ", ".join(names)


def _contents(examples: Examples) -> Iterator[bytes]:
    """Iterate over the digests of all inputs, in order."""
    for piece in _pieces(examples):
        for row in piece.inputs:
            yield hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=16).digest()
