"""What the hardware allows: the bytes a decode step must move, over the bandwidth measured here. And what a
step takes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from labkit.engine import InferenceEngine
from labkit.kernels.eight_bit import ALIGNMENT, bytes_of_head
from labkit.model import ModelConfig, Network
from labkit.model.checkpoint import network_without_weights
from labkit.model.random_configs import RANDOM_CONFIGS


class Bandwidth(NamedTuple):
    """What the memory of a device gives, in bytes per second, as measured.

    copy: of a large copy, bytes read plus bytes written. read: of reading alone.
    """

    copy: float
    read: float

    def __str__(self) -> str:
        return f"{self.copy / 1e9:,.0f} GB/s (reading alone {self.read / 1e9:,.0f})"


@dataclass(frozen=True)
class DecodeLimit:
    """The least time of one decode step or many, on a device that moves `bandwidth` bytes per second."""

    num_tokens: int
    weight_bytes: int
    kv_bytes: int
    bandwidth: float

    @property
    def num_bytes(self) -> int:
        """Bytes that decoding must move: weights, keys and values."""
        return self.weight_bytes + self.kv_bytes

    @property
    def seconds(self) -> float:
        """The least seconds that decoding can take: its bytes over the bandwidth."""
        return self.num_bytes / self.bandwidth

    @property
    def tokens_per_second(self) -> float:
        """The most tokens per second that bandwidth allows."""
        return self.num_tokens / self.seconds


def decode_limit(
    network: Network, context_lens: Sequence[int], bandwidth: float, kept: torch.dtype | None = None
) -> DecodeLimit:
    """The limit of one decode step of requests that have `context_lens` tokens in the cache.

    Every weight is read once, every live key and value once, and the new ones are written once. kept: the
    dtype of the cache, by default the network's.
    """
    new_tokens = [2] * len(context_lens)  # of which one is decoded
    return workload_limit(network, context_lens, new_tokens, max(1, len(context_lens)), bandwidth, kept)


def bytes_of_token(config: ModelConfig, kept: torch.dtype) -> int:
    """Bytes of a token's keys and values in all layers, in a cache of this dtype; scales included."""
    num_heads = 2 * config.num_layers * config.num_kv_heads
    return num_heads * bytes_of_head(ALIGNMENT, config.head_dim, kept) // ALIGNMENT


def on_paper(name: str = "gpt2", dtype: torch.dtype = torch.float16) -> Network:
    """A model that has sizes and no numbers: enough to compute a limit, and it takes no memory."""
    return network_without_weights(RANDOM_CONFIGS[name]).to(dtype)


def step_limit(batch_size: int, context_len: int, bandwidth: float) -> DecodeLimit:
    """The limit of a decode step of GPT-2 in float16, whose requests hold `context_len` tokens each.

    bandwidth: in bytes per second.
    """
    return decode_limit(on_paper(), [context_len] * batch_size, bandwidth)


def workload_limit(
    network: Network,
    prompt_lens: Sequence[int],
    new_tokens: Sequence[int],
    max_batch_size: int,
    bandwidth: float,
    kept: torch.dtype | None = None,
) -> DecodeLimit:
    """The limit of decoding requests' new tokens; the first token of each comes from its prefill.

    The batch is taken to be full whenever it can be, so the weights are read as seldom as possible. kept: the
    dtype of the cache, by default the network's.
    """
    steps = [n - 1 for n in new_tokens]
    num_tokens, num_steps = sum(steps), least_steps(new_tokens, max_batch_size)
    # A step sees the prompt and what was decoded before, and writes one more.
    kv_tokens = sum(n * p + n * (n - 1) // 2 + n for n, p in zip(steps, prompt_lens, strict=True))
    return DecodeLimit(
        num_tokens=num_tokens,
        weight_bytes=num_steps * decode_weight_bytes(network),
        kv_bytes=kv_tokens * bytes_of_token(network.config, kept or network.dtype),
        bandwidth=bandwidth,
    )


def least_steps(new_tokens: Sequence[int], max_batch_size: int) -> int:
    """The fewest decode steps that make requests' new tokens, but for the first of each."""
    steps = [n - 1 for n in new_tokens]
    return max([*steps, -(-sum(steps) // max_batch_size)])


def decode_weight_bytes(network: Network) -> int:
    """Bytes of weights that a decode step reads: all but those of tables of which it reads a few rows.

    A tied table counts once: it is read whole, as the head. Weights that are no parameters, such as int8
    ones with their scales, are buffers, and count with their own size.
    """
    skipped = set(network.lookup_tables())
    return sum(w.nbytes for w in (*network.parameters(), *network.buffers()) if w not in skipped)


def forward_flops(config: ModelConfig, num_tokens: int, context_len: int) -> float:
    """FLOP of one sequence's forward pass: `num_tokens` new tokens, the last of which sees `context_len`.

    A multiply and an add for each weight of the matrices and each new token, and for each key and value seen.
    """
    head = config.vocab_size * config.hidden_size  # for the last token only
    seen = num_tokens * (context_len - (num_tokens - 1) / 2)
    return 2.0 * (config.num_matrix_weights * num_tokens + head + config.kv_values_per_token * seen)


def copy_bandwidth(device: torch.device | str) -> float:
    """Bytes per second (read plus written) of a large device-to-device copy, the fastest of nine."""
    source = large_tensor(torch.device(device))
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest_seconds(lambda: target.copy_(source), source.device)


def read_bandwidth(device: torch.device | str) -> float:
    """Bytes per second of a sum over a large tensor, which writes next to nothing: the fastest of nine. On a
    CPU with one thread the additions can take longer than the reading."""
    source = large_tensor(torch.device(device))
    return source.nbytes / fastest_seconds(source.sum, source.device)


def large_tensor(device: torch.device) -> torch.Tensor:
    """Ones that miss the caches: 128 MB of them, 1 GB on a GPU."""
    return torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)


def measure_bandwidth(device: torch.device | str) -> Bandwidth:
    """Both streams, one after the other."""
    return Bandwidth(copy_bandwidth(device), read_bandwidth(device))


def matmul_rate(device: torch.device | str, dtype: torch.dtype) -> float:
    """FLOP per second of a square matrix product on random data, the fastest of nine."""
    device = torch.device(device)
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / fastest_seconds(lambda: a @ b, device)


def fastest_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of nine runs, synchronized, after two to warm up.

    The fastest, because noise only ever hides a ceiling.
    """
    return min([synchronized_seconds(run, device) for _ in range(11)][2:])


def synchronized_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds from a device that is done with all before to one that is done with the run, too."""
    synchronize(device)
    started = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - started


def time_decode_steps(engine: InferenceEngine, num_steps: int) -> list[float]:
    """Seconds of each of `num_steps` decode steps of an engine in `watch.steady_decode`, synchronized."""
    return [synchronized_seconds(engine.step, engine.device) for _ in range(num_steps)]


def launcher(calls: Sequence[Callable[[], object]], device: torch.device) -> Callable[[], object]:
    """A function that makes all calls; on a GPU it replays them from a CUDA graph."""

    def run_all() -> None:
        for call in calls:
            call()

    run_all()
    if device.type != "cuda":
        return run_all
    synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_all()
    return graph.replay


def timed(launch: Callable[[], object], device: torch.device) -> float:
    """Seconds that a launch takes; on a GPU between two events on its stream."""
    if device.type != "cuda":
        return synchronized_seconds(launch, device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all that it was asked for; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
