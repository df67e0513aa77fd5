"""The figures of RELIABILITY.md, from the records of the last full runs of `python tests/soak`.

Their samples are read as they are in the files: what they hold, tests/soak says, which writes them.
"""

from collections import Counter
from collections.abc import Sequence

from labkit.results import Record, load

FAULTS_RECORDS = ("faults_cpu", "faults_h100")
HTTP_FLOOD_RECORD = "http_flood_cpu"
FLOOD_RECORDS = ("flood_fifo_cpu", "flood_pack_cpu", "flood_fifo_h100", "flood_pack_h100")


def faults_of(record: Record) -> str:
    """A few sentences about a record's schedules, and a Markdown table with a row per rung."""
    rungs = record.samples
    ended = sum((Counter(s["ended"]) for s in rungs), Counter())
    points = {fault.split(", ")[0] for s in rungs for fault in s["fired"]}
    lines = [
        f"{sum(s['schedules'] for s in rungs):,} schedules from seed {record.seed}: "
        f"{sum(sum(s['fired'].values()) for s in rungs):,} calls were made to fail, at {len(points)} points. "
        f"{ended['length']:,} requests ended complete, {ended['cancelled']:,} were cancelled, "
        f"{ended['error']:,} had a NaN. The engine said {sum(s['gave_up'] for s in rungs):,} "
        f"times that it cannot go on. **{num_fell(record)} schedules failed.** {made_at(record)}",
        "",
        "| rung | schedules | fault points | calls that failed | steps that failed | preemptions | failed |",
        "| --- |" + " ---: |" * 6,
    ]
    lines += [
        f"| {s['rung']} | {s['schedules']:,} | {s['num_points']} | {sum(s['fired'].values()):,} "
        f"| {s['failed_steps']:,} | {s['preemptions']:,} | {len(s['fell'])} |"
        for s in rungs
    ]
    return "\n".join(lines)


def floods_text() -> str:
    """A Markdown table with a row per flood, and where they were made."""
    records = [load(name) for name in FLOOD_RECORDS]
    lines = [
        "| device, model | rung, policy | requests | ended, cancelled or left, refused "
        "| prompt, new tokens up to | tokens/s | preemptions | blocks used at most | longest wait "
        "| passed over | as alone | memory | tensors |",
        "| --- | --- | ---: | --- | --- |" + " ---: |" * 8,
    ]
    lines += [flood_row(record, sample) for record in records for sample in record.samples]
    lines += ["", *dict.fromkeys(map(made_at, records))]
    return "\n".join(lines)


def flood_row(record: Record, flood: dict) -> str:
    ended = Counter(flood["ended"])
    tensors = f"×{growth(flood['tensors']):.3f}" if flood["tensors"] else "–"
    return (
        f"| {'cpu' if record.host.driver is None else 'cuda'}, `{record.model}` "
        f"| {flood['rung']}, {flood['policy']} | {sum(ended.values()):,} "
        f"| {ended['length']:,}, {ended['cancelled'] + ended['left']:,}, {ended['refused']:,} "
        f"| {record.longest_prompt}, {record.max_new_tokens} "
        f"| {flood['generated_tokens'] / flood['seconds']:,.0f} "
        f"| {flood['preemptions']:,} | {flood['peak_blocks']:,} of {flood['num_blocks']:,} "
        f"| {flood['longest_wait']:,} steps | {flood['most_passed_over']} "
        f"| {flood['equal']} of {flood['checked']} | ×{growth(flood['memory']):.3f} | {tensors} |"
    )


def http_flood_text() -> str:
    """A few sentences about the flood over HTTP, and where it was made."""
    record = load(HTTP_FLOOD_RECORD)
    (flood,) = record.samples
    ended = Counter(flood["ended"])
    num_left = sum(ended[kind] for kind in ("leaves before", "leaves amid", "sends half"))
    whole = {kind: ended[kind] for kind in ("reads all", "reads it whole", "reads slowly")}
    return (
        f"`{record.model}` on rung {flood['rung']}: {flood['most_open']:,} streams were open at once, and "
        f"then {record.num_requests:,} requests came from {record.at_once:,} clients, in "
        f"{flood['seconds']:,.0f} s together. {num_left:,} clients left early: {ended['leaves before']:,} "
        f"before any text, {ended['leaves amid']:,} amid it and {ended['sends half']:,} amid their own "
        f"request. {sum(whole.values()):,} answers were read to their end, {whole['reads slowly']:,} of "
        f"them slowly, and each was the text that the engine gives alone: **0 were lost.** "
        f"{ended['sends no JSON']:,} bodies that are no JSON and {ended['sends too much']:,} prompts of a "
        f"megabyte were refused, and {flood['retries']:,} times a client was asked to come back. Every error "
        f"had OpenAI's shape. **{flood['blocks_lost']} blocks were lost**, and at the end the server's two "
        f"processes have ×{growth(flood['memory']):.3f} of their memory after the 1,000th request. "
        f"{made_at(record)}"
    )


def growth(sampled: Sequence[int]) -> float:
    """The last of the numbers, one for each hundred requests, beside that after the first thousand, after
    which memory is flat; 1 where there are no more."""
    settled = sampled[9:]
    return settled[-1] / settled[0] if any(settled) else 1.0


def num_fell(record: Record) -> int:
    """How many schedules did not go as promised."""
    return sum(len(sample["fell"]) for sample in record.samples)


def made_at(record: Record) -> str:
    """Where and when a record was made."""
    host = record.host
    cores = f"{host.cpu_cores} cores of an {host.cpu}"
    return (
        f"Run on {cores if host.driver is None else f'one {host.device}'}, with torch {host.torch}, at "
        f"commit `{record.commit[:8]}` ({record.date[:10]})."
    )
