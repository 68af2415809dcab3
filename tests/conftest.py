"""Tests share two cores between two workers: one thread each, since threads that wait for each other cost more than they give."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for the processes that tests start

import torch

torch.set_num_threads(1)
