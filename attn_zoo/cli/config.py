"""Keys of ``attn-zoo run``, and the composition of an experiment by Hydra."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional  # noqa: UP035 (OmegaConf's form)

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException, ValidationError

from attn_zoo.checks import check_number, check_whole
from attn_zoo.contract import UnknownNameError
from attn_zoo.contract.options import wrong_value
from attn_zoo.records import Budget, ModelSpec
from attn_zoo.registry import load_plugins

if TYPE_CHECKING:
    from attn_zoo.cli.words import Word

COMPOSED = ("experiment", "launch")
"""Keys whose values name files of settings, which Hydra composes."""
LAUNCHERS = ("joblib", "ray", "slurm", "submitit_local")
_NEEDS = {"ray": "ray", "slurm": "submitit", "submitit_local": "submitit", "tpe": "optuna"}
"""Package that each launcher or sampler needs. The extra ``sweeps`` installs all of them."""
_OPEN = ("attention", "task", "dials", "tuning.space", "tuning.dials")
"""Parts of a config in which any key is allowed. Their keys are checked later."""


def _ungiven(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass as config keys with the value None, which means the default of the preset or, without one,
    of the class."""
    return {f.name: None for f in fields(kind)}


@dataclass
class DataConfig:
    """Config group ``data``: where published data sets are."""

    root: str = ""
    """Path of the data folder. Empty text means $ATTN_ZOO_DATA or, if this variable is not set, ``data``."""


@dataclass
class CheckpointConfig:
    """Config group ``checkpoint``: how often the state of a run is saved, so that an interrupted run can continue."""

    every: int = 0
    """Number of steps between two checkpoints; 0 for checkpoints by time only."""
    minutes: float = 10.0
    """Minutes between two checkpoints; 0 for checkpoints by steps only. If both keys are 0, there are no checkpoints."""


@dataclass
class WeightsConfig:
    """Config group ``weights``: when the weights of the network are written to files during a run, for later analyses."""

    after: List[int] = field(default_factory=list)  # noqa: UP006 (OmegaConf's form)
    """Steps after which weights are written; 0 is before training."""
    folder: str = "weights"


@dataclass
class TuningConfig:
    """Config group ``tuning``: the search of hyperparameters. Nothing is searched if ``space`` is empty."""

    space: Dict[str, str] = field(default_factory=dict)  # noqa: UP006 (OmegaConf's form)
    """Range to search for each key, such as ``budget.learning_rate``. A key on the command line takes precedence."""
    dials: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """Hyperparameters to search for each mechanism (by name), with the values to try."""
    attention: List[str] = field(default_factory=list)  # noqa: UP006
    """Mechanisms that ``attn-zoo tune`` searches by default."""
    task: List[str] = field(default_factory=list)  # noqa: UP006
    """Tasks on which ``attn-zoo tune`` searches by default."""
    main: List[str] = field(default_factory=list)  # noqa: UP006
    """Mechanisms that ``attn-zoo tune`` trains with at least five seeds, as it does with controls (see ``seeds_wanted``)."""
    sampler: str = "grid"
    """How trials are chosen. ``grid`` tries every combination. ``tpe`` is Optuna's sampler. ``bracket`` searches only the learning
    rate, and needs ``budget.until=criterion`` (see ``attn_zoo.cli.bracket``)."""
    trials: int = 0
    """Number of trials. 0 means all combinations (``grid``), or as many trials as the search needs (``bracket``)."""


@dataclass
class Settings:
    """Settings of a command that are not part of the specification of a run."""

    records: str = "runs"
    """Folder to which records are added."""
    sweeps: List[str] = field(default_factory=list)  # noqa: UP006 (OmegaConf's form)
    """Grids of an experiment that has several grids. Each grid is one text: KEY=VALUE,... words separated by spaces, as on the
    command line."""
    report: bool = True
    """True to print the leaderboard after all runs."""
    overview: bool = False
    """True to print only the leaderboard's first table, and to save it as a picture beside the records."""
    threads: int = 0
    """Number of threads that PyTorch uses within an operation, in each process. 0 keeps PyTorch's number. Equal runs with the
    same number of threads give bit-equal results."""
    launcher: Any = None
    """Options of the launcher that ``launch=`` selects."""
    workers: Optional[int] = None  # noqa: UP045 (OmegaConf's form)
    """Number of runs that a launcher (``launch=``) executes at the same time."""
    tuning: TuningConfig = field(default_factory=lambda: TuningConfig())
    checkpoint: CheckpointConfig = field(default_factory=lambda: CheckpointConfig())
    weights: WeightsConfig = field(default_factory=lambda: WeightsConfig())
    callback: Optional[str] = None  # noqa: UP045 (OmegaConf's form)
    """Callback of each run, such as an experiment tracker: a class in a user's file, in the form FILE.py:NAME."""

    @property
    def kind(self) -> str | None:
        """Name of the launcher that ``launch=`` selects; None if no launcher is selected."""
        return None if self.launcher is None else str(self.launcher["kind"])

    def check(self) -> None:
        """Check the settings, such as the launcher.

        Raises:
            ValueError: a setting breaks its rule, a launcher or sampler needs a package or program that is missing, or this process
                was started together with others, for example by torchrun.
        """
        if (together := os.environ.get("WORLD_SIZE", "1")) != "1":
            raise ValueError(
                f"a run must be a single process, but {together} processes were started together (WORLD_SIZE={together}). Start "
                "one process, and divide the runs of a sweep with launch=joblib, ray or slurm"
            )
        launcher = self.launcher
        if launcher is not None and (not isinstance(launcher, Mapping) or launcher.get("kind") not in LAUNCHERS):
            raise ValueError(
                f"launch= must be one of {', '.join(LAUNCHERS)}; got {launcher!a}. Set options of the launcher with "
                "launcher.KEY=VALUE"
            )
        kind = self.kind
        check_whole("threads", self.threads, 0 if kind is None else 1, 4096)
        check_whole("checkpoint.every", self.checkpoint.every, 0)
        check_number("checkpoint.minutes", self.checkpoint.minutes, 0)
        if self.workers is not None:
            check_whole("workers", self.workers)
        if not self.records:
            raise ValueError("records= must name a folder; got an empty text")
        if kind is None and self.workers is not None:
            raise ValueError(
                "workers= must go with launch=, because only a launcher starts several processes. Add launch=joblib, ray, "
                "submitit_local or slurm, or leave workers= out"
            )
        searched = self.tuning.sampler if self.tuning.space else None
        for name, said in ((kind, f"launch={kind}"), (searched, f"tuning.sampler={searched}")):
            if name in _NEEDS and find_spec(_NEEDS[name]) is None:
                raise ValueError(
                    f"{said} needs the package {_NEEDS[name]}, which is not installed. Install it with: "
                    "pip install 'attn-zoo[sweeps]'"
                )
        if kind == "slurm" and shutil.which("sbatch") is None:
            raise ValueError(
                "launch=slurm needs the command sbatch, which is not on this machine. Run the command on a machine of the "
                "cluster, or try the sweep with launch=submitit_local"
            )


@dataclass
class RunConfig(Settings):
    """All keys of ``attn-zoo run``."""

    attention: Any = None
    task: Any = None
    dials: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """Options of each mechanism (by name), for commands with several mechanisms. The key ``attention.OPTION`` takes precedence."""
    implementation: str = "auto"
    """Implementation of the mechanism: ``auto``, ``eager``, ``tiled``, ``sdpa``, ``flex``, ``xformers``, ``triton`` or ``fla``."""
    level: Optional[str] = None  # noqa: UP045 (OmegaConf's form)
    """Preset of the task: named default sizes of network, data and training. None means the first preset on the task's card."""
    data: DataConfig = field(default_factory=lambda: DataConfig())
    model: Any = field(default_factory=lambda: _ungiven(ModelSpec))
    budget: Any = field(default_factory=lambda: _ungiven(Budget))
    seed: int = 1
    device: str = "auto"
    precision: str = "fp32"


class Composed(NamedTuple):
    """Config of an experiment and its launcher."""

    config: DictConfig
    several: bool
    """True if the experiment itself defines several runs, so that the word ``-m`` is not needed."""
    swept: tuple[str, ...]
    """Words ``KEY=VALUE,...`` for the keys that have several values in the experiment."""


def compose(named: Iterable[Word]) -> Composed:
    """Return the config of the experiment and of the launcher that the words ``experiment=NAME`` and ``launch=NAME`` select.
    ``changed`` then applies the words for settings of runs.

    Raises:
        ValueError: ``experiment`` or ``launch`` has several values.
        HydraException: there is no such experiment or launcher.
    """
    words = list(named)
    if several := [word for word in words if word.swept]:
        raise ValueError(f"{several[0].key}= must be one name; got {several[0].text}. Run one command for each name")
    load_plugins()  # so that those that fail are named before anything else
    ConfigStore.instance().store(name="schema", node=OmegaConf.structured(RunConfig))
    with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        config = hydra.compose("run", overrides=[f"{word.key}={word.text}" for word in words], return_hydra_config=True)
    multirun, params = config.hydra.mode == RunMode.MULTIRUN, dict(config.hydra.sweeper.get("params") or {})
    with open_dict(config):
        del config["hydra"]  # its copies for each run would take most of the time
    for part in (OmegaConf.select(config, key) for key in _OPEN):
        OmegaConf.set_struct(part, False)
    return Composed(config, multirun, tuple(f"{key}={value}" for key, value in params.items()))


@contextmanager
def in_words() -> Iterator[None]:
    """Return a context that turns errors of Hydra and OmegaConf into ``ValueError`` with the message of ``explain``."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error)) from error


def explain(error: BaseException) -> str:
    """Return a message for an error of Hydra or OmegaConf. If a key or name is unknown, the message lists the known keys or
    names."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        if isinstance(link, MissingConfigException) and link.options and link.missing_cfg_file:
            group, _, name = link.missing_cfg_file.rpartition("/")
            return str(UnknownNameError(group, name, link.options))
        parent, key = getattr(link, "parent_node", None), getattr(link, "key", None)
        where = str(getattr(link, "full_key", None) or key)
        if isinstance(parent, DictConfig) and key is not None and key not in (known := list(map(str, parent))):
            owner = where.rpartition(".")[0]
            return str(UnknownNameError(f"option under {owner!r}" if owner else "setting of a run", str(key), known))
        if isinstance(link, ValidationError):
            return wrong_value(where, RunConfig, link)
    return "; ".join(dict.fromkeys(" ".join(str(link).split()) for link in chain))
