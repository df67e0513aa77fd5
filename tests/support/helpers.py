"""Small models, engines and caches for the tests of memory, scheduling and the engine."""

import copy
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit import LADDER, CacheConfig, InferenceEngine, LanguageModel, SamplingParams, SchedulerConfig
from labkit.engine import Completion, InferenceSession, StepOutput
from labkit.engine.config import EIGHT_AT_A_TIME
from labkit.kernels.eight_bit import is_eight_bit, scales_of
from labkit.kvcache import KVBlockManager, Prefixes
from labkit.ladder import (
    BLOCK_PREFIX_CACHE,
    DEVICE_RESIDENT_STATE,
    OVERLAP,
    PAGED_ENGINE,
    SAMPLING_WITHOUT_SORTS,
)
from labkit.model import GPT2Config
from labkit.model.checkpoint import random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.paths import ROOT
from labkit.results import Record, load
from labkit.results.files import kind_of

CONFIG = GPT2Config(vocab_size=256, n_positions=64, n_embd=16, n_layer=2, n_head=2, tie_word_embeddings=False)
GREEDY = SamplingParams(max_new_tokens=8)
SEEDED = SamplingParams(max_new_tokens=8, temperature=0.8, top_k=40, top_p=0.95, min_p=0.5, seed=7)
PARAMS = {"greedy": GREEDY, "seeded": SEEDED}

EXACT = [number for number, rung in LADDER.items() if rung.is_exact]  # the rungs that make the same tokens
# Each of them, the append that no rung has, because the one that does is better, and
# halfway: from 06 to 07, from 06 to 12, and from 12 to 14; and 14 with drafts.
ENGINES = (
    {number: LADDER[number].options for number in EXACT}
    | {
        f"{number}, fast path": replace(LADDER[number].options, kv_append="batched_fast_path")
        for number in ("02", "05")
    }
    | {
        "shared tables": replace(DEVICE_RESIDENT_STATE, layer_tables="shared"),
        "06, searched": replace(DEVICE_RESIDENT_STATE, sampler="searched"),
        "12, blocks": replace(SAMPLING_WITHOUT_SORTS, prefixes="blocks"),
        "14, ngrams": replace(BLOCK_PREFIX_CACHE, speculation="ngrams"),
    }
)


# One of each way through the code; all others run at night.
BY_DAY = ("00", "02", "05", "07", "10", "12", "14", "14, ngrams")
every_engine = pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
engines_by_day = pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=() if name in BY_DAY else pytest.mark.nightly)
        for name, options in ENGINES.items()
    ],
)

# Tokens that are read one step behind: rung 10, and with rung 06's parts, which have a table for each layer.
AHEAD = {"rung 10": OVERLAP, "rung 06's parts": replace(DEVICE_RESIDENT_STATE, readback="one_behind")}
ahead = pytest.mark.parametrize("options", AHEAD.values(), ids=AHEAD)


def tracked(folder: str, pattern: str) -> list[Path]:
    """Files of the project that git has, not those that a reader made; where git is not, all there are."""
    with suppress(OSError):
        git = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True)
        if names := git.stdout.splitlines():
            return sorted(path for name in names if (path := ROOT / name).match(pattern) and path.exists())
    return sorted((ROOT / folder).glob(pattern))


# The records of measurements; that of the GPU tests has no samples.
MEASURED = [path for path in tracked("data/results", "*.json") if path.stem != "gpu_tests"]


def measured(kind: str) -> list[Record]:
    """All records of a kind that the project has."""
    records = [load(path.stem) for path in MEASURED if kind_of(path) == kind]
    assert records
    return records


class ByteTokenizer(WordTokenizer):
    """A token is a byte, so a random model writes many broken characters."""

    vocab_size = 256

    def __init__(self, eos_token_id: int | None = None) -> None:
        self.eos_token_id = eos_token_id

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(i for i in token_ids if i != self.eos_token_id).decode("utf-8", errors="replace")


@cache
def small_model(eos_token_id: int | None = None, config: GPT2Config = CONFIG) -> LanguageModel:
    """Random weights, large enough for every token to depend on all before it."""
    gpt2 = random_network(config, seed=0)
    for parameter in gpt2.parameters():
        parameter.mul_(20 if parameter.dim() == 2 else 1)
    return LanguageModel("random:small", gpt2, ByteTokenizer(eos_token_id))


def make_engine(
    model: LanguageModel | None = None,
    options=None,
    parts=None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **settings,
) -> InferenceEngine:
    """An engine, of rung 00 by default; settings are fields of both configs, mixed."""
    cache_settings = {k: settings.pop(k) for k in CacheConfig.__dataclass_fields__ if k in settings}
    return InferenceEngine(
        model or small_model(),
        options or PAGED_ENGINE,
        device=device,
        dtype=dtype,
        parts=parts or {},
        cache=CacheConfig(**{"block_size": 4, **cache_settings}),
        scheduler=SchedulerConfig(**{**asdict(EIGHT_AT_A_TIME), **settings}),
    )


@cache
def tokens_alone(prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    """What a request generates by itself, with nothing cached: the oracle of every batch."""
    (completion,) = make_engine(prefix_cache=False).generate([prompt], params)
    return completion.token_ids


def tokens_of(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


def run(engine: InferenceEngine, max_steps: int = 500) -> list[StepOutput]:
    """Step until there is no work, with proof after each step that every block is accounted for."""
    outputs = []
    for _ in range(max_steps):
        if not engine.has_work:
            return outputs
        outputs += engine.step()
        engine.check_integrity()
    raise AssertionError(f"still at work after {max_steps} steps")


def tokens_by_request(outputs: Sequence[StepOutput]) -> dict[int, tuple[int, ...]]:
    """What `step` handed out, by request, in the order it came."""
    handed_out: dict[int, tuple[int, ...]] = {}
    for output in outputs:
        handed_out[output.request_id] = (*handed_out.get(output.request_id, ()), output.token_id)
    return handed_out


def spoil_keys(engine: InferenceEngine, session: InferenceSession, place: int = -1) -> None:
    """Numbers that are none for the keys of one of a session's blocks, the last one or at `place`, in all
    layers."""
    manager = engine.kv_manager
    for table_idx, block_ids in enumerate(session.block_ids_per_layer):
        block = manager.info(block_ids[place]).block_index
        keys = scales_of(manager.k_cache) if is_eight_bit(manager.k_cache) else manager.k_cache
        keys[manager.layers_of(table_idx), block] = torch.nan


def assert_no_block_is_lost(engine: InferenceEngine) -> None:
    """Nobody runs: what is not free is in the prefix cache, and comes back with it."""
    engine.check_integrity()
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    stats = engine.stats()
    assert (stats.waiting, stats.joining, stats.running) == (0, 0, 0)
    assert stats.free_blocks == stats.blocks_per_layer


class Boom(BaseException):
    """A planted failure: of any kind, so also one like KeyboardInterrupt."""


def failing(function: Callable, at_call: int = 0, error: type[BaseException] = Boom) -> Callable:
    """The function, but its `at_call`-th call fails, once."""
    calls = iter(range(10**9))

    def wrapper(*args, **kwargs):
        if next(calls) == at_call:
            raise error
        return function(*args, **kwargs)

    return wrapper


# --- a cache without an engine ---------------------------------------------------------------------


def make_manager(kind: type[KVBlockManager] = KVBlockManager, **settings: object) -> KVBlockManager:
    return kind(
        **{
            **{"num_layers": 2, "num_heads": 2, "head_dim": 3, "block_size": 4, "max_blocks_per_layer": 8},
            **settings,
        }
    )


def manager_state(manager: KVBlockManager) -> dict:
    """All that the manager knows of its blocks, as it is now."""
    return {
        k: copy.deepcopy(v)
        for k, v in vars(manager).items()
        if not isinstance(v, Tensor) and k != "kv_write"  # which has nothing to remember
    }


def num_freeable(prefix_cache: Prefixes) -> int:
    """The blocks, in each layer, that evicting can free, as the cache says."""
    return next(n for n in count() if not prefix_cache.can_free(n + 1))


def kv_numbers(manager: KVBlockManager, first: int, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Keys and values [L, H, T, D] of tokens `first` and on; no two numbers are the same."""
    L, _, H, _, D = manager.k_cache.shape
    numbers = torch.arange(first * 2 * L * H * D, (first + num_tokens) * 2 * L * H * D).float()
    return numbers.view(num_tokens, 2, L, H, D).permute(1, 2, 3, 0, 4).unbind()


def append_tokens(session: InferenceSession, first: int, num_tokens: int = 1) -> None:
    """Append tokens `first` and on, one at a time, to all layers."""
    keys, values = kv_numbers(session.kv_manager, first, num_tokens)
    for t in range(num_tokens):
        for layer_idx, block_ids in enumerate(session.block_ids_per_layer):
            session.kv_manager.append_token(
                layer_idx, block_ids, keys[layer_idx, :, t], values[layer_idx, :, t]
            )
        session.num_tokens += 1


APPENDS = ["append_token", "append_token_batch_fast_path", "append_token_batch"]
