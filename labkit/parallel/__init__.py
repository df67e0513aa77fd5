"""A model whose layers are cut among several GPUs, a process each: tensor parallelism, as Megatron-LM has it.

torchrun --nproc-per-node 2 -m labkit.parallel --model random:gpt2-xl
"""

from labkit.parallel.engine import ParallelEngine
from labkit.parallel.ranks import TorchRanks
from labkit.parallel.shards import cut_model

__all__ = ["ParallelEngine", "TorchRanks", "cut_model"]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
