"""Subject of a check (one mechanism with its options and implementation), and the registry of checks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from typing import Any, Literal

import torch
from torch import Tensor

from attn_zoo.conformance.harness import NotApplicable, Violation, require, require_finite, seed_generators
from attn_zoo.conformance.requests import Request, draw, key_masks
from attn_zoo.conformance.sizes import ACROSS, BORDERS, Size, Sizes, drawn_sizes
from attn_zoo.contract import FLA_DTYPE, Attention, AttentionCard, Geometry, UnsupportedError, unavailable
from attn_zoo.registry import attention_options

Scope = Literal["card", "variant", "implementation", "twin"]
"""How often a check runs: ``card`` means once, ``variant`` once per set of options, ``implementation`` once per set of options
and implementation. ``twin`` means the same as ``implementation``, but leaves out ``eager``."""

Numbers = Tensor | Mapping[str, Tensor]
"""Tensor, or several tensors by name, such as the outputs and gradients of a call."""

LENGTHS = (33, 65, 129, 257, 513, 1025)
"""Odd lengths, which are not multiples of any block size. A check uses the first length that the options allow."""

# A default block size of a quarter of this length is 18, which divides none of LENGTHS.
DEFAULTS_AT = Geometry(2, 8, 72, 72)
"""Heads, head width and lengths for which all checks compute the default options, even checks at other lengths."""

BOTH_FORMS = (
    "A form that is only causal can be made bidirectional by adding the outputs of both reading directions; a mechanism for "
    "images can arrange any number of tokens in a grid whose last row is not full"
)
"""Advice for a mechanism that cannot be built for the checks."""

ENDS_AND_HOLES = slice(3, 5)
"""The two of six examples that are padded at both ends and at every third key; see ``key_masks``."""

HALF = 0.03
"""Tolerance of 16-bit types, relative to the largest number: about eight roundings."""


@dataclass(frozen=True)
class Subject:
    """One mechanism to check, with a set of options, an implementation and a device."""

    card: AttentionCard
    variant: str
    options: Any
    implementation: str
    device: torch.device
    brief: bool = False
    """True if a check is repeated with other options or parameters. It then leaves out the sizes that are drawn at random."""
    moved: float = 0.0
    """How far parameters are moved from their initial values, relative to their size; see ``move_parameters``."""
    traces: dict[tuple[str, bool, int], Any] = field(default_factory=dict, compare=False, repr=False)
    """Measured costs by implementation, causality and length."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the inputs: float64 on a CPU. On other devices, and for kernels that multiply matrices in one dtype only, the
        dtype is ``Subject.single``."""
        return torch.float64 if self.device.type == "cpu" and self.single is torch.float32 else self.single

    @property
    def single(self) -> torch.dtype:
        """Dtype for single precision: float32 or, if this implementation multiplies matrices in one dtype only, that dtype."""
        return FLA_DTYPE if self.implementation == "fla" else torch.float32

    @property
    def interpreted(self) -> bool:
        """True if kernels for a GPU run on a CPU, in Triton's interpreter or as plain PyTorch code."""
        return self.implementation in ("triton", "fla") and self.device.type == "cpu"

    @property
    def tolerance(self) -> float:
        """Largest permitted rounding error of a result: its difference from the expected numbers, divided by the largest expected
        number."""
        return {torch.float64: 1e-9, torch.float32: 3e-5}.get(self.dtype, HALF)

    @property
    def exactness(self) -> float:
        """Largest permitted difference between two runs of the same arithmetic, relative to the largest number in the result."""
        # Not zero, because kernels may add gradients in any order.
        return 1e-12 if self.dtype is torch.float64 else self.tolerance

    @cached_property
    def length(self) -> int:
        """Number of tokens in most checks: the shortest of ``LENGTHS`` that the options allow.

        Raises:
            Violation: the bidirectional form cannot be built at any of these lengths.
        """
        refusal = None
        for length in LENGTHS:
            try:
                self.card.build(self._sized(length), copy.deepcopy(self.options))
            except UnsupportedError as error:
                refusal = error
                continue
            return length
        lengths = ", ".join(map(str, LENGTHS))
        raise Violation(
            f"a mechanism must have a bidirectional form, which must run at one of the lengths {lengths} and at all longer ones; "
            f"at {LENGTHS[-1]}, building it with causal=False raises: {refusal}. {BOTH_FORMS}"
        ) from refusal

    def _sized(self, length: int, heads: int = 2, head_dim: int | None = None, causal: bool = False) -> Geometry:
        wide = 8 if self.dtype is torch.float64 else 16  # kernels on matrix units need at least 16
        return Geometry(heads, head_dim or wide, length, length, causal)

    def geometry(
        self, length: int | None = None, *, heads: int = 2, head_dim: int | None = None, causal: bool | None = None
    ) -> Geometry:
        """Return a small geometry with equal numbers of queries and keys. If ``causal`` is None, the geometry is bidirectional,
        unless the implementation supports causal geometries only."""
        return self._sized(length or self.length, heads, head_dim, self.always_causal if causal is None else causal)

    def build(
        self, geometry: Geometry | None = None, *, seed: int = 0, options: Any = None, dtype: torch.dtype | None = None
    ) -> Attention:
        """Return the mechanism for a geometry, in eval mode.

        Raises:
            NotApplicable: an implementation other than ``eager`` does not support this geometry or these options.
        """
        geometry = geometry or self.geometry()
        options = self.options if options is None else options
        if reason := self._refused(geometry, options):
            raise NotApplicable(reason)
        seed_generators(seed)
        built = self.card.build(geometry, copy.deepcopy(options), self.implementation).to(self.device, dtype or self.dtype).eval()
        return move_parameters(built, self.moved)

    def build_if_allowed(self, geometry: Geometry) -> Attention | None:
        """Return the mechanism for a geometry. Return None if the geometry is unsupported and short: the number of queries or the
        number of keys is below ``Subject.length``.

        Raises:
            UnsupportedError: an unsupported geometry has at least ``Subject.length`` queries and keys.
            NotApplicable: see ``build``.
        """
        try:
            return self.build(geometry)
        except UnsupportedError:
            if min(geometry.queries, geometry.keys) >= self.length:
                raise
            return None

    def draw(self, module: Attention, **settings: Any) -> Request:
        """Return random inputs for ``module``. ``settings`` are keyword arguments of ``requests.draw``."""
        return draw(module, self.dtype, self.device, **settings)

    def modules(self, geometries: Iterable[Geometry] | None = None, **settings: Any) -> Iterator[Attention]:
        """Build the mechanism for each geometry: by default, in its bidirectional and its causal form. ``settings`` are keyword
        arguments of ``build``."""
        for geometry in self.plain_and_causal() if geometries is None else geometries:
            yield self.build(geometry, **settings)

    def requests(self, module: Attention, examples: slice = slice(None), fewest: int = 1, **settings: Any) -> list[Request]:
        """Return random inputs for ``module`` without padding and, if padding is supported, the same inputs with padding.

        Args:
            examples: which of six examples to draw. Each has another kind of padding; see ``key_masks``.
            fewest: smallest number of keys with which padding is tried.
            settings: keyword arguments of ``requests.draw``.
        """
        masks = key_masks(module.geometry.keys, self.device)[examples]
        plain = self.draw(module, batch=len(masks), **settings)
        return [plain, plain.padded(masks)] if self.card.can.key_padding and module.geometry.keys >= fewest else [plain]

    def draw_padded(self, module: Attention, examples: slice = slice(None), fewest: int = 1, **settings: Any) -> Request:
        """Return the last request of ``requests``, which is padded if padding is supported."""
        return self.requests(module, examples, fewest, **settings)[-1]

    def dropouts(self) -> list[str]:
        """Return the names of the options that are dropout rates: numbers with ``dropout`` in their name."""
        values = {option.name: getattr(self.options, option.name) for option in fields(self.options) if "dropout" in option.name}
        return [name for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)]

    def without_dropout(self) -> Any:
        """Return the options with all dropout rates set to zero."""
        return replace(self.options, **dict.fromkeys(self.dropouts(), 0.0))

    @property
    def causal(self) -> bool:
        """True if the card declares ``causal`` and the mechanism supports a causal geometry with these options."""
        return self.card.can.causal and not self.card.build.refuses("eager", self.geometry(causal=True), self.options)

    def lacks(self, need: str) -> str | None:
        """Return the reason why a check does not apply, or None.

        Args:
            need: a capability, such as ``key_padding``, or ``query`` or ``dropout``. The capabilities ``causal`` and ``stepwise``
                also need a causal form with these options.
        """
        if need == "query":
            return None if need in self.card.reads else "the mechanism does not read queries"
        if need == "dropout":
            return None if self.dropouts() else "there is no dropout option"
        if not getattr(self.card.can, need):
            return f"the card does not declare {need}"
        return None if self.causal or need not in ("causal", "stepwise") else "these options have no causal form"

    @cached_property
    def always_causal(self) -> bool:
        """True if the implementation supports causal geometries only."""
        plain, causal = (self._refused(self._sized(LENGTHS[0], causal=causal)) for causal in (False, True))
        return self.card.can.causal and plain is not None and causal is None

    @property
    def forms(self) -> tuple[bool, ...]:
        """For each form that the implementation supports, bidirectional and causal, whether it is causal."""
        return tuple(causal for causal in (False, True) if (self.causal if causal else not self.always_causal))

    def plain_and_causal(self) -> tuple[Geometry, ...]:
        """Return the bidirectional and the causal geometry with ``Subject.length`` tokens. An unsupported geometry is left out."""
        return tuple(self.geometry(causal=causal) for causal in self.forms)

    def across(self) -> list[Geometry]:
        """Return geometries whose numbers of queries and keys differ. The list is empty if the card does not declare ``cross``."""
        if not self.card.can.cross or self.always_causal:
            return []
        return [replace(self.geometry(), queries=queries) for queries in ACROSS]

    def _refused(self, geometry: Geometry, options: Any = None) -> str | None:
        """Return the reason why the implementation does not support a geometry, or None. ``eager`` raises its errors when it is
        built."""
        if self.implementation == "eager":
            return None
        return self.card.build.refuses(self.implementation, geometry, self.options if options is None else options)

    def variants(self) -> list[Any]:
        """Return the options of each variant on the card."""
        return [attention_options(self.card, DEFAULTS_AT, given) for given in self.card.variants.values()]

    @property
    def sizes(self) -> Sizes:
        """Sizes at which the checks of this mechanism run."""
        return drawn_sizes(self.card.name)

    def short_and_long(self) -> tuple[Geometry, ...]:
        """Return the geometries of ``plain_and_causal``, and the same geometries with several blocks of 64 tokens. GPU kernels
        on a CPU (``interpreted``) get 129 tokens instead."""
        plain, n = self.plain_and_causal(), max(BORDERS) if self.interpreted else self.sizes.blocks
        return plain + tuple(replace(geometry, queries=n, keys=n) for geometry in plain if geometry.keys < n)

    def sized(self, longest: int | None = None, shortest: int = 1) -> Iterator[Geometry]:
        """Yield a bidirectional and a causal geometry for every size that was drawn at random for this mechanism. Geometries that
        the options or the implementation do not support are left out.

        Variants (sets of options) use fewer sizes; see ``sizes.of_variant``. GPU kernels on a CPU (``interpreted``) use one head
        and at most 129 tokens, because they are slow.

        Args:
            longest, shortest: limits of the length in tokens.
        """
        for size in self._met():
            if not shortest <= size.length <= (longest or size.length):
                continue
            for causal in self.forms:
                geometry = self._sized(size.length, size.heads, size.head_dim, causal)
                if self._refused(geometry) is None and self.build_if_allowed(geometry) is not None:
                    yield geometry

    def _met(self) -> tuple[Size, ...]:
        """Return the drawn sizes at which this subject is checked."""
        drawn = () if self.brief else self.sizes.all
        if self.interpreted:
            return tuple(replace(size, heads=1) for size in drawn if size.length <= max(BORDERS))
        return drawn if self.variant == "default" or self.brief else self.sizes.of_variant(self.variant)

    def as_eager(self) -> Subject:
        """Return the same subject with the implementation ``eager``."""
        return replace(self, implementation="eager", traces={})

    def as_counted(self) -> Subject:
        """Return the same subject with the implementation whose cost the card states."""
        return replace(self, implementation=self.card.counted_implementation)

    def equal(self, got: Numbers, want: Numbers, what: str, tolerance: float | None = None, size: float | None = None) -> float:
        """Require that two tensors are equal up to rounding. Return their largest difference relative to the largest number in
        ``want``. Of two dictionaries, compare the tensors under each name of ``got``.

        Args:
            what: description of the tensors. The message begins with the name, if there is one, and with this description.
            tolerance: largest permitted relative difference. None means ``Subject.tolerance``; 0 means that all bits are equal.
            size: number to which differences are relative, in place of the largest number in ``want``.

        Raises:
            Violation: shapes or dtypes differ, the numbers differ by more than the tolerance, or a number is not finite.
        """
        if isinstance(got, Mapping) or isinstance(want, Mapping):
            assert isinstance(got, Mapping) and isinstance(want, Mapping)
            return max((self.equal(got[name], want[name], f"{name} {what}", tolerance, size) for name in got), default=0.0)
        told = f"got {tuple(got.shape)} {got.dtype} and {tuple(want.shape)} {want.dtype}"
        require((got.shape, got.dtype) == (want.shape, want.dtype), f"{what}: shapes and dtypes must be equal; {told}")
        limit = self.tolerance if tolerance is None else tolerance
        if got.numel() == 0 or (not limit and torch.equal(got, want)):
            return 0.0
        require_finite(got, what)
        if got.dtype is torch.bool:
            got, want = got.int(), want.int()
        gaps, size = (got - want).abs(), want.abs().max().item() if size is None else size
        gap = gaps.max().item()
        relative = gap / size if size > 0 else gap
        if relative <= limit:
            return relative
        beyond = int((~(gaps <= limit * size)).sum())
        allowed = f"rounding allows {limit:.0e}" if limit else "they must be equal bit by bit"
        found = f"{beyond} of {got.numel()} numbers differ, by up to {gap:.3g}, {relative:.2g} of the largest number"
        raise Violation(f"{what}: {found}; {allowed}")


@torch.no_grad()
def move_parameters(module: Attention, distance: float) -> Attention:
    """Change the trainable parameters of ``module`` in place by random amounts of alternating sign, and return the module. The
    amounts are about ``distance`` times the root mean square of a parameter. A root mean square below 0.5 is replaced by 0.5."""
    generator = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.numel():
            size = distance * max(parameter.square().mean().sqrt().item(), 0.5)
            ways = 0.5 + torch.rand(parameter.numel(), generator=generator)
            ways[::2] *= -1
            parameter.add_(size * ways.view(parameter.shape).to(parameter))
    return module


@dataclass(frozen=True, slots=True)
class AttentionCheck:
    """Check that every mechanism must pass. The field ``contract`` is the tested rule as a sentence, and ``prove`` is the function
    that tests the rule."""

    name: str
    contract: str
    scope: Scope
    prove: Callable[[Subject], str | None]


ATTENTION_CHECKS: dict[str, AttentionCheck] = {}
"""Registered checks by name."""

Prove = Callable[[Subject], str | None]


def attention_check(scope: Scope, *needs: str) -> Callable[[Prove], Prove]:
    """Return a decorator that registers a function as a check. The check has the name of the function, and the docstring is the
    rule that it tests.

    Args:
        scope: how often the check runs; see ``Scope``.
        needs: names of what a card must declare. For other mechanisms, the check does not apply; see ``Subject.lacks``.

    Raises:
        ValueError: the name is already registered, or the function has no docstring.
    """

    def enlist(function: Prove) -> Prove:
        @wraps(function)
        def prove(subject: Subject) -> str | None:
            for need in needs:
                if reason := subject.lacks(need):
                    raise NotApplicable(reason)
            return function(subject)

        name = prove.__name__
        contract = " ".join((prove.__doc__ or "").split())
        if not contract:
            raise ValueError(f"check {name!r} must have a docstring, which is the rule that it tests; write the rule as a sentence")
        if name in ATTENTION_CHECKS:
            raise ValueError(f"check {name!r} is registered twice; choose another name")
        ATTENTION_CHECKS[name] = AttentionCheck(name, contract, scope, prove)
        return prove

    return enlist


def home_of(implementation: str, device: torch.device | None = None) -> tuple[torch.device, None] | tuple[None, str]:
    """Return (device, None), with a device on which an implementation can run, or (None, reason) if there is none.

    Args:
        device: device to use. None means the CPU if the implementation can run on it, otherwise a GPU.
    """
    if device is not None:
        refused = unavailable(implementation, device)
        return (device, None) if refused is None else (None, refused)
    reason = unavailable(implementation, torch.device("cpu"))
    if reason is None:
        return torch.device("cpu"), None
    if torch.cuda.is_available():
        reason = unavailable(implementation, torch.device("cuda"))
        if reason is None:
            return torch.device("cuda"), None
    return None, reason
