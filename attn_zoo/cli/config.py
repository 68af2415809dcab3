"""Hydra's config groups, built from the cards: every registered attention and task can be selected without a YAML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from operator import is_
from typing import Any, Dict, List, Optional  # noqa: UP035 (OmegaConf's form)

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attn_zoo import registry
from attn_zoo.contract import Level, UnknownNameError
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.metrics import SHARES
from attn_zoo.plugin_imports import tell
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.records.criterion import criterion_budget
from attn_zoo.rows import RowName, convert_options, typed_options
from attn_zoo.runner import resolve_spec


def _ungiven(kind: type) -> dict[str, Any]:
    """Fields of a dataclass as config keys with value None, whose defaults come from the level or the class."""
    return {f.name: None for f in fields(kind)}


@dataclass
class DataConfig:
    """Location of published data."""

    root: str = ""
    """Folder; empty is $ATTN_ZOO_DATA, else ``data``."""


@dataclass
class CheckpointConfig:
    """Checkpoint intervals, at which the state of a run is saved beside its record."""

    every: int = 0
    """Steps between two checkpoints; 0 means by time alone."""
    minutes: float = 10.0
    """Minutes between two checkpoints; 0 means by steps alone, and with both 0 there are no checkpoints."""


@dataclass
class WeightsConfig:
    """Snapshots of the network's weights during a run, for analyses."""

    after: List[int] = field(default_factory=list)  # noqa: UP006 (OmegaConf's form)
    """Steps after which weights are written; 0 is before training."""
    folder: str = "weights"
    """Folder of the files."""


@dataclass
class TuningConfig:
    """A search of hyperparameters; none where ``space`` is empty."""

    space: Dict[str, str] = field(default_factory=dict)  # noqa: UP006 (OmegaConf's form)
    """Sweeps to search over, by key of a setting; a key on the command line takes precedence."""
    dials: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """Candidates for the hyperparameters of each attention, by its name."""
    attention: List[str] = field(default_factory=list)  # noqa: UP006
    """Default rows of ``attn-zoo tune``."""
    task: List[str] = field(default_factory=list)  # noqa: UP006
    """Default tasks of ``attn-zoo tune``."""
    main: List[str] = field(default_factory=list)  # noqa: UP006
    """Mechanisms that have five seeds from the start in ``attn-zoo tune``, as controls have (``attn_zoo.cli.seeds``)."""
    sampler: str = "grid"
    """Sampler of trials: ``grid``, which takes every combination, ``tpe``, Optuna's, or ``bracket``, which seeks the best learning
    rate of runs until a criterion (``attn_zoo.cli.bracket``)."""
    trials: int = 0
    """Number of trials; 0 is the whole grid, or as many as a bracketed search needs."""
    at_once: int = 4
    """Number of trials that ``tpe`` draws at once; independent of the launcher, so that a study is the same with any launcher."""
    startup: int = 5
    """Number of random trials that ``tpe`` draws before it uses scores."""
    seed: int = 0
    """Seed of ``tpe``."""


@dataclass
class Settings:
    """Settings of runs that are no part of their specs: folder of records, launcher, search, checkpoints, weights, callback."""

    records: str = "runs"
    """Folder that records are added to."""
    sweeps: List[str] = field(default_factory=list)  # noqa: UP006 (OmegaConf's form)
    """Sweeps of an experiment that is not a single grid, each as on the command line: KEY=VALUE,... separated by spaces."""
    report: bool = True
    """Print the leaderboard after all runs."""
    overview: bool = False
    """Print only the leaderboard's first table, and save it as a picture beside the records."""
    threads: int = 0
    """PyTorch's threads within an operation, in each process; 0 keeps PyTorch's number. Equal numbers give bit-equal results."""
    launcher: Any = None
    """Options of the launcher that ``launch=`` selects."""
    workers: Optional[int] = None  # noqa: UP045 (OmegaConf's form)
    """Number of runs at a time, with a launcher (``launch=``)."""
    tuning: TuningConfig = field(default_factory=lambda: TuningConfig())
    checkpoint: CheckpointConfig = field(default_factory=lambda: CheckpointConfig())
    weights: WeightsConfig = field(default_factory=lambda: WeightsConfig())
    callback: Optional[str] = None  # noqa: UP045 (OmegaConf's form)
    """Class that follows each run, such as a tracker: FILE.py:NAME."""


@dataclass
class RunConfig(Settings):
    """Keys of ``attn-zoo run``."""

    attention: Any = None
    task: Any = None
    dials: Any = None
    """Options of attentions by name, for a sweep over several; attention.OPTION takes precedence."""
    implementation: str = "auto"
    """``auto``, or ``eager``, ``tiled``, ``sdpa``, ``flex``, ``xformers``, ``triton``, ``fla``."""
    level: Optional[str] = None  # noqa: UP045 (OmegaConf's form)
    """Level of the task, which proposes sizes; None for the first level on its card."""
    data: DataConfig = field(default_factory=lambda: DataConfig())
    model: Any = field(default_factory=lambda: _ungiven(ModelSpec))
    budget: Any = field(default_factory=lambda: _ungiven(Budget))
    seed: int = 1
    device: str = "auto"
    precision: str = "fp32"


class _Groups(dict[str, Any]):
    """Hydra's stored groups, which are not deep-copied for each composed run: the copies took a third of the time.

    Hydra copies its sources before it changes their list, but it only reads stored groups, and copies what it takes from them.
    """

    def __deepcopy__(self, memo: object) -> _Groups:
        return self


_STORED: list[Any] = []
"""Hydra's store and the cards that ``store_groups`` has registered in it."""
_UNTYPED: dict[str, str] = {}
"""Reasons of the entries whose options Hydra cannot type."""


def store_groups() -> Mapping[str, str]:
    """Register the config groups ``attention`` and ``task`` and the schema of all keys.

    Returns:
        Reasons of the plugins that failed, by name; those whose options Hydra cannot type are among them.
    """
    failures = dict(registry.load_plugins())
    store = ConfigStore.instance()
    if not isinstance(store.repo, _Groups):
        store.repo = _Groups(store.repo)
    groups: list[tuple[str, str, Any]] = [("attention", name, registry.card(name)) for name in registry.attentions()]
    groups += [("task", name, registry.task_card(name)) for name in registry.task_names()]
    entries = [store.repo, *(entry for _, _, entry in groups)]
    if len(entries) == len(_STORED) and all(map(is_, entries, _STORED)):
        return {**failures, **_UNTYPED}
    _UNTYPED.clear()
    dials: dict[str, Any] = {}
    for group, name, entry in groups:
        try:
            OmegaConf.structured(entry.options)
        except Exception as error:  # options of a plugin may hold anything
            _UNTYPED[f"{group} {name}"] = reason = terminal(f"Hydra does not accept the types of its options: {error}")
            tell(f"{group} {name} is left out: {reason}")
            continue
        store.store(group=group, name=name, node={"name": name, **_ungiven(entry.options)})
        if group == "attention":
            dials[name] = _ungiven(entry.options)
    store.store(name="schema", node=OmegaConf.structured(RunConfig(dials=dials)))
    _STORED[:] = entries
    return {**failures, **_UNTYPED}


def store_hybrid(attention: str) -> None:
    """Register a hybrid in the group ``attention``, with the options of each of its mechanisms under the mechanism's name.

    Raises:
        UnknownNameError: no such attention.
        ValueError: the name is not NAME or COUNT*NAME with + between.
    """
    names = dict.fromkeys(RowName(attention).turn)
    node = {"name": attention, **{name: _ungiven(registry.card(name).options) for name in names}}
    ConfigStore.instance().store(group="attention", name=attention, node=node)


def stored_row(attention: str) -> DictConfig | None:
    """Copy of the stored config of an attention or hybrid; None where there is none."""
    stored = ConfigStore.instance().repo["attention"].get(f"{attention}.yaml")
    return deepcopy(stored.node) if stored else None


def settings_from(config: DictConfig) -> Settings:
    """Settings of a command from a composed config; they are no part of its runs' specs."""
    values = ((f.name, config[f.name]) for f in fields(Settings))
    given: dict[str, Any] = {name: OmegaConf.to_object(value) if OmegaConf.is_config(value) else value for name, value in values}
    return Settings(**given)


def spec_from(config: DictConfig) -> RunSpec:
    """Resolved spec of a composed configuration.

    Raises:
        UnknownNameError: a level or name does not exist.
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
    """Budget of a level with the given fields; until a criterion, the cap and the intervals follow from the level's steps."""
    fields = {**level.budget, **given}
    if given.get("until") == "criterion":
        fixed = {"steps": Budget().steps, **level.budget}
        fields = criterion_budget(fixed, given, level.ceiling if metric in SHARES else 0.0)
    return Budget(**typed_options("budget", Budget, fields))


def _row_from(config: DictConfig) -> RowName:
    """Row of a composed configuration; ``attention.OPTION`` takes precedence over ``dials``."""
    given = _given(config.attention)
    row = RowName(given.pop("name"), {}, config.implementation)

    def with_options(part: RowName) -> RowName:
        own = given.get(part.attention, {}) if row.is_hybrid else given
        dials = _given(config.dials[part.attention]) if part.attention in config.dials else {}
        return replace(part, options={**dials, **{name: value for name, value in own.items() if value is not None}})

    return row.changed(with_options)


def locations_from(config: DictConfig) -> dict[str, Any]:
    """Task options with locations of data, as composed; ``root`` is ``data.root`` unless the task has its own."""
    task = _given(config.task)
    locations = registry.task_card(task["name"]).locations
    root = {"root": config.data.root} if "root" in locations and config.data.root else {}
    return {**root, **{name: task[name] for name in locations if name in task}}


@contextmanager
def in_words() -> Iterator[None]:
    """Convert errors of Hydra and OmegaConf into ValueErrors with messages of the zoo."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error)) from error


def explain(error: BaseException) -> str:
    """Message for an error of Hydra or OmegaConf: the key or name that was given, and the known ones."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        if isinstance(link, MissingConfigException) and link.options and link.missing_cfg_file:
            group, _, name = link.missing_cfg_file.rpartition("/")
            return str(UnknownNameError(group, name, link.options))
        parent, key = getattr(link, "parent_node", None), getattr(link, "key", None)
        if isinstance(parent, DictConfig) and key is not None and key not in (known := list(map(str, parent))):
            where = str(getattr(link, "full_key", key)).rpartition(".")[0]
            return str(UnknownNameError(f"option under {where!r}" if where else "setting of a run", str(key), known))
    return "; ".join(dict.fromkeys(" ".join(str(link).split()) for link in chain))


def _given(node: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items() if value is not None}
