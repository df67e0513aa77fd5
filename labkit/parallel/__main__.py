"""`torchrun --nproc-per-node 2 -m labkit.parallel`: texts of a model that is cut among several processes."""

import argparse

from labkit.engine import SamplingParams
from labkit.errors import LabkitError
from labkit.ladder import FINISHED, LADDER
from labkit.model import load_model
from labkit.parallel.engine import ParallelEngine
from labkit.parallel.ranks import TorchRanks


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node N -m labkit.parallel", description=__doc__
    )
    add = parser.add_argument
    add("prompts", nargs="*", default=["To be, or not to be"], help="texts to go on with: %(default)s")
    add("--model", default="data/tiny-gpt2", help="a directory, a hub id or random weights: %(default)s")
    add("--max-new-tokens", type=int, default=32, help="of each text at most: %(default)s")
    add("--rung", default=FINISHED.number, choices=LADDER, help="which rung runs: %(default)s")
    add("--device", help="cpu or cuda, of which each rank takes its own; GPUs if there are any")
    return parser


def main() -> None:
    """Print what the model makes of each prompt."""
    args = make_parser().parse_args()
    params = SamplingParams(args.max_new_tokens)
    try:
        ranks = TorchRanks(args.device)
        engine = ParallelEngine(load_model(args.model), ranks, LADDER[args.rung].options)
        made = engine.lead_or_follow(lambda: engine.generate(args.prompts, params))
        for prompt, completion in zip(args.prompts, made or (), strict=False):
            print(f"{prompt}{completion.text}")
        ranks.leave()
    except LabkitError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
