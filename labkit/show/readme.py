"""`python -m labkit.show.readme`: make the README's pictures and tables, and RELIABILITY.md's, from the
records."""

import hashlib
import re
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from labkit.ladder import CAPSTONE, LADDER, LESSONS, Lesson
from labkit.paths import RESULTS, ROOT
from labkit.results import HostTimeRecord, LoadsRecord, ProfileRecord, RunsRecord, load, load_gpu_tests
from labkit.results.installation import load_installations
from labkit.results.tiles import TilesRecord
from labkit.show import reliability
from labkit.show.ladder import draw_ladder
from labkit.show.timeline import draw_timeline

README = ROOT / "README.md"
TABLE = re.compile(r"(?<=<!-- ladder -->\n).*?(?=\n<!-- /ladder -->)", re.DOTALL)
PEERS = re.compile(r"(?<=<!-- peers -->\n).*?(?=\n<!-- /peers -->)", re.DOTALL)
MODELS = re.compile(r"(?<=<!-- models -->\n).*?(?=\n<!-- /models -->)", re.DOTALL)
LOADS = re.compile(r"(?<=<!-- loads -->\n).*?(?=\n<!-- /loads -->)", re.DOTALL)
GPU_TESTS = re.compile(r"(?<=<!-- gpu tests -->\n).*?(?=\n<!-- /gpu tests -->)", re.DOTALL)
H200 = re.compile(r"(?<=<!-- h200 -->\n).*?(?=\n<!-- /h200 -->)", re.DOTALL)
INSTALLATION = re.compile(r"(?<=<!-- installation -->\n).*?(?=\n<!-- /installation -->)", re.DOTALL)
TILES = re.compile(r"(?<=<!-- tiles -->\n).*?(?=\n<!-- /tiles -->)", re.DOTALL)
TILES_RECORD, TILES_RUNS = "tiles_medium_h200", ("scheduler_medium_h200", "scheduler_medium_tuned_h200")
H200_RECORDS = ("ladder_036_from_10_h200", "ladder_single_from_10_h200")
# A rung is shown from the first of these that has it and the rung below.
LADDER_RECORDS = ("ladder_036_h100", "ladder_036_from_10_h100")
PEER_RECORDS = ("peers_036_h100", "peers_062_h100", "peers_single_h100")
STATIC = "transformers, static cache"
PEER_ENGINES = ("labkit 10", STATIC, "transformers, dynamic cache")
MODEL_RECORDS = ("peers_medium_h200", "peers_xl_h200")
LOADS_RECORDS = ("loads_h200", "loads_from_10_h200")
HOST_BATCH = 128  # the batch size of the host time shown


def draw_profile(record: ProfileRecord) -> Figure:
    """Draw the timeline of the record's step with the largest batch."""
    return draw_timeline(record.largest.profile)


def draw_recorded_ladder(record: RunsRecord) -> Figure:
    """Draw the rungs of a recorded ladder, with the limit of its hardware."""
    return draw_ladder(record.rates, record.limit)


PICTURES = {"profile_rung00_h100": draw_profile, "ladder_036_h100": draw_recorded_ladder}  # by record


def record_hash(name: str) -> str:
    """The SHA-256 of a record's file, in hexadecimal: a picture carries that of the record it was made
    from."""
    return hashlib.sha256((RESULTS / f"{name}.json").read_bytes()).hexdigest()


def picture(name: str) -> Path:
    """The path of the picture that is made from a record."""
    return RESULTS / f"{name}.png"


def ladder_table() -> str:
    """A Markdown table with a row per rung: what it removes, and what an H100 made of it."""
    host, numbers = load("host_time_h100", HostTimeRecord), list(LADDER)
    lines = [
        "| rung | lesson | what leaves the hot path | decode tokens/s | against the rung below | host time |",
        "| --- | --- | --- | ---: | --- | ---: |",
    ]
    for place, rung in enumerate(LADDER.values()):
        below = numbers[max(0, place - 1)]
        record = next(r for r in map(load, LADDER_RECORDS) if {below, rung.number} <= set(r.rates))
        is_timed = rung.number in host.times
        host_time = f"{host.time(rung.number, HOST_BATCH).step_us / 1e3:.2f} ms" if is_timed else ""
        lines.append(
            f"| {rung.number} | {lesson_link(LESSONS[rung.number])} | {first_clause(rung.removes)} "
            f"| {record.rate(rung.number):,.0f} "
            f"| {step_from(record, below, rung.number) if place else ''} | {host_time} |"
        )
    lines.append(f"| {CAPSTONE.number} | {lesson_link(CAPSTONE)} | nothing | | | |")
    return "\n".join(lines)


def peers_table() -> str:
    """A Markdown table of tokens per second in whole runs: labkit's last rung beside other engines on the
    same H100."""
    lines = [
        "| requests × tokens | " + " | ".join(PEER_ENGINES) + " |",
        "| --- |" + " ---: |" * len(PEER_ENGINES),
    ]
    for record in map(load, PEER_RECORDS):
        rates = " | ".join(f"{record.rate(engine):,.0f}" for engine in PEER_ENGINES)
        lines.append(f"| {record.num_requests} × {record.max_new_tokens} | {rates} |")
    return "\n".join(lines)


def models_line() -> str:
    """A sentence: labkit beside transformers' static cache with models of other sizes."""
    reached, device = [], ""
    for record in map(load, MODEL_RECORDS):
        device, ratio = record.host.device, record.rate(record.ours) / record.rate(STATIC)
        reached.append(
            f"{ratio:.2f} times with `{record.model}` ({record.num_requests} × {record.max_new_tokens}, "
            f"{record.rate(record.ours):,.0f} tokens/s)"
        )
    return f"On an {device}, {record.ours} makes more tokens than {STATIC}: {' and '.join(reached)}."


def loads_texts() -> str:
    """What the README says of all records of loads."""
    return "\n\n".join(map(loads_text, LOADS_RECORDS))


def loads_text(name: str) -> str:
    """A Markdown table of tokens per second of each load, one of the arrivals' latency if the record has such
    a load, and sentences about the machine and about what was left out. name: of the record."""
    record = load(name, LoadsRecord)
    latency = [markdown(record.latency_table())] if "arrivals" in record.loads else []
    machine = (
        f"{record.date[:10]}: {record.num_requests} requests of {record.max_new_tokens} new tokens at most, "
        f"batches of {record.max_batch_size}, arrivals at {record.arrivals_per_second:g} per second, on an "
        f"{record.host.device}: a copy moves {record.bandwidth / 1e9:,.0f} GB/s, reading alone "
        f"{record.read_bandwidth / 1e9:,.0f} GB/s. transformers is {record.versions['transformers']}, "
        f"{'with' if 'flash_attn' in record.versions else 'without'} the package of flash attention."
    )
    # An engine that nothing was to be had of, such as one that is not installed, has no row.
    table = record.table().loc[lambda rows: (rows != "–").any(axis=1)]
    return "\n\n".join([machine, markdown(table), *latency, left_out_text(record, list(table.index))])


def left_out_text(record: LoadsRecord, engines: list[str]) -> str:
    """Why a table of loads has no number in a place: a sentence for each reason."""
    places: dict[str, list[str]] = {}
    for kind in record.loads:
        for engine, reason in record.left_out(kind).items():
            if engine in engines:
                places.setdefault(reason, []).append(f"{engine} ({kind})")
    return " ".join(f"Left out: {'; '.join(where)}: {reason}." for reason, where in places.items())


def markdown(table: pd.DataFrame) -> str:
    """A table of text in Markdown, its numbers to the right."""
    head = " | ".join([str(table.index.name), *table.columns])
    rows = [" | ".join([str(name), *values]) for name, *values in table.itertuples()]
    return "\n".join([f"| {head} |", "| --- |" + " ---: |" * len(table.columns), *(f"| {r} |" for r in rows)])


def h200_line() -> str:
    """A sentence: what the last rung reaches on an H200, and what share of that GPU's limit that is."""
    reached = []
    for record in map(load, H200_RECORDS):
        rung = list(record.rates)[-1]
        reached.append(
            f"{record.rate(rung):,.0f} tokens/s with {record.num_requests} × {record.max_new_tokens} "
            f"({100 * record.share_of_limit(rung):.0f} % of that GPU's limit)"
        )
    return f"On an {record.host.device}, rung {rung} decodes {' and '.join(reached)}."


def tiles_line() -> str:
    """A sentence: what tiles that were measured for it made of a model that had tiles by rule."""
    tiles = load(TILES_RECORD, TilesRecord)
    before, after = (load(name, RunsRecord) for name in TILES_RUNS)
    (rung,) = after.rates
    rows = after.num_requests
    gains = [tile.gain for tile in tiles.samples if tile.rows == rows]
    return (
        f"On an {tiles.host.device}, {tiles.seconds} seconds of search made the {len(gains)} products of "
        f"`{before.model}` ×{min(gains):.2f} to ×{max(gains):.2f} as fast at {rows} rows, "
        f"and rung {rung} decodes {after.rate(rung):,.0f} tokens/s with {after.num_requests} × "
        f"{after.max_new_tokens} where it decoded {before.rate(rung):,.0f}: "
        f"{100 * after.share_of_limit(rung):.0f} % of the limit instead of "
        f"{100 * before.share_of_limit(rung):.0f} %."
    )


def installation_line() -> str:
    """A sentence: the disk and the minutes that an installation took, with either build of PyTorch."""
    cuda, cpu = load_installations()
    return (
        f"PyTorch is most of the installation. On Linux it comes with CUDA: {cuda}. PyTorch's CPU build "
        f"makes it {cpu}."
    )


def gpu_tests_line() -> str:
    """A sentence: how the tests that need a GPU ended in the last run of `make test-gpu` whose record is
    kept."""
    tests = load_gpu_tests()
    return (
        f"Last recorded run: {tests.passed:,} passed, {tests.failed} failed, {tests.skipped} skipped in "
        f"{tests.seconds} s on an {tests.host.device}, with torch {tests.host.torch} and Triton "
        f"{tests.host.triton}, at commit `{tests.commit[:8]}` ({tests.date[:10]})."
    )


def lesson_link(lesson: Lesson) -> str:
    """A Markdown link to a lesson's notebook, by its title."""
    return f"[{lesson.title}](notebooks/{lesson.notebook})"


def first_clause(text: str) -> str:
    """The text before the first colon, or all of it."""
    return text.split(":")[0]


def step_from(record: RunsRecord, below: str, rung: str) -> str:
    """A rung against the one below in words: the speed-up, its interval and the verdict."""
    step = record.comparison(below, rung)
    low, high = step.interval
    return f"×{step.speedup:.3f} ({low:.3f} to {high:.3f}): {step.verdict}"


def main() -> None:
    """Make the README's pictures, and write the tables and sentences of both files between their markers."""
    matplotlib.use("agg")
    for name, draw in PICTURES.items():
        # The record's hash goes into the file, so that a test can tell a picture of older results.
        draw(load(name)).savefig(picture(name), metadata={"Source": record_hash(name)})
    text = README.read_text("utf-8")
    for place, made in (
        (INSTALLATION, installation_line),
        (TABLE, ladder_table),
        (H200, h200_line),
        (TILES, tiles_line),
        (PEERS, peers_table),
        (MODELS, models_line),
        (LOADS, loads_texts),
        (GPU_TESTS, gpu_tests_line),
    ):
        text = place.sub(lambda _, made=made: made(), text)
    README.write_text(text, encoding="utf-8")
    reliability.fill()


if __name__ == "__main__":
    main()
