"""What a decode step costs the host, with the model taken out."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from labkit.bench.limit import synchronize
from labkit.bench.steady import steady_decode, steady_prompts
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.step.graphed import GraphedStep
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.errors import OptionError
from labkit.model import Attend, LanguageModel, ModelConfig, Network, PastKV, Prefilled
from labkit.model.checkpoint import RANDOM_CONFIGS
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions

# GPT-2's 12 layers and 12 heads, but heads of one number: on a CPU the host moves the numbers, too, and
# that is not what is asked. On a GPU the host's work is the same whatever their size.
SHAPE = RANDOM_CONFIGS["gpt2"].with_head_dim(1)
LENGTHS = (8,)  # tokens of the prompts, in turn; with so few, all steps are within one block
BLOCK_SIZE = 64
WARMUP_STEPS = 3
BATCH_SIZES = (1, 8, 32, 64, 128, 256)


class PreparedForward(Network):
    """In the model's place: hands back keys, values and logits that are there already."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._num_layers = config.num_layers
        self.weight = nn.Parameter(torch.zeros(1))  # which tells the network's device and dtype
        self._qkv: dict[int, Tensor] = {}  # by batch size

    def prefill(self, input_ids: Tensor, lengths: Tensor, past: PastKV | None = None) -> Prefilled:
        B, T = input_ids.shape
        c, weight = self.config, self.weight
        kv = weight.new_zeros(c.num_layers, B, c.num_heads, T, c.head_dim)
        return Prefilled(weight.new_zeros(B, 2), kv, kv)

    def decode_one_token(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        c, B = self.config, len(input_ids)
        if B not in self._qkv:
            self._qkv[B] = self.weight.new_zeros(B, 1, 3, c.num_heads, c.head_dim)
        # Views of one tensor, as the model makes them.
        query, key, value = self._qkv[B].permute(2, 0, 3, 1, 4)  # each [B, H, 1, D]
        for layer_idx in range(self._num_layers):
            attend(layer_idx, query, key, value)
        return self._qkv[B].new_zeros(B, 2)


def no_attention(query: Tensor, *_: object) -> Tensor:
    return query


@dataclass(frozen=True)
class HostTime:
    """Seconds of steps of `batch_size` requests, one number a step. Nothing waits for the GPU."""

    batch_size: int
    num_layers: int
    step_seconds: tuple[float, ...]
    tables_seconds: tuple[float, ...]  # of it: making the block tables, or telling the device's slots
    append_seconds: tuple[float, ...]  # of it: storing keys and values, or making room for them

    @property
    def step_us(self) -> float:
        """Microseconds of a step, the median."""
        return 1e6 * float(np.median(self.step_seconds))

    @property
    def layer_us(self) -> float:
        """Microseconds of tables and append a layer, the median."""
        a_layer = np.add(self.tables_seconds, self.append_seconds) / self.num_layers
        return 1e6 * float(np.median(a_layer))

    def with_steps_of(self, other: "HostTime") -> "HostTime":
        """The steps of two runs of the same batch size together."""
        return HostTime(
            self.batch_size,
            self.num_layers,
            self.step_seconds + other.step_seconds,
            self.tables_seconds + other.tables_seconds,
            self.append_seconds + other.append_seconds,
        )

    def to_dict(self) -> dict:
        """For a record; `from_dict` is the way back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict) -> "HostTime":
        lanes = {lane: tuple(raw[lane]) for lane in ("step_seconds", "tables_seconds", "append_seconds")}
        return cls(raw["batch_size"], raw["num_layers"], **lanes)


def slope_us(times: Sequence[HostTime]) -> float | None:
    """Microseconds that one more request adds to a step: least squares over the larger half of the batch
    sizes, where the fixed cost of a step no longer hides it. None with fewer than two sizes there.
    """
    ordered = sorted(times, key=lambda time: time.batch_size)
    larger = ordered[len(ordered) // 2 :] if len(ordered) > 2 else ordered
    if len(larger) < 2:
        return None
    return float(np.polyfit([t.batch_size for t in larger], [t.step_us for t in larger], 1)[0])


def host_engine(
    options: EngineOptions, batch_size: int, device: torch.device | str | None = None
) -> InferenceEngine:
    """An engine of GPT-2's layers, for one batch size, with the model and its attention taken out.

    What a layer's kernels are made of is then no question; a graph is captured of what is left.
    """
    model = LanguageModel(
        "GPT-2's layers, no model", PreparedForward(SHAPE), WordTokenizer(SHAPE.vocab_size, None)
    )
    engine = InferenceEngine(
        model,
        replace(options, launch="eager", layer_kernels="separate"),
        device=device,
        dtype=torch.float16,
        cache=CacheConfig(BLOCK_SIZE, max_blocks_per_layer=batch_size, prefix_cache=False),
        scheduler=SchedulerConfig(
            max_batch_size=batch_size,
            prefill_max_batch_size=batch_size,
            prefill_max_tokens=batch_size * BLOCK_SIZE,
        ),
    )
    step = engine.decode_step
    if isinstance(step, ResidentDecodeStep):
        step.device_step.attention.attention = no_attention
        if options.launch == "graph" and engine.device.type == "cuda":
            step.device_step = GraphedStep(step.device_step)
    else:
        step.attention = no_attention
    return engine


def time_host_steps(
    engine: InferenceEngine, num_steps: int = 40, lengths: Sequence[int] = LENGTHS
) -> HostTime:
    """Time `num_steps` steps of a full batch on an engine from `host_engine`.

    lengths: of the prompts, in turn; a single one makes all positions equal.
    Raises OptionError if the longest prompt and so many steps do not fit into a block.
    """
    room = engine.kv_manager.block_size - max(lengths)
    if WARMUP_STEPS + num_steps > room:
        raise OptionError(f"{num_steps} steps do not fit; a block has room for {room - WARMUP_STEPS}")
    batch_size = engine.scheduler.config.max_batch_size
    prompts = steady_prompts(batch_size, lengths)
    step_seconds, tables_seconds, append_seconds = [], [], []
    with steady_decode(engine, prompts, WARMUP_STEPS, room), timed_parts(engine) as parts:
        for _ in range(num_steps):
            synchronize(engine.device)
            parts.clear()
            started = time.perf_counter()
            engine.step()
            step_seconds.append(time.perf_counter() - started)
            tables_seconds.append(parts["tables"])
            append_seconds.append(parts["append"])
    return HostTime(
        batch_size,
        engine.model.config.num_layers,
        tuple(step_seconds),
        tuple(tables_seconds),
        tuple(append_seconds),
    )


@contextmanager
def timed_parts(engine: InferenceEngine) -> Iterator[dict[str, float]]:
    """Seconds that the parts of the decode step take, by part; 0.0 for one that the step had no need of."""
    seconds: dict[str, float] = defaultdict(float)

    def timed(name: str, call: Callable) -> Callable:
        def wrapper(*args: object) -> object:
            started = time.perf_counter()
            result = call(*args)
            seconds[name] += time.perf_counter() - started
            return result

        return wrapper

    parts = parts_of(engine)
    for part, (owner, name) in parts.items():
        setattr(owner, name, timed(part, getattr(owner, name)))
    try:
        yield seconds
    finally:
        for owner, name in parts.values():
            delattr(owner, name)  # the class's own again


def parts_of(engine: InferenceEngine) -> dict[str, tuple[object, str]]:
    """What makes the block tables, and what makes room for new keys and values and has them written."""
    step = engine.decode_step
    if isinstance(step, ResidentDecodeStep):
        return {"tables": (step.slots, "update"), "append": (engine.kv_manager, "reserve_token_batch")}
    return {"tables": (step.block_tables, "build"), "append": (step.kv_append, "append")}
