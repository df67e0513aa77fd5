"""Lesson 06: what a step sends, what slots hold, and what it costs."""

from collections.abc import Sequence
from statistics import median

import numpy as np
import pandas as pd
import torch

from labkit.engine import InferenceEngine, SamplingParams
from labkit.engine.sampling import sample, sample_any, uniform_number
from labkit.engine.sampling.device import NO_TOKEN
from labkit.engine.step.host import DecodeStep
from labkit.kernels.distribution import pack_states, unpack_states
from labkit.learn.gates.gate import raised
from labkit.results import CostCardRecord, HostTimeRecord, StepProfile, counts_table
from labkit.watch import record_inputs, record_sends, steady_decode, steady_prompts
from labkit.watch.inputs import Told

# --- the numbers that the host sends, and those of them that the device could have known ---------------


def what_is_new(before: Told, now: Told, picked: Sequence[int], block_size: int) -> pd.DataFrame:
    """How many of the numbers that a step sends the device could have known, a row per kind of number.

    before: what was sent a step earlier, of the same requests. picked: the tokens that the device made then.
    """
    rows = {}
    for name, numbers in now.items():
        new = np.array(numbers)
        if name == "token ids":
            made = new == np.array(picked)
            counts = {"its own tokens": made.sum(), "new to the GPU": (~made).sum()}
        else:
            old = np.array(before[name])
            same = new == old
            next_one = ~same & ((new == old + 1) | ((new == 0) & (old == block_size - 1)))
            if "block" in name:  # a block's number is no count
                next_one[:] = False
            counts = {"as before": same.sum(), "one more": next_one.sum()}
            counts["new to the GPU"] = len(new) - sum(counts.values())
        rows[name] = {"numbers": len(new), **counts}
    columns = ["numbers", "as before", "one more", "its own tokens", "new to the GPU"]
    table = pd.DataFrame(rows).T.reindex(columns=columns).fillna(0).astype(int)
    table.loc["all"] = table.sum()
    return table


def last_tokens(engine: InferenceEngine) -> list[int]:
    """The newest token of each running request."""
    return [request.output_token_ids[-1] for request in engine.scheduler.running]


def sent_until_done(engine: InferenceEngine) -> pd.DataFrame:
    """Run an engine of any rung until no work is left: copies and numbers that the host sends, a row per
    decode step."""
    steps = []
    while engine.has_work:
        if isinstance(engine.decode_step, DecodeStep):
            for told in record_inputs(engine, num_steps=1):
                tensors = [engine.kv_manager.num_layers if "layer" in name else 1 for name in told]
                steps.append({"copies": sum(tensors), "numbers": sum(map(len, told.values()))})
        else:
            steps += record_sends(engine, num_steps=1).steps[["copies", "numbers"]].to_dict("records")
    return pd.DataFrame(steps)


def steady_traffic(engine: InferenceEngine, num_steps: int = 128) -> str:
    """Decode 8 requests for `num_steps` steps on an engine whose slots may be a reader's; how many copies the
    host sent, in how many of the steps, and how many numbers."""
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))):
            steps = record_sends(engine, num_steps).steps
    except Exception as error:  # whatever the reader's code raises
        return f"sent: not counted, because the engine {raised(error)}"
    copies, numbers, sending = steps["copies"].sum(), steps["numbers"].sum(), (steps["copies"] > 0).sum()
    return f"sent in {sending} of {num_steps} steps: {copies} copies, {numbers:,} numbers"


# --- the slots of a running engine, to be read ---------------------------------------------------------


def slots_table(engine: InferenceEngine, layer_idx: int = 0) -> pd.DataFrame:
    """A row per slot: what the device holds of it in layer `layer_idx`, and what the host knows of its
    request."""
    slots = engine.decode_step.slots
    of_slot = {slots.slot_of.get(s): (request, s) for request, s in engine.scheduler.running.items()}
    rows = {}
    for slot in range(slots.padding_slot + 1):
        rows[slot] = {
            "request": "none: for padding" if slot == slots.padding_slot else "",
            "block table": str(slots.block_tables[layer_idx, slot, :4].tolist())[:-1] + ", ...]",
            "context_lens": int(slots.context_lens[slot]),
            "last_token_ids": int(slots.last_token_ids[slot]),
            "host: tokens, last token": "",
        }
        if slot in of_slot:
            request, session = of_slot[slot]
            rows[slot]["request"] = str(request.request_id)
            state = f"{session.num_tokens}, {request.output_token_ids[-1]}"
            rows[slot]["host: tokens, last token"] = state
    return pd.DataFrame(rows).T.rename_axis("slot")


# --- the host's sampler and the device's, on the same logits -------------------------------------------

MANNERS = {  # of sampling, by name: the settings of `SamplingParams`
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 1.0, "top_k": 20},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "all three": {"temperature": 0.7, "top_k": 50, "top_p": 0.95},
}


def sampled_both_ways(device: torch.device, rows_each: int = 50, vocab_size: int = 300) -> pd.DataFrame:
    """Compare the tokens that the host's sampler and the device's draw from random logits, a row per manner
    of sampling. All manners are in one batch, and each has a row of logits with a NaN."""
    names = [name for name in MANNERS for _ in range(rows_each)]
    params = [SamplingParams(seed=7 * b - 99, **MANNERS[name]) for b, name in enumerate(names)]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(names), vocab_size, generator=generator).to(device)
    logits[::rows_each, 5] = torch.nan
    places = [b % 40 for b in range(len(names))]  # how many numbers each row has drawn
    uniforms = [uniform_number(p.seed, i) for p, i in zip(params, places, strict=True)]
    on_host = sample(logits, params, uniforms)

    states = pack_states([p.state(p.seed, i) for p, i in zip(params, places, strict=True)])
    on_device = sample_any(logits, unpack_states(torch.from_numpy(states).to(device))).tolist()
    rows = {}
    for name in MANNERS:
        pairs = [(h, d) for n, h, d in zip(names, on_host, on_device, strict=True) if n == name]
        rows[name] = {
            "rows": len(pairs),
            "the same token": sum(h == d for h, d in pairs),
            "None on the host, -1 on the device": sum(h is None and d == NO_TOKEN for h, d in pairs),
            "distinct tokens drawn": len({h for h, _ in pairs}),
        }
    return pd.DataFrame(rows).T


# --- recorded counts and times of a step, in tables ----------------------------------------------------

COUNTS = {  # counts of a cost card: their words in a table
    "index_tensors": "index tensors constructed",
    "h2d_copies": "host-to-device copies",
    "h2d_bytes": "host-to-device bytes",
    "h2d_synchronizing": "of the copies, synchronizing",
    "d2h_copies": "device-to-host copies",
    "synchronizations": "the host waits for the GPU",
    "manager_calls": "calls into KVBlockManager",
    "kernels": "kernels launched",
}


def recorded_counts(
    record: CostCardRecord, rungs: Sequence[str], batch_size: int, lengths: set[int]
) -> pd.DataFrame:
    """COUNTS of GPT-2's recorded decode step, a column per rung. lengths: of the prompts."""
    cards = record.cards(lengths)
    return counts_table({f"rung {rung}": cards[rung, batch_size] for rung in rungs}, COUNTS)


PARTS = ("block tables", "append", "the rest")  # of the host's step, up to rung 05
RESIDENT_PARTS = ("send state", "make room", "the rest")  # of the host's step, from rung 06 on


def host_parts(record: HostTimeRecord, rungs: Sequence[str], batch_sizes: Sequence[int]) -> pd.DataFrame:
    """Median microseconds of a step's parts on the host, a row per rung and part, a column per batch size."""
    table: dict[str, dict] = {f"B = {b}": {} for b in batch_sizes}
    for rung in rungs:
        names = RESIDENT_PARTS if rung >= "06" else PARTS
        for b in batch_sizes:
            time = record.time(rung, b)
            lanes = (time.tables_us, time.append_us, time.rest_us, time.step_us)
            for name, us in zip((*names, "a step"), lanes, strict=True):
                table[f"B = {b}"][f"rung {rung}", name] = us
    return pd.DataFrame(table).round().astype(int).rename_axis(columns="microseconds")


def copy_costs(profile: StepProfile) -> dict[str, float]:
    """The small host-to-device copies of a profiled step: how many, the median time of one on the GPU, and
    the median time from the start of one to that of the next."""
    copies = sorted((k for k in profile.kernels if k.name.startswith("Memcpy HtoD")), key=lambda k: k.start)
    small = copies[1:]  # the first is the block tables'
    return {
        "small copies": len(small),
        "us of the GPU, each": round(median(copy.duration for copy in small), 1),
        "us from one to the next": round(float(np.median(np.diff([copy.start for copy in small]))), 1),
    }
