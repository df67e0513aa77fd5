"""How many threads PyTorch computes with on a CPU."""

import os

import torch

VARIABLE = "OMP_NUM_THREADS"


def use_one_thread() -> None:
    """Have PyTorch compute on one thread, or on OMP_NUM_THREADS threads if that is set.

    The models of a CPU are small: more threads wait for each other longer than they compute, and where one
    of them finds no free core, all do, ten times as long and longer.
    """
    if not os.environ.get(VARIABLE):  # else PyTorch has read it
        torch.set_num_threads(1)
