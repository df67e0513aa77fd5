"""Lesson 11: ways to hide the latency of a step that were measured, from two files under data/."""

from statistics import median

import pandas as pd

from labkit.learn.variants import Variants

VARIANTS = Variants("latency_variants_h200")
H100 = Variants("latency_variants_h100")  # measured later, with weights that are asked for once
measured, part, source = VARIANTS.measured, VARIANTS.part, VARIANTS.source
RUNG_10 = "rung 10"
LANES = "lanes"
EARLY = {"rung 10 +pw": "weights early", "rung 10 +pw+pa": "keys and values, too"}
ORDERS = {  # of the lanes, at 64 requests; by the name in the file
    RUNG_10: "rung 10",
    LANES: "two lanes, both at once",
    "lanes after product": "side behind main's first product",
    "lanes after attention": "side behind main's first attention",
    "alternating": "attentions by turns",
    "lanes side priority high": "side stream of high priority",
    "lanes no pdl": "no kernel starts early",
    "lanes 1 split": "attention not split in a half",
    "lanes tiles A": "products of other tiles, A",
    "lanes tiles B": "products of other tiles, B",
    "lanes tiles C": "products of other tiles, C",
    "lanes tiles D": "products of other tiles, D",
    "3 lanes": "three lanes",
}
MIXED = "256 to 512"  # tokens in the cache of each request
RUNG_11 = "rung 11"
WHOLE, IN_HALVES, WHOLE_EARLY = "whole", "in halves", "whole, weights early"  # how a batch of rung 14 went
FORMS = {  # of the end of a step; by how the names in the file begin
    "argmax in one kernel": "argmax and advance in one kernel",
    "head and argmax in one kernel": "the head, too",
    "all in one kernel, norm folded": "the norm, too: folded into the head",
    "all in one kernel, norm on the fly": "the norm, too: on the fly",
}
LARGEST = 128  # requests of which the end alone is told, too
IN_A_GRAPH = (1, 4)  # steps
READ = {"": "replays alone", ", read one behind": "read one behind"}
TO_HOST = {  # of the fastest form; by how the names in the file end
    "copied, read one behind": "fastest form, copied",
    "straight to the host, looked for, read one behind": "straight to the host",
    "straight to the host, looked for, read one behind, 4 in a graph": "the same, 4 steps in a graph",
}


def step_us() -> dict[tuple[int, str, str], float]:
    """Microseconds of each timed step: by its requests, their tokens and the variant."""
    return {(s.rows, s.tokens, s.variant): s.us for s in measured().steps.samples}


def change(us: float, before: float) -> str:
    """A time, and how many percent longer it is than `before`."""
    return f"{us:.0f} ({100 * (us / before - 1):+.1f} %)"


def lanes_lines() -> list[str]:
    """A line per load: a step of rung 10, and with its batch in two lanes."""
    us = step_us()
    return [
        f"{rows:>3} requests of {tokens:>10} tokens: {us[rows, tokens, RUNG_10]:.0f} -> "
        + change(us[rows, tokens, LANES], us[rows, tokens, RUNG_10])
        for rows, tokens in sorted({key[:2] for key in us if key[2] == LANES})
    ]


def early_table() -> pd.DataFrame:
    """A row per load: a step of rung 10, and what asking early changes."""
    us, rows = step_us(), {}
    for load in sorted({key[:2] for key in us if key[2] in EARLY}):
        before = us[*load, RUNG_10]
        told = {name: us.get((*load, key)) for key, name in EARLY.items()}
        rows[f"{load[0]} x {load[1]}"] = {"rung 10 (us)": f"{before:.0f}"} | {
            name: change(value, before) if value else "" for name, value in told.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("requests x tokens")


def orders_table() -> pd.DataFrame:
    """A row per order of two lanes: a step of 64 requests."""
    us = step_us()
    told = {name: change(us[64, MIXED, variant], us[64, MIXED, RUNG_10]) for variant, name in ORDERS.items()}
    return pd.DataFrame({f"64 x {MIXED} (us)": told})


def asks_line(numbers: int, warps: int) -> str:
    """How often a request for so many numbers, in a program of so many warps, was made."""
    (asks,) = (s for s in H100.part("asks").samples if (s.numbers, s.warps) == (numbers, warps))
    return (
        f"{numbers} numbers, {32 * warps} threads: {asks.every_thread} requests for each by every thread "
        f"that holds it, {asks.once} by the first of them"
    )


def once_table() -> pd.DataFrame:
    """A row per load: what weights change that are asked for early, by every thread and once, each beside the
    whole batches that it ran in turn with."""
    ms = {(s.rows, s.variant): s.ms for s in H100.part("once").samples}
    rows = {
        f"{B} x 512": {
            "nothing early (ms)": f"{ms[B, 'whole']:.0f}",
            "by every thread": change(ms[B, "by every thread"], ms[B, "whole"]),
            "once": change(ms[B, "once"], ms[B, "whole, later"]),
        }
        for B in sizes(ms)
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("requests x tokens")


def ahead_table() -> pd.DataFrame:
    """A row per thing that is asked for before its own kernel runs: whole runs of 64 requests."""
    ms = {s.variant: s.ms for s in H100.part("ahead").samples}
    told = {variant: change(time, ms[WHOLE]) for variant, time in ms.items()}
    return pd.DataFrame({"64 x 512 (ms)": told}).rename_axis("asked for")


def beside_table() -> pd.DataFrame:
    """A row per way in which attention leaves room for the other half's products: a step, a column per number
    of requests."""
    us = {(s.rows, s.variant): s.us for s in H100.part("beside").samples}
    names = dict.fromkeys(variant for _, variant in us)
    told = {
        name: {f"{B}": change(us[B, name], us[B, IN_HALVES]) if (B, name) in us else "" for B in sizes(us)}
        for name in names
    }
    return pd.DataFrame.from_dict(told, orient="index").rename_axis("requests (us)")


def models_table(on: Variants = VARIANTS) -> pd.DataFrame:
    """A row per model and load: the bytes of a layer, a run with batches that go whole, and what halves and
    weights that are asked for early change. on: the file of the GPU."""
    samples = on.part("models").samples
    ms = {(s.model, s.rows, s.new_tokens, s.variant): 1e3 * median(s.seconds) for s in samples}
    rows = {}
    for s in sorted(samples, key=lambda s: (s.layer_bytes, s.rows)):
        load = s.model, s.rows, s.new_tokens
        whole, tried = ms[*load, WHOLE], {key: ms.get((*load, key)) for key in (IN_HALVES, WHOLE_EARLY)}
        rows[f"{s.model}, {s.rows} x {s.new_tokens}"] = {
            "a layer (MB)": f"{s.layer_bytes / 1e6:.0f}",
            "whole (ms)": f"{whole:.0f}",
        } | {name: change(value, whole) if value else "" for name, value in tried.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model, requests x tokens")


def layers_table() -> pd.DataFrame:
    """A row per form of the kernel of all layers and number of requests: its microseconds, and the time of
    rung 10's kernels in the same run over it."""
    samples = measured().layers.samples
    below = {(s.run, s.rows): s.us for s in samples if s.variant == RUNG_10}
    rows = [
        {
            "requests": sample.rows,
            "all layers in one kernel": sample.variant,
            "us": f"{sample.us:.0f}",
            "rung 10 (us)": f"{below[sample.run, sample.rows]:.0f}",
            "times as fast": f"×{below[sample.run, sample.rows] / sample.us:.2f}",
        }
        for sample in samples
        if sample.variant != RUNG_10
    ]
    return pd.DataFrame(rows).set_index("requests")


def barriers() -> str:
    """What the grid barriers of a step took alone."""
    about = measured().grid_barriers
    return f"{about.number} grid barriers alone: {about.us} us"


def ends_us(what: str) -> dict[tuple[int, str], float]:
    """Microseconds of a part of the ends ("alone", "steps", "graphs" or "host"): by requests and variant.

    Raises ValueError for another part.
    """
    return {(s.rows, s.variant): s.us for s in part(f"ends.{what}").samples}


def sizes(us: dict[tuple[int, str], float]) -> list[int]:
    """The numbers of requests that were measured, from the smallest."""
    return sorted({rows for rows, _ in us})


def fastest(us: dict[tuple[int, str], float], rows: int, form: str) -> float:
    """The least time of a form of the end and its variations, for so many requests."""
    return min(time for (its_rows, name), time in us.items() if its_rows == rows and name.startswith(form))


def ends_table() -> pd.DataFrame:
    """A row per form of the end of a step, the fastest of its variations, beside rung 11: microseconds of the
    step, a column per number of requests, and of the end alone for the most requests."""
    us, alone = ends_us("steps"), ends_us("alone")
    last = f"{LARGEST}, the end alone"
    told = {
        "rung 11": {f"{B}": f"{us[B, RUNG_11]:.0f}" for B in sizes(us)}
        | {last: f"{alone[LARGEST, RUNG_11]:.0f}"},
        "its layers alone": {f"{B}": f"{us[B, 'rung 11, layers alone']:.0f}" for B in sizes(us)} | {last: ""},
    }
    for form, name in FORMS.items():
        told[name] = {f"{B}": change(fastest(us, B, form), us[B, RUNG_11]) for B in sizes(us)}
        told[name][last] = change(fastest(alone, LARGEST, form), alone[LARGEST, RUNG_11])
    return pd.DataFrame.from_dict(told, orient="index").rename_axis("requests (us)")


def tokens_lines() -> list[str]:
    """A line per form of the end and number of requests in which tokens were not those of rung 11."""
    others = {(s.variant, s.rows): s.others for s in part("ends.tokens").samples}
    return [
        f"{FORMS[form]}: {count} of {rows} requests had another token"
        for (form, rows), count in others.items()
        if form in FORMS and count
    ]


def graphs_table() -> pd.DataFrame:
    """A row per number of rung 11's steps in a graph, nothing read or the tokens read one replay behind:
    microseconds a step, a column per number of requests."""
    us = ends_us("graphs")
    told = {
        f"{k} in a graph, {name}": {
            f"{B}": change(us[B, f"{k} in a graph{read}"], us[B, f"1 in a graph{read}"]) for B in sizes(us)
        }
        for read, name in READ.items()
        for k in IN_A_GRAPH
    }
    return pd.DataFrame.from_dict(told, orient="index").rename_axis("requests (us)")


def host_table() -> pd.DataFrame:
    """A row per way of the tokens to the host, which reads one replay behind: microseconds a step, a column
    per number of requests."""
    us = ends_us("host")
    before = {B: us[B, f"{RUNG_11}, copied, read one behind"] for B in sizes(us)}
    told = {"rung 11, copied": {f"{B}": f"{time:.0f}" for B, time in before.items()}}
    for end, name in TO_HOST.items():
        of = {
            B: time for (B, variant), time in us.items() if variant.endswith(end) and RUNG_11 not in variant
        }
        told[name] = {f"{B}": change(of[B], time) for B, time in before.items()}
    return pd.DataFrame.from_dict(told, orient="index").rename_axis("requests (us)")
