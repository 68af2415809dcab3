"""Experiment with students of a teacher. The teacher's attention is replaced, distilled and fine-tuned, and quality is measured
after each stage."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from attn_zoo.analysis.starts import Start
from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.transformers import replace_attention, zoo_layers
from attn_zoo.transplant.encoder import Teacher, answers_of, embed
from attn_zoo.transplant.measures import Exam, counted_flops, spent, timed
from attn_zoo.transplant.setting import Candidate, Setting, Trial
from attn_zoo.transplant.starts import second_moments, start, takes_start
from attn_zoo.transplant.texts import Material
from attn_zoo.transplant.training import DivergedError, classify, distil, layer_errors, tune

STAGES = ("swap", "distilled", "tuned")
HELD_OUT = 1 / 16
"""Share of the training passages on which the error of each layer is measured. They are not used in training."""


def swap(teacher: Teacher, candidate: Candidate, length: int, seed: int) -> Any:
    """Return a copy of the teacher whose attention is replaced by the mechanism of ``candidate``. ``seed`` determines the
    mechanism's random draws.

    Raises:
        UnknownNameError, ValueError, UnsupportedError: see ``replace_attention`` of ``attn_zoo.integrations.transformers``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student = copy.deepcopy(teacher.model)
        replace_attention(student, candidate.attention, length=length, attention_dropout=0.0, **candidate.options)
    return student.eval()


def check(
    teacher: Teacher, candidates: Sequence[Candidate], starts: Sequence[Start], setting: Setting, *, padded: bool
) -> list[bool]:
    """Check that a student (a copy of the teacher with another mechanism) can be built from every candidate.

    Args:
        padded: True if there are sentence pairs or classification tasks, because their passages are padded.

    Returns:
        One value per candidate: True if a layer has matrices E and F that project keys and values and can be initialised.

    Raises:
        ValueError, UnsupportedError: a mechanism cannot be used in this model or does not support the padding of the passages, or
            no mechanism has the matrices E and F that ``starts`` would initialise.
    """
    takes = []
    for candidate in candidates:
        stack = zoo_layers(swap(teacher, candidate, setting.length, seed=0))
        if (setting.short > 0 or padded) and not all(mechanism.card.can.key_padding for mechanism in stack):
            raise UnsupportedError(
                f"{candidate.label} does not support padding, which short=, pairs= and classify= need. Set short=0 and leave "
                "out pairs= and classify=, or leave out this mechanism"
            )
        takes.append(any(map(takes_start, stack)))
    if any(how is not Start.stretches for how in starts) and not any(takes):
        raise UnsupportedError(
            "init= can be given only for mechanisms with the matrices E and F, and none of the given mechanisms has them. Leave "
            "init= out"
        )
    return takes


class Bench:
    """Runner of all trials. A trial says how one student is made and trained. The teacher's embeddings, its attention outputs and
    the second moments of its keys are computed once.

    Args:
        trials: all trials to run.
        tell: function that is called with lines about the progress.
    """

    def __init__(
        self, setting: Setting, teacher: Teacher, material: Material, trials: Sequence[Trial], tell: Callable[[str], None]
    ) -> None:
        self.setting, self.teacher, self.material, self.trials, self.tell = setting, teacher, material, trials, tell
        count = max(1, round(len(material.learn) * HELD_OUT))
        held_out = torch.zeros(len(material.learn), dtype=torch.bool)
        held_out[torch.arange(count) * len(material.learn) // count] = True
        self.learn, self.held = material.learn[~held_out], material.learn[held_out]
        tell("the teacher's outputs on the passages")
        model = teacher.model
        self.answers = answers_of(model, self.learn) if setting.distil_steps else []
        self.held_answers = answers_of(model, self.held)
        self.targets = embed(model, self.learn, trim=True)
        self.moments = second_moments(model, self.learn) if any(trial.start for trial in trials) else []
        self.exam = Exam(model, material)
        model.set_attn_implementation("eager")  # the counter does not count fused attention
        self.teacher_flops = counted_flops(model, material.test[:1])
        model.set_attn_implementation("sdpa")

    def points(self) -> Iterator[dict[str, Any]]:
        """Run the trials, and yield the result of each trial as a dictionary, called a point. If the training of a student
        diverged, ``failed`` in its point is the reason, and ``stages`` has only the completed stages.

        A student with plain softmax equals the teacher, so it is neither distilled nor fine-tuned on embeddings.
        """
        for at, trial in enumerate(self.trials, 1):
            init = "" if trial.init is None else f", init {trial.init}"
            self.tell(f"{at} of {len(self.trials)}: {trial.candidate.label}{init}, seed {trial.seed}")
            with torch.random.fork_rng(devices=[]):  # redraws and dropout of a mechanism depend on the trial alone
                torch.manual_seed(trial.seed)
                point = self._point(trial)
            yield point

    def _point(self, trial: Trial) -> dict[str, Any]:
        candidate = trial.candidate
        student = swap(self.teacher, candidate, self.setting.length, trial.seed)
        stack = zoo_layers(student)
        kept = None if trial.start is None else start(stack, self.moments, trial.start)
        point: dict[str, Any] = {
            "label": candidate.label,
            "attention": candidate.attention,
            "options": dict(candidate.options),
            "dial": candidate.dial,
            "control": all(mechanism.card.control for mechanism in stack),
            "init": trial.init,
            "seed": trial.seed,
            "moment_kept": kept,
            "cost": spent(student, self.teacher_flops, self.material.test[:1]),
            "stages": {},
            "layer_errors": {},
            "seconds": {},
            "failed": None,
        }
        try:
            self._train(point, student)
        except DivergedError as error:
            point["failed"] = str(error)
        return point

    def _train(self, point: dict[str, Any], student: Any) -> None:
        """Train a student, and add its quality at every stage to its point. With classification tasks, also add its accuracy on
        each, and the seconds of forward passes."""
        stack, setting = zoo_layers(student), self.setting
        same = all(mechanism.card.name == "softmax" and mechanism.options == mechanism.card.options() for mechanism in stack)
        trim = all(mechanism.card.can.any_length or mechanism.card.can.shorter for mechanism in stack)
        generator = torch.Generator().manual_seed(point["seed"])
        for stage in STAGES:
            began = time.perf_counter()
            if stage == "distilled" and not same:
                distil(student, self.answers, self.learn, setting, generator)
            elif stage == "tuned" and not same:
                tune(student, self.targets, self.learn, setting, generator)
            if stage != "swap" and not same:
                point["seconds"][stage] = time.perf_counter() - began
            point["layer_errors"][stage] = layer_errors(student, self.held_answers, self.held)
            point["stages"][stage] = self.exam.grade(student, trim=trim)
        if not self.material.tasks:
            return
        point["passes"], point["accuracy"] = timed(self.teacher.model, student, self.material.test), {}
        for task in self.material.tasks:
            self.tell(f"{point['label']}, seed {point['seed']}: classification, {task.name}")
            began = time.perf_counter()
            point["accuracy"][task.name] = classify(student, task, setting, trim=trim, seed=point["seed"])
            point["seconds"][task.name] = time.perf_counter() - began
