"""Processes forked by a server that has imported what a run needs, which spares each of them its seconds.

A process has one such server. The workers of `attn_zoo.cost` are forked by it, too, so it is asked for what they need as well.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from attn_zoo.cost import workers

# In place: a worker asks for this list anew, which counts where it comes first.
workers.PRELOADED += ["attn_zoo.cli.run", "attn_zoo.tasks"]
workers.PRELOADED += ["torch._dynamo", "timm", "sklearn.datasets"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(workers.PRELOADED)


def run_command(words: Sequence[str], folder: Path) -> NoReturn:
    """Run ``attn-zoo WORDS`` in ``folder`` and end this forked process with its status."""
    from attn_zoo.cli import main

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which the server of workers blocks
    os.chdir(folder)
    sys.argv = ["attn-zoo", *words]
    sys.exit(main(words))
