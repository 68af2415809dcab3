"""Tests share two cores between two workers: one thread each, since threads that wait for each other cost more than they give.

Without a GPU, Triton's kernels run in its interpreter, which is decided when they are first imported.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import shutil
import signal
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for the processes that tests start
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads, which the interpreter uses, and torch's fight over the cores

if "ATTN_ZOO_CACHE" not in os.environ:  # what a user's cache holds may come of another version; workers share this one
    os.environ["ATTN_ZOO_CACHE"] = tempfile.mkdtemp(prefix="attn-zoo-tests-")
    atexit.register(shutil.rmtree, os.environ["ATTN_ZOO_CACHE"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what it puts in the background, and what that starts
    signal.signal(signal.SIGINT, signal.default_int_handler)

import torch

torch.set_num_threads(1)
gc.set_threshold(20_000)  # among all that tests have imported, looking for garbage at every 700 objects takes a tenth of their time
if importlib.util.find_spec("triton") is None:
    collect_ignore = ["kernels"]
elif not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as timm does
    import interpreter

    interpreter.repair()
