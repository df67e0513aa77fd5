"""Lesson 08's exercise: buckets for a load."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from labkit.learn.exercise import BrokenContract, Exercise, answer_of
from labkit.learn.lesson_08.cost import bucket_of


def choose_sizes(load: dict[int, int], num_sizes: int) -> list[int]:
    """The at most `num_sizes` buckets that pad the fewest rows. load: steps, by their batch size."""
    *smaller, largest = sorted(load)  # a bucket between two batch sizes pads more than the lower of them
    num_smaller = min(num_sizes - 1, len(smaller))
    choices = ([*chosen, largest] for chosen in combinations(smaller, num_smaller))
    return min(choices, key=lambda sizes: rows_padded(load, sizes))


def rows_padded(load: Mapping[int, int], sizes: Sequence[int]) -> int:
    """How many rows of all the steps of a load are padding."""
    return sum(steps * (bucket_of(size, sizes) - size) for size, steps in load.items())


def play_choose_sizes(attempt: Callable, load: dict[int, int], num_sizes: int) -> dict[str, object]:
    """The rows that the attempt's buckets pad. Raises BrokenContract for what are no buckets of the load."""
    sizes = sorted(set(map(int, answer_of(attempt, load=load, num_sizes=num_sizes))))
    if not sizes or sizes[-1] < max(load):
        raise BrokenContract(
            f"the buckets {sizes} have no room for a batch of {max(load)}. The largest batch needs a "
            "graph, too."
        )
    if len(sizes) > num_sizes:
        raise BrokenContract(f"{sizes} are {len(sizes)} buckets, at most {num_sizes} are allowed.")
    return {"rows that are padding": rows_padded(load, sizes)}


CHOOSE_SIZES = Exercise(
    solution=choose_sizes,
    draw=lambda rng: {
        "load": {size: rng.randint(1, 50) for size in rng.sample(range(1, 65), rng.randint(1, 7))},
        "num_sizes": rng.randint(1, 4),
    },
    contract="Among all choices of at most `num_sizes` buckets with room for the largest batch, find the "
    "one that pads the fewest rows, counting each once per step.",
    play=play_choose_sizes,
)
