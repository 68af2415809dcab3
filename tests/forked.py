"""Processes forked by a server that has imported what a run needs, which spares each of them its seconds.

A process has one such server. The workers of `attn_zoo.cost` are forked by it, too, so it is asked for what they need as well.
"""

from __future__ import annotations

import multiprocessing

from attn_zoo.cost import workers

# In place: a worker asks for this list anew, which counts where it comes first.
workers.PRELOADED += ["attn_zoo.cli.run", "attn_zoo.tasks"]
workers.PRELOADED += ["torch._dynamo", "timm", "sklearn.datasets"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(workers.PRELOADED)
