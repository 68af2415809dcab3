"""Processes forked by a server that has imported what a run needs, which spares each of them its seconds.

A process has one such server: where the workers of `attn_zoo.cost` came first it is theirs, and the rest is imported anew.
"""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["attn_zoo.cli.run", "attn_zoo.cli.callback", "attn_zoo.attention", "attn_zoo.tasks"]
    + ["torch._dynamo", "torchmetrics", "timm", "sklearn.datasets"]
)
