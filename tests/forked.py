"""Processes forked by a server that has imported what a run needs, which spares each of them its seconds."""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["attn_zoo.cli.run", "attn_zoo.cli.callback", "attn_zoo.attention", "attn_zoo.tasks"]
    + ["torch._dynamo", "torchmetrics", "timm", "sklearn.datasets"]
)
