"""Processes forked by a server that has imported the modules of a run, which saves each process seconds of imports.

A process has one fork server. It also forks the workers of `attn_zoo.bench`, so it preloads their modules as well.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from attn_zoo.bench import workers

FEW = list(workers.PRELOADED)
# Changed in place, because a worker sets this list again, which counts if it starts the server.
workers.PRELOADED += ["attn_zoo.cli.run", "attn_zoo.tasks"]
workers.PRELOADED += ["torch._dynamo", "timm", "sklearn.datasets"]
workers.PRELOADED += ["transformers.models.bert.modeling_bert", "matplotlib.backends.backend_svg"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(workers.PRELOADED)


def run_command(words: Sequence[str], folder: Path) -> NoReturn:
    """Run ``attn-zoo WORDS`` in ``folder`` and end this forked process with its status."""
    from attn_zoo.cli import main

    gc.freeze()  # else a collection copies the memory that this process shares with the server
    gc.set_threshold(20_000)
    workers.PRELOADED[:] = FEW  # for the fork server that a measurement starts
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the fork server blocks it
    os.chdir(folder)
    sys.argv = ["attn-zoo", *words]
    sys.exit(main(words))
