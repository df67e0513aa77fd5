"""The figures of RELIABILITY.md, from the records of the last full runs."""

from collections import Counter

from labkit.results import Record, load
from labkit.results.flood import FloodRun

FAULTS_RECORDS = ("faults_cpu", "faults_h200")
FLOOD_RECORDS = ("flood_fifo_cpu", "flood_pack_cpu", "flood_fifo_h100", "flood_pack_h100")
FUZZ_RECORD = "fuzz_cpu"


def faults_text() -> str:
    """For each record a few sentences about all schedules, and a Markdown table with a row per rung."""
    return "\n\n".join(faults_of(load(name)) for name in FAULTS_RECORDS)


def faults_of(record: Record) -> str:
    """A few sentences about a record's schedules, and a Markdown table with a row per rung."""
    rungs = record.samples
    ended = sum((Counter(s.ended) for s in rungs), Counter())
    points = {fault.split(", ")[0] for s in rungs for fault in s.fired}
    lines = [
        f"{sum(s.schedules for s in rungs):,} schedules from seed {record.seed}: "
        f"{sum(sum(s.fired.values()) for s in rungs):,} calls were made to fail, at {len(points)} points. "
        f"{ended['length']:,} requests ended complete, {ended['cancelled']:,} were cancelled, "
        f"{ended['error']:,} had numbers that are none. The engine said {sum(s.gave_up for s in rungs):,} "
        f"times that it cannot go on. **{num_fell(record)} schedules fell.** {made_at(record)}",
        "",
        "| rung | schedules | fault points | calls that failed | steps that failed | preemptions | fell |",
        "| --- |" + " ---: |" * 6,
    ]
    lines += [
        f"| {s.rung} | {s.schedules:,} | {s.num_points} | {sum(s.fired.values()):,} | {s.failed_steps:,} "
        f"| {s.preemptions:,} | {len(s.fell)} |"
        for s in rungs
    ]
    return "\n".join(lines)


def floods_text() -> str:
    """A Markdown table with a row per flood, and where they were made."""
    records = [load(name) for name in FLOOD_RECORDS]
    lines = [
        "| device, model | rung, policy | requests | ended, cancelled or left, refused "
        "| prompt, new tokens up to | tokens/s | preemptions | blocks used at most | longest wait "
        "| passed over | as alone | memory | grew last at | tensors |",
        "| --- | --- | ---: | --- | --- |" + " ---: |" * 9,
    ]
    lines += [flood_row(record, sample) for record in records for sample in record.samples]
    lines += ["", *dict.fromkeys(map(made_at, records))]
    return "\n".join(lines)


def flood_row(record: Record, flood: FloodRun) -> str:
    """The row of one flood."""
    ended = Counter(flood.ended)
    tensors = f"×{flood.tensor_growth:.3f}" if flood.tensors else "–"
    return (
        f"| {'cpu' if record.host.driver is None else 'cuda'}, `{record.model}` "
        f"| {flood.rung}, {flood.policy} | {flood.num_ended:,} "
        f"| {ended['length']:,}, {ended['cancelled'] + ended['left']:,}, {ended['refused']:,} "
        f"| {record.longest_prompt}, {record.max_new_tokens} | {flood.tokens_per_second:,.0f} "
        f"| {flood.preemptions:,} | {flood.peak_blocks:,} of {flood.num_blocks:,} "
        f"| {flood.longest_wait:,} steps | {flood.most_passed_over} | {flood.equal} of {flood.checked} "
        f"| ×{flood.memory_growth:.3f} | {flood.last_growth:,} | {tensors} |"
    )


def fuzz_text() -> str:
    """A sentence about all damaged files, and a Markdown table with a row per target."""
    record = load(FUZZ_RECORD)
    lines = [
        f"{sum(s.num_cases for s in record.samples):,} cases from seed {record.seed}, of which the slowest "
        f"took {max(s.slowest for s in record.samples):.2f} s. **{num_fell(record)} cases fell.** "
        "The memory of the process was at the end "
        f"×{record.memory_growth:.3f} of that after the first thousand cases. {made_at(record)}",
        "",
        "| files | cases | read | refused | slowest | fell |",
        "| --- |" + " ---: |" * 5,
    ]
    lines += [
        f"| {s.target} | {s.num_cases:,} | {s.read:,} | {s.num_refused:,} | {s.slowest:.2f} s "
        f"| {len(s.fell)} |"
        for s in record.samples
    ]
    return "\n".join(lines)


def num_fell(record: Record) -> int:
    """How many schedules or cases did not go as promised."""
    return sum(len(sample.fell) for sample in record.samples)


def made_at(record: Record) -> str:
    """Where and when a record was made."""
    host = record.host
    cores = f"{host.cpu_cores} cores of an {host.cpu}"
    return (
        f"Run on {cores if host.driver is None else f'one {host.device}'}, with torch {host.torch}, at "
        f"commit `{record.commit[:8]}` ({record.date[:10]})."
    )
