"""Stacks of layers whose options differ from layer to layer, or which share maps. Maps compress keys and values along the
length.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from attn_zoo.contract.attention import Attention, OptionsT
from attn_zoo.contract.claims import Geometry
from attn_zoo.contract.errors import UnsupportedError
from attn_zoo.grouping import grouped


class StackedAttention(Attention[OptionsT]):
    """Mechanism whose options can differ from layer to layer, or whose layers can all use the maps of the first layer. Maps are
    modules that compress keys and values along the length, such as E and F of Linformer.

    ``join`` tells a mechanism the number of its layer. Subclasses implement ``make_maps``. They also implement ``by_layer`` and
    ``shares_maps`` if their options allow it.
    """

    own_maps: nn.ModuleList
    _owner: tuple[StackedAttention, ...] = ()  # a tuple, so that the owner's weights are not stored here as well

    @staticmethod
    def make_maps(geometry: Geometry, options: Any, implementation: str) -> nn.ModuleList:
        """Return new maps for one layer, which no other layer uses. Maps compress keys and values along the length. Each
        mechanism overrides this method.
        """
        raise NotImplementedError("a subclass of StackedAttention must have a method make_maps")

    def by_layer(self) -> Sequence[Any]:
        """Return the options of each layer, from the first to the last. If all layers have the same options, return a
        list of one.
        """
        return [self.options]

    @property
    def shares_maps(self) -> bool:
        """True if all layers use the maps of the first layer, which compress keys and values along the length."""
        return False

    @property
    def owner(self) -> StackedAttention:
        """Layer whose maps this layer uses to compress keys and values: the first layer of the stack if maps are shared, else
        this layer itself.
        """
        return self._owner[0] if self._owner else self

    def check_joined(self) -> None:
        """Raise an error if this layer cannot be called yet.

        Raises:
            UnsupportedError: options differ from layer to layer, but ``join`` has not told this layer its number. It is also
                raised if layers share maps (which compress keys and values along the length), and another layer resized them,
                but this layer was not resized.
        """
        if len(self.by_layer()) > 1:
            raise UnsupportedError(
                f"{self.card.name}: {self.options} has one value per layer, but this layer does not know its own number. Call "
                "attn_zoo.join_layers(model) after the model is built"
            )
        if (held := self.owner.geometry.keys) != self.geometry.keys:
            raise UnsupportedError(
                f"{self.card.name}: layers that share E and F must have the same length, but this layer has "
                f"{self.geometry.keys} keys and another one {held}. Call resize_length on every layer"
            )

    def check_stack(self, stack: Sequence[Attention]) -> None:
        """Raise an error if this layer cannot be joined with the other layers of ``stack``.

        Raises:
            ValueError: the options have values for another number of layers.
            UnsupportedError: layers of the stack are built differently, or share maps with another stack already.
        """
        name, named = self.card.name, len(self.by_layer())
        if named == 1 and not self.shares_maps:
            return
        for at, other in enumerate(stack):
            if other.options != self.options or (self.shares_maps and other.geometry != self.geometry):
                raise UnsupportedError(
                    f"{name}: layers that are joined must have the same options and geometry; got {other.options}, "
                    f"{other.geometry} in layer {at}, and {self.options}, {self.geometry} in another layer. Call join_layers "
                    "once for each stack"
                )
        if named not in (1, len(stack)):
            raise ValueError(
                f"{name}: {self.options} has values for {named} layers, but the model has {len(stack)} layers. Give one value "
                "per layer, or one for all"
            )
        if self._owner and (self is stack[0] or self.owner is not stack[0]):
            raise UnsupportedError(
                f"{name}: a layer must belong to one stack, but this one was already joined with other layers. Call "
                "join_layers once for each stack, or build the model anew"
            )

    def join(self, layer: int, stack: Sequence[Attention]) -> None:
        """Set the options of this layer, which is number ``layer`` of ``stack``. If layers share maps (which compress keys and
        values along the length), use the maps of the first layer.
        """
        if len(options := self.by_layer()) > 1:
            self.options, like = options[layer], next(iter(self.own_maps.state_dict().values()), torch.empty(0))
            self.own_maps = self.make_maps(self.geometry, self.options, self.implementation).to(like.device, like.dtype)
        if self.shares_maps and layer > 0:
            assert isinstance(stack[0], StackedAttention)
            self._owner, self.own_maps = (stack[0],), nn.ModuleList()

    def __deepcopy__(self, memo: dict[int, Any]) -> StackedAttention:
        """Copy a layer. Layers that are copied together share their maps again; a layer that is copied alone gets maps of its
        own.
        """
        new = memo[id(self)] = self.__class__.__new__(self.__class__)
        alone = bool(self._owner) and id(self.owner) not in memo
        new.__dict__.update(copy.deepcopy({k: v for k, v in self.__dict__.items() if not (alone and k == "_owner")}, memo))
        if alone:
            new.own_maps = copy.deepcopy(self.owner.own_maps, memo)
        return new


def join_stacks(mechanisms: Sequence[Attention]) -> None:
    """Join the mechanisms of a model into stacks. All mechanisms with the same name form one stack, in the order of the layers.

    Raises:
        ValueError, UnsupportedError: see ``Attention.check_stack``.
    """
    stacks = grouped((mechanism.card.name, mechanism) for mechanism in mechanisms).values()
    for stack in stacks:
        for mechanism in stack:
            mechanism.check_stack(stack)
    for stack in stacks:
        for layer, mechanism in enumerate(stack):
            mechanism.join(layer, stack)


def read_by_layer(name: str, given: object) -> list[list[int]]:
    """Return the integers in a text such as 8+4/4+2, as one list per layer with one number per head. ``/`` separates layers, and
    ``+`` separates heads.

    Raises:
        ValueError: the text has another form; the message names the option ``name``.
    """
    layers = [layer.split("+") for layer in str(given).split("/")]
    if not all(number.isascii() and number.strip().isdigit() and int(number) > 0 for layer in layers for number in layer):
        raise ValueError(
            f"{name} must consist of integers >= 1, such as 8 or 8+4/4+2, with '/' between layers and '+' between heads; "
            f"got {given!r}"
        )
    return [list(map(int, layer)) for layer in layers]
