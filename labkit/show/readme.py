"""`python -m labkit.show.readme`: make the README's picture, and the tables and sentences of the pages in
`PAGES`, from the records."""

import hashlib
import json
import re
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache

import matplotlib
import pandas as pd

from labkit.bench.ranks import all_gains, gains_table
from labkit.ladder import FINISHED, LADDER, LESSONS
from labkit.paths import RESULTS, ROOT
from labkit.results import Comparison, RunsRecord, load, load_all, load_gpu_tests
from labkit.results.ranks import RanksRecord
from labkit.results.served import BY_OPENAI, BY_PROCESS, HttpRecord, ReplicasRecord
from labkit.show import reliability
from labkit.show.comparison import draw_ladder
from labkit.show.tables import with_thousands

NAMES = ("README", "INSTALL", "BENCHMARKS", "RELIABILITY", "REPLICAS", "docs/SCALE")
PAGES = tuple(ROOT / f"{name}.md" for name in NAMES)
MARKED = re.compile(r"(?<=<!-- )([\w ]+) -->\n.*?<!-- /\1(?= -->)", re.DOTALL)  # by a name of MADE

LADDER_RECORD = "ladder_036_h100"  # which is also drawn
# A rung is shown from the first of these that has it and the rung below.
LADDER_RECORDS = (LADDER_RECORD, "ladder_036_from_10_h100")
PICTURE = RESULTS / f"{LADDER_RECORD}.png"
H200_RECORDS = {  # by the words about each
    "64 × 512": "ladder_036_from_10_h200",
    "1 × 512": "ladder_single_from_10_h200",
    "`random:gpt2-medium`, 64 × 512, tiles by the rule": "scheduler_medium_h200",
    "the same, tiles of {} seconds of search": "scheduler_medium_tuned_h200",
}
TILES_RECORD = "tiles_medium_h200"  # of that search
PEERS_RECORDS = (
    "peers_036_h100",
    "peers_062_h100",
    "peers_single_h100",
    "peers_medium_h200",
    "peers_xl_h200",
)
LOADS_RECORD = "loads_from_10_h200"
HOST_BATCH = 128  # the batch size of the host time shown


def record_hash(name: str) -> str:
    """The SHA-256 of a record's file, in hexadecimal: a picture carries that of the record it was made
    from."""
    return hashlib.sha256((RESULTS / f"{name}.json").read_bytes()).hexdigest()


def ran(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of engines that ran: one that is not installed has nothing but dashes."""
    return table.loc[lambda rows: (rows != "–").any(axis=1)]


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown, its numbers to the right."""
    head = " | ".join([str(table.index.name), *table.columns])
    rows = [" | ".join(map(str, row)) for row in with_thousands(table).itertuples()]
    return "\n".join([f"| {head} |", "| --- |" + " ---: |" * len(table.columns), *(f"| {r} |" for r in rows)])


BESIDE = {  # what the lessons without a rung are about
    "15": "*the Llama family, on every rung*",
    "17": "*several tokens a step, where a text repeats itself*",
    "18": "*replicas, and one model cut among GPUs*",
    "19": "*a server that speaks OpenAI's API*",
    "20": "*all of your parts in one engine*",
}


def ladder_table() -> str:
    """A Markdown table with a row per lesson: what its rung removes, and its gain."""
    lines = ["| lesson | what leaves the hot path | × |", "| --- | --- | --- |"]
    for number, lesson in LESSONS.items():
        removes, gain = BESIDE.get(number, lesson.rung.removes), ""
        if number in OWN_LOAD:  # over the rung below, on the load that it is for
            words, find = OWN_LOAD[number]
            gain = f"{factor(find())} {words}"
        elif number in LADDER and number != "00":
            gain = factor(step_from(number))
        link = f"[{lesson.title}](notebooks/{lesson.notebook})"
        lines.append(f"| {number} {link} | {removes} | {gain} |")
    return "\n".join(lines)


def factor(step: Comparison) -> str:
    """ "×3.17", or "cannot tell"."""
    return f"×{step.speedup:.2f}" if step.verdict in ("faster", "slower") else step.verdict


def compared(name: str) -> Comparison:
    return load(name).samples[0].comparison


# Rungs that the ladder's load, greedy requests that are all alike, says nothing about.
OWN_LOAD: dict[str, tuple[str, Callable[[], Comparison]]] = {
    "12": (
        "where requests draw",
        lambda: load("sampling_h200").comparison("top-p 0.95 at 0.8", "11", "12"),
    ),
    "13": ("where lengths differ", lambda: compared("comparison_ragged_from_12_h200")),
    "14": ("where prompts begin alike", lambda: compared("comparison_shared_prefix_h200")),
    "16": ("with 64 × 512", lambda: compared("comparison_eight_bit_h200")),
}


@cache
def ladder_records() -> list[RunsRecord]:
    """Those of LADDER_RECORDS; they are large, and asked for by each rung."""
    return [load(name) for name in LADDER_RECORDS]


def step_from(rung: str) -> Comparison:
    """A rung against the rung below, in the ladder's records."""
    numbers = list(LADDER)
    below = numbers[numbers.index(rung) - 1]
    record = next(r for r in ladder_records() if {below, rung} <= set(r.rates))
    return record.comparison(below, rung)


def rungs_table() -> str:
    """A Markdown table with a row per rung: rate, gain, and host time of a step."""
    host = load("host_time_h100")
    lines = [
        "| rung | decode tokens/s | against the rung below | 99 % interval | verdict | host time |",
        "| --- | ---: | ---: | --- | --- | ---: |",
    ]
    for number, rung in LADDER.items():
        record = next((record for record in ladder_records() if number in record.rates), None)
        if record is None:
            continue
        step = None if number == "00" else step_from(number)
        against = f"×{step.speedup:.3f} | {step.interval} | {step.verdict}" if step else " | | "
        timed = f"{host.time(number, HOST_BATCH).step_us / 1e3:.2f} ms" if number in host.times else ""
        rate = f"{record.rate(number):,.0f}"
        lines.append(f"| {number} {rung.title} | {rate} | {against} | {timed} |")
    return "\n".join(lines)


def laptop_line() -> str:
    """A sentence: what whole runs gain without a GPU."""
    record = load("ladder_assistant_cpu")
    first, last = next(iter(LADDER)), FINISHED.number
    step = record.whole_run_comparison(first, last)
    return (
        f"Rung {last} serves {record.num_requests} short questions behind one system prompt "
        f"{step.speedup:.1f} times as fast as rung {first}, on an {record.host.device}, with PyTorch on "
        f"{record.host.threads} thread{'s' * (record.host.threads > 1)}."
    )


def finished_table() -> str:
    """A Markdown table: the last rung that the record has beside other engines, tokens per second by load."""
    record = load(LOADS_RECORD)
    table = ran(record.table()).drop(columns="arrivals")  # whose rate is that of the clients
    *_, ours = (name for name in table.index if name.startswith("labkit"))
    others = [name for name in table.index if not name.startswith(("labkit", "limit"))]
    return markdown(table.loc[[ours, *others]].rename({ours: f"**{ours.replace(' ', ', rung ')}**"}))


def peers_table() -> str:
    """A Markdown table of tokens per second in whole runs: labkit's newest rung of each record beside
    transformers, on the same GPU."""
    rows = {}
    for record in map(load, PEERS_RECORDS):
        made = f"{record.num_requests} × {record.max_new_tokens}"
        what = f"`{record.model}`, {made}, {record.host.device}, rung {record.ours.split()[-1]}"
        others = [engine for engine in record.engines if engine.startswith("transformers")]
        rates = {engine: f"{record.rate(engine):,.0f}" for engine in (record.ours, *others)}
        rows[what] = {"labkit" if engine == record.ours else engine: rate for engine, rate in rates.items()}
    return markdown(pd.DataFrame(rows).T.fillna("–").rename_axis("model, requests × tokens"))


def loads_text() -> str:
    """A sentence about the machine, and Markdown tables of each load's tokens per second and of the arrivals'
    latency."""
    record = load(LOADS_RECORD)
    table = ran(record.table())
    machine = (
        f"{record.date[:10]}: {record.num_requests} requests of {record.max_new_tokens} new tokens at most, "
        f"batches of {record.max_batch_size}, arrivals at {record.settings['rate']:g} per second, on an "
        f"{record.host.device}. A copy moves {record.bandwidth / 1e9:,.0f} GB/s there; reading alone moves "
        f"{record.read_bandwidth / 1e9:,.0f} GB/s. transformers is {record.versions['transformers']}, "
        f"{'with' if 'flash_attn' in record.versions else 'without'} the package of flash attention."
    )
    return "\n\n".join([machine, markdown(table), markdown(record.latency_table())])


def door_line() -> str:
    """A sentence: how many tokens the readers of the server's streams get."""
    record = load("http_h100")
    return (
        f"Over HTTP, {record.readers} clients that stream from GPT-2 124M at once on an {record.host.device} "
        f"get {record.rate(BY_PROCESS):,.0f} tokens/s if they read plain sockets, and "
        f"{record.rate(BY_OPENAI):,.0f} with the `openai` package; "
        "[BENCHMARKS.md](BENCHMARKS.md#over-http) says what each waits for."
    )


def http_of(record: HttpRecord) -> str:
    share = record.settings.get("share", 0)
    when = f"at random moments, of each side {share:.0%} of its highest rate" if share else "all at once"
    machine = (
        f"{record.date[:10]}: {record.readers} readers ask for {record.max_new_tokens} tokens, {when}, of "
        f"`{record.settings['model']}` on rung {record.settings['rung']}, on an {record.host.device}."
    )
    return f"{machine}\n\n{markdown(record.table().rename_axis('served'))}"


def ranks_text() -> str:
    """For each kind of GPU of the records of models that are cut among several a sentence and a table."""
    by_device: dict[str, list[RanksRecord]] = {}
    for record in load_all("ranks").values():
        by_device.setdefault(record.host.device, []).append(record)
    parts = []
    for device, records in by_device.items():
        dates = sorted(record.date[:10] for record in records)
        tokens, rungs = ({record.settings[name] for record in records} for name in ("max_new_tokens", "rung"))
        machine = (
            f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}: rung {' and '.join(sorted(rungs))}, "
            f"{' or '.join(map(str, sorted(tokens)))} tokens a request, on one {device} and on several "
            "of one host."
        )
        parts += [machine, markdown(gains_table(all_gains(records)))]
    return "\n\n".join(parts)


def replicas_of(record: ReplicasRecord) -> str:
    begin_alike = record.prefixes > 1 and any(sum(run.reused) for run in record.samples)
    begun = f", {record.prefixes} system prompts" if begin_alike else ""
    when = f"over {record.within:g} s" if record.within else "all at once"
    machine = (
        f"{record.date[:10]}: load `{record.load}`{begun}, {record.requests} requests for each replica, "
        f"{when}, {record.max_new_tokens} new tokens at most, of `{record.settings['model']}` on rung "
        f"{record.rung}; ingresses: {record.ingresses}; on an {record.host.device}."
    )
    return f"{machine}\n\n{markdown(record.table())}"


def h200_table() -> str:
    """A Markdown table of what the last rung of each record decodes, and the share of that GPU's limit."""
    rows, seconds = {}, load(TILES_RECORD).seconds
    for label, name in H200_RECORDS.items():
        record = load(name)
        rung = list(record.rates)[-1]
        share = f"{100 * record.share_of_limit(rung):.0f} %"
        rate = f"{record.rate(rung):,.0f}"
        rows[label.format(seconds)] = {"rung": rung, "decode tokens/s": rate, "of the limit": share}
    return markdown(pd.DataFrame(rows).T.rename_axis("on an NVIDIA H200"))


def installation_line() -> str:
    """A sentence: the disk and the minutes that an installation took, with either build of PyTorch."""
    cuda, cpu = (
        "{gigabytes} GB of disk (torch {torch}, {minutes} minutes on {machine}, {date})".format(**build)
        for build in json.loads((ROOT / "data" / "installation.json").read_text("utf-8"))
    )
    return (
        f"PyTorch is most of the installation. On Linux it comes with CUDA: {cuda}. With PyTorch's CPU build "
        f"it is {cpu}."
    )


def gpu_tests_line() -> str:
    """A sentence: how the tests that need a GPU ended in the last run of `make test-gpu` whose record is
    kept."""
    tests = load_gpu_tests()
    device, num = tests.host.device, tests.num_gpus
    where = f"an {device}" if num == 1 else f"{num} {device}s"
    return (
        f"Last recorded run of `make test-gpu`: {tests.passed:,} passed, {tests.failed} failed, "
        f"{tests.skipped} skipped in {tests.seconds} s on {where}, with torch "
        f"{tests.host.torch} and Triton {tests.host.triton}, at commit "
        f"`{tests.commit[:8]}` ({tests.date[:10]})."
    )


MADE: dict[str, Callable[[], str]] = {
    "ladder": ladder_table,
    "finished": finished_table,
    "door": door_line,
    "rungs": rungs_table,
    "laptop": laptop_line,
    "h200": h200_table,
    "peers": peers_table,
    "loads": loads_text,
    "http": lambda: "\n\n".join(map(http_of, load_all("http").values())),
    "ranks": ranks_text,
    "replicas": lambda: "\n\n".join(map(replicas_of, load_all("replicas").values())),
    "fleet": lambda: markdown(load("fleet").steady_table()),
    "fleet growth": lambda: markdown(load("fleet").growth_table()),
    "installation": installation_line,
    "gpu tests": gpu_tests_line,
    "faults": lambda: markdown(reliability.faults_table()),
    "floods": lambda: markdown(reliability.floods_table()),
    "http flood": lambda: markdown(reliability.http_flood_table()),
}


def filled(text: str) -> str:
    """A page with what stands between its markers made anew from the records."""
    return MARKED.sub(lambda found: f"{found[1]} -->\n{MADE[found[1]]()}\n<!-- /{found[1]}", text)


def main() -> None:
    """Make the README's picture, and write the tables and sentences of all pages between their markers."""
    ArgumentParser("python -m labkit.show.readme", description=main.__doc__).parse_args()
    matplotlib.use("agg")
    record = load(LADDER_RECORD)
    picture = draw_ladder(record.rates, record.limit)
    # The record's hash goes into the file, so that a test can tell a picture of older results.
    picture.savefig(PICTURE, metadata={"Source": record_hash(LADDER_RECORD)})
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
