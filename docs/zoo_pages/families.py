"""Pages of the families of mechanisms: what a family has in common, and a card with a drawing for each mechanism."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from attn_zoo.contract import AttentionCard
from attn_zoo.registry import attentions, card
from zoo_pages.templating import render
from zoo_pages.texts import prose


@dataclass(frozen=True, slots=True)
class Family:
    """Folder of mechanisms."""

    page: str
    """Name of the page, without suffix."""
    title: str
    idea: str
    cards: tuple[AttentionCard, ...]


def families() -> list[Family]:
    """Return the families of the registered mechanisms, by the packages that hold them, in the order of their titles."""
    members: dict[str, list[AttentionCard]] = {}
    for name in attentions():
        members.setdefault(card(name).build.__module__.rpartition(".")[0], []).append(card(name))
    return sorted((_family(package, cards) for package, cards in members.items()), key=lambda family: family.title)


def _family(package: str, cards: list[AttentionCard]) -> Family:
    """Read a family from the docstring of its package: its title ends at the colon."""
    words = " ".join((sys.modules[package].__doc__ or package).split())
    title, _, idea = words.partition(": ")
    return Family(f"family-{package.rpartition('.')[2]}", title, prose(idea[:1].upper() + idea[1:]), tuple(cards))


def family_page(family: Family) -> str:
    """Return the Markdown of a family's page."""
    return render("family.md.j2", family=family)
