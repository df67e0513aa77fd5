"""cost-card: counts what one steady decode step does, for each rung, model and batch size."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from shutil import get_terminal_size

import pandas as pd
from tqdm import tqdm

from labkit.bench.commands.arguments import DeviceFlags, batch_sizes_flag, rungs_flag
from labkit.bench.commands.flags import ByDevice, Kind, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.cost_cards import cost_card, engine_key
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.model import load_model
from labkit.results.cost_cards import CostCard, RungCard
from labkit.watch import steady_prompts

PROMPT_LENGTHS = (20,), (20, 23)  # tokens of the prompts, in turn: with the first all positions are equal


@dataclass
class Settings(DeviceFlags):
    rungs: tuple[str, ...] = rungs_flag()
    models: tuple[str, ...] = flag(
        ByDevice(("data/tiny-gpt2", "random:gpt2"), ("data/tiny-gpt2",)),
        "steps of these models are counted; each is a directory, a hub id, or random weights such as "
        "random:gpt2",
        Kind(lambda text: tuple(text.split(",")), "MODEL,MODEL,..."),
    )
    batch_sizes: tuple[int, ...] = batch_sizes_flag((8, 64, 128))


def run(args: Settings) -> None:
    device = pick_device(args.device)
    samples: list[RungCard] = []
    cards: dict[str, dict[str, CostCard]] = {}  # by what a table is about, and by rung
    with args.until_interrupted(samples):
        for name in args.models:
            model = load_model(name)
            for rung, batch_size, lengths in tqdm(
                list(product(args.rungs, args.batch_sizes, PROMPT_LENGTHS)), desc=name
            ):
                engine = InferenceEngine(
                    model,
                    LADDER[rung].options,
                    device=device,
                    cache=CacheConfig(prefix_cache=False, max_blocks_per_layer=batch_size),
                    scheduler=SchedulerConfig(max_batch_size=batch_size, prefill_max_batch_size=batch_size),
                )
                prompts = steady_prompts(batch_size, lengths)
                card = cost_card(engine, prompts)
                samples.append(RungCard(rung, batch_size, engine_key(engine, prompts), card))
                about = f"{name}, B = {batch_size}, prompts of {' and '.join(map(str, lengths))} tokens"
                cards.setdefault(about, {})[rung] = card
    for about, made in cards.items():
        print(f"\n{about}\n{cards_text(made)}")
    record_if_asked(args, "cost_card", device, samples, model=", ".join(args.models))


def cards_text(cards: Mapping[str, CostCard]) -> str:
    """A line that says where the GPU's rows come from, and the cards as a table with a column for each; it
    goes on below where a terminal has room for no more columns."""
    captions = dict.fromkeys(card.caption for card in cards.values())
    columns = {f"rung {name}": {row: f"{n:,}" for row, n in c.column().items()} for name, c in cards.items()}
    table = pd.DataFrame(columns).fillna("–")
    return f"{'; '.join(captions)}\n{table.to_string(line_width=get_terminal_size().columns)}"
