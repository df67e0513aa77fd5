"""Captures of CUDA graphs, where there is no GPU."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch


class FakeGraph:
    def __init__(self):
        self.replays = 0

    def replay(self):
        self.replays += 1


class FakeCuda:
    """What graphs ask of torch.cuda, counted: while `graph` is open, a graph is being captured."""

    def __init__(self):
        self.is_capturing = False

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"  # another thread may go on with another engine
        self.is_capturing = True
        yield
        self.is_capturing = False

    def stream(self, stream):
        return nullcontext()

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream, CUDAGraph = Stream, FakeGraph
    graph_pool_handle = empty_cache = lambda self: None


def torch_with(cuda, clear_workspaces=lambda: None):
    """As much of torch as captures use."""
    libraries = SimpleNamespace(_cuda_clearCublasWorkspaces=clear_workspaces)
    return SimpleNamespace(cuda=cuda, _C=libraries, inference_mode=torch.inference_mode)
