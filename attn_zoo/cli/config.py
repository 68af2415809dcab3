"""Config groups of Hydra. Every registered mechanism and task can be selected without a YAML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Dict, List, Optional  # noqa: UP035 (OmegaConf's form)

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from attn_zoo import registry
from attn_zoo.contract import Level, UnknownNameError
from attn_zoo.leaderboard.metrics import SHARES
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.records.criterion import criterion_budget
from attn_zoo.rows import RowName, convert_options, typed_options, wrong_value
from attn_zoo.runner import resolve_spec

if TYPE_CHECKING:
    from attn_zoo.cli.words import Word


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


def store_groups() -> Mapping[str, str]:
    """Register in Hydra the schema of all keys and the config groups ``attention`` and ``task``. The members of a group are the
    names of all mechanisms or tasks.

    Returns:
        The plugins that could not be loaded, by name, with the reasons.
    """
    failures, store = registry.load_plugins(), ConfigStore.instance()
    for group, names in (("attention", registry.attentions()), ("task", registry.task_names())):
        for name in names:
            store.store(group=group, name=name, node={"name": name})
    store.store(name="schema", node=OmegaConf.structured(RunConfig))
    return failures


def changed(config: DictConfig, words: Iterable[Word]) -> DictConfig:
    """Return a copy of the config with the values that the KEY=VALUE words state. A word like
    ``attention=linformer[projected_length=32]`` must first be split by ``unfolded`` into one word for the name and one per option.

    Raises:
        OmegaConfBaseException: there is no such key, or a value has the wrong type.
    """
    made = deepcopy(config)
    for word in words:
        if word.key not in ("experiment", "launch"):
            OmegaConf.update(made, word.key, word.value, force_add=word.added)
    return made


def settings_from(config: DictConfig) -> Settings:
    """Return the settings of a composed config that belong to the whole command, such as the folder of records, and not to a
    run."""
    values = ((f.name, config[f.name]) for f in fields(Settings))
    given: dict[str, Any] = {name: OmegaConf.to_object(value) if OmegaConf.is_config(value) else value for name, value in values}
    return Settings(**given)


def spec_from(config: DictConfig) -> RunSpec:
    """Return the specification of the run that a composed config describes, with all values resolved.

    Raises:
        UnknownNameError: a preset or name does not exist.
        ValueError: an option, size or budget has the wrong type or breaks its rule.
    """
    task = _given(config.task)
    row, entry = convert_options(_row_from(config)), registry.task_card(task.pop("name"))
    level = entry.level(config.level)
    spec = RunSpec(
        attention=row.attention,
        task=entry.name,
        options=row.options,
        task_options=typed_options(f"task {entry.name}", entry.options, {**level.options, **task}),
        implementation=config.implementation,
        model=ModelSpec(**typed_options("model", ModelSpec, {**level.model, **_given(config.model)})),
        budget=_budget_from(level, entry.metric, _given(config.budget)),
        seed=config.seed,
        device=config.device,
        precision=config.precision,
    )
    return resolve_spec(spec, locations_from(config))


def _budget_from(level: Level, metric: str, given: Mapping[str, Any]) -> Budget:
    """Return the budget of a preset with the given fields. For training until a criterion, the maximum number of steps and the
    interval of validation follow from the preset's steps."""
    fields = {**level.budget, **given}
    if given.get("until") == "criterion":
        fixed = {"steps": Budget().steps, **level.budget}
        fields = criterion_budget(fixed, given, level.ceiling if metric in SHARES else 0.0)
    return Budget(**typed_options("budget", Budget, fields))


def _row_from(config: DictConfig) -> RowName:
    """Return the row of a composed config. ``attention.OPTION`` takes precedence over ``dials``.

    Raises:
        UnknownNameError: no such attention or option.
    """
    given, dials = _given(config.attention), _given(config.dials)
    for name, options in dials.items():
        known = [f.name for f in fields(registry.card(name).options)]
        for option in options:
            if option not in known:
                raise UnknownNameError(f"option under 'dials.{name}'", option, known)
    name = given.pop("name")
    own = {f"{key}.{option}": each for key, value in given.items() if isinstance(value, dict) for option, each in value.items()}
    row = RowName(name, own if "+" in name else given, config.implementation)
    if "+" in name and (single := [key for key, value in given.items() if not isinstance(value, dict)]):
        raise UnknownNameError(f"option of the hybrid {name}", single[0], [f"{part}.OPTION" for part in dict.fromkeys(row.turn)])
    return row.changed(lambda part: replace(part, options={**dials.get(part.attention, {}), **part.options}))


def locations_from(config: DictConfig) -> dict[str, Any]:
    """Return the task options of a composed config that say where data are. If the task has an option ``root`` without a value, it
    gets the value of ``data.root``."""
    task = _given(config.task)
    locations = registry.task_card(task["name"]).locations
    root = {"root": config.data.root} if "root" in locations and config.data.root else {}
    return {**root, **{name: task[name] for name in locations if name in task}}


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


def _given(node: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    return _without_none(plain)


def _without_none(plain: Mapping[Any, Any]) -> dict[str, Any]:
    there = {str(key): value for key, value in plain.items() if value is not None}
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in there.items()}
