"""What a decode step costs the host, with the model taken out; and the command that times it on all rungs."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from tqdm import tqdm

from labkit.bench.comparison import in_turn
from labkit.bench.flags import LENGTH_LIST, RecordFlags, batch_sizes_flag, flag, rounds_flag, rungs_flag
from labkit.bench.limit import synchronize
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.engine.parts import NO_PARTS, Part
from labkit.engine.step.graphed import GraphedStep
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.errors import OptionError
from labkit.ladder import LADDER
from labkit.model import Attend, LanguageModel, ModelConfig, Network, PastKV, Prefilled
from labkit.model.decoder_weights import split_heads
from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions
from labkit.results.host_time import HostTime, RungHostTime
from labkit.watch import LaunchRecorder, replaced, steady_decode, steady_prompts

# GPT-2's 12 layers and 12 heads, but heads of one number: on a CPU the host moves the numbers, too, and
# that is not what is asked. On a GPU the host's work is the same whatever their size.
SHAPE = RANDOM_CONFIGS["gpt2"].with_head_dim(1)
LENGTHS = (8,)  # tokens of the prompts, in turn; with so few, all steps are within one block
BLOCK_SIZE = 64
WARMUP_STEPS = 3
BATCH_SIZES = (1, 8, 32, 64, 128, 256)


class PreparedForward(Network):
    """A network without work: it hands back keys, values and logits that are there already."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.zeros(1))  # which tells the network's device and dtype
        self._qkv: dict[int, Tensor] = {}  # by batch size

    def prefill(self, input_ids: Tensor, lengths: Tensor, past: PastKV | None = None) -> Prefilled:
        """Zero logits [B, 2], and zero keys and values [L, B, H, T, D] for prompts [B, T]."""
        B, T = input_ids.shape
        c, weight = self.config, self.weight
        kv = weight.new_zeros(c.num_layers, B, c.num_kv_heads, T, c.head_dim)
        return Prefilled(weight.new_zeros(B, 2), kv, kv)

    def decode_one_token(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Zero logits [B, 2], after `attend` in every layer with the same query, key and value."""
        c, B = self.config, len(input_ids)
        if B not in self._qkv:
            self._qkv[B] = self.weight.new_zeros(B, 1, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim)
        # Views of one tensor, as the model makes them.
        heads = split_heads(self._qkv[B], c.num_heads, c.num_kv_heads)
        query, key, value = (each.transpose(1, 2) for each in heads)  # [B, H or G, 1, D]
        for layer_idx in range(c.num_layers):
            attend(layer_idx, query, key, value)
        return self._qkv[B].new_zeros(B, 2)


def no_attention(query: Tensor, *_: object) -> Tensor:
    """Stands for attention, and returns the query."""
    return query


def host_engine(
    options: EngineOptions,
    batch_size: int,
    device: torch.device | str | None = None,
    parts: Mapping[str, Part] = NO_PARTS,
) -> InferenceEngine:
    """An engine with GPT-2's layers for one batch size, without the model's work and attention's.

    parts: as `InferenceEngine` takes them.

    Whether a layer's kernels are fused, or wait, no longer matters. With CUDA graphs, what is left is
    captured. A toy graph of the caller's `launch` holds nothing on a CPU: what a replay goes through is not
    the host's work.
    """
    own = dict(parts)
    launch = own.pop("launch", None) if options.launch == "graph" else None
    model = LanguageModel(
        "GPT-2's layers, no model", PreparedForward(SHAPE), WordTokenizer(SHAPE.vocab_size, None)
    )
    # Without fused kernels, and without what needs them.
    separate = replace(
        options,
        launch="eager",
        layer_kernels="separate",
        latency="exposed",
        batching="padded",
        kv_cache_dtype="auto",
        speculation="none",
    )
    engine = InferenceEngine(
        model,
        separate,
        device=device,
        dtype=torch.float16,
        parts=own,
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
            step.device_step = (launch or GraphedStep)(step.device_step)
        elif launch is not None:
            with replaced(LaunchRecorder, "remember", lambda _: lambda *about: None):
                step.device_step = launch(step.device_step)
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
    steps = []
    with steady_decode(engine, prompts, WARMUP_STEPS, room), timed_parts(engine) as parts:
        for _ in range(num_steps):
            synchronize(engine.device)
            parts.clear()
            started = time.perf_counter()
            engine.step()
            steps.append((time.perf_counter() - started, parts["tables"], parts["append"]))
    return HostTime(batch_size, engine.model.config.num_layers, *zip(*steps, strict=True))


@contextmanager
def timed_parts(engine: InferenceEngine) -> Iterator[dict[str, float]]:
    """Inside the block, add up the seconds that parts of the decode step take.

    "tables" makes block tables or updates the device's slots; "append" makes room for new keys and values or
    has them written.
    """
    seconds: dict[str, float] = defaultdict(float)
    step = engine.decode_step
    if isinstance(step, ResidentDecodeStep):
        parts = {"tables": (step.slots, "update"), "append": (engine.kv_manager, "reserve_token_batch")}
    else:
        parts = {"tables": (step.block_tables, "build"), "append": (step.kv_append, "append")}

    def timing(part: str, inner: Callable) -> Callable:
        def timed(*args: object) -> object:
            started = time.perf_counter()
            result = inner(*args)
            seconds[part] += time.perf_counter() - started
            return result

        return timed

    with ExitStack() as stack:
        for part, (owner, name) in parts.items():
            stack.enter_context(replaced(owner, name, partial(timing, part)))
        yield seconds


@dataclass
class TimeHost(RecordFlags):
    """Time what a decode step costs the host, the model taken out, for each rung and batch size."""

    kind = "host_time"

    rungs: tuple[str, ...] = rungs_flag()
    rounds: int = rounds_flag(3)
    batch_sizes: tuple[int, ...] = batch_sizes_flag(BATCH_SIZES)
    prompt_lengths: tuple[int, ...] = flag(
        LENGTHS,
        "prompts in turn have this many tokens; one number makes all positions equal",
        LENGTH_LIST,
    )
    steps: int = flag(40, "this many steps are timed in each of the runs")

    def run(self) -> None:
        device = pick_device(self.device)
        samples: list[RungHostTime] = []
        with self.until_interrupted(samples):
            for batch_size in tqdm(self.batch_sizes, desc="batch sizes"):
                measures = [partial(self.one_run, rung, batch_size, device) for rung in self.rungs]
                samples += chain(*in_turn(measures, self.rounds))
        samples.sort(key=lambda sample: self.rungs.index(sample.rung))
        record = self.record(samples, model="none, GPT-2's layers")
        print("GPT-2's layers, no model: microseconds of a step, the median")
        print(record.table().to_string())
        self.write(record)

    def one_run(self, rung: str, batch_size: int, device: torch.device) -> RungHostTime:
        engine = host_engine(LADDER[rung].options, batch_size, device)
        return RungHostTime(**vars(time_host_steps(engine, self.steps, self.prompt_lengths)), rung=rung)
