"""The devices, and a GPU that is busy."""

import torch

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def busy_gpu() -> None:
    """For some tens of milliseconds: what is asked for next cannot be done yet when the call returns."""
    torch.cuda._sleep(50_000_000)
