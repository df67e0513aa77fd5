"""Lesson 11: ways to hide the latency of a step that were measured, from a file under data/."""

from labkit.learn.variants import Variants

VARIANTS = Variants("latency_variants_h200")
measured, source = VARIANTS.measured, VARIANTS.source
RUNG_10 = "rung 10"
LANES = "lanes"


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
