"""Leaderboard: tables, pages and figures computed from records alone. This package does not need PyTorch."""

from attn_zoo.leaderboard.compare import ORDERS, ordered
from attn_zoo.leaderboard.rank import tables
from attn_zoo.leaderboard.statistics import Estimate, estimate
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.leaderboard.text import FORMATS, leaderboard, render

__all__ = ["FORMATS", "ORDERS", "Estimate", "Row", "Table", "estimate", "leaderboard", "ordered", "render", "tables"]
