"""`python -m labkit.bench COMMAND`: the benchmarks.

On a CPU they compute on one thread, unless OMP_NUM_THREADS is set; a record says on how many.
"""

import argparse

from labkit.bench.comparison import Compare, RunLadder
from labkit.bench.cost_cards import CountCards
from labkit.bench.drafts import CompareDrafts
from labkit.bench.flags import Flags, Parser
from labkit.bench.fleet import SimulateFleets
from labkit.bench.host_time import TimeHost
from labkit.bench.http import ServeReaders
from labkit.bench.peers.together import RunLoads, RunPeers
from labkit.bench.ranks import RunRanks
from labkit.bench.replicas import ServeReplicas
from labkit.bench.scheduler import RunScheduler
from labkit.bench.streaming import RunStreaming
from labkit.bench.tune import Tune
from labkit.engine.device import current_device, pick_device
from labkit.errors import LabkitError
from labkit.threads import use_one_thread

COMMANDS: dict[str, type[Flags]] = {
    "cost-card": CountCards,
    "host-time": TimeHost,
    "compare": Compare,
    "ladder": RunLadder,
    "peers": RunPeers,
    "loads": RunLoads,
    "scheduler": RunScheduler,
    "streaming": RunStreaming,
    "http": ServeReaders,
    "ranks": RunRanks,
    "replicas": ServeReplicas,
    "fleet": SimulateFleets,
    "drafts": CompareDrafts,
    "tune": Tune,
}


def make_parser() -> argparse.ArgumentParser:
    """The command line: a subcommand for each of COMMANDS, whose docstring is its help."""
    parser = Parser(prog="python -m labkit.bench")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary, _, notes = (command.__doc__ or "").partition("\n")
        subparser = subparsers.add_parser(name, help=summary, description=summary, epilog=notes.strip())
        command.add_to(subparser)
        subparser.set_defaults(command=command)
    return parser


def main() -> None:
    """Run the command of the command line; an error of labkit's is one line, with exit status 2, and so is
    Ctrl-C, with 130."""
    parser = make_parser()
    args = parser.parse_args()
    try:
        device = pick_device(args.device)
        if device.type == "cpu":
            use_one_thread()
        command = args.command.of(args, device)
        with current_device(device):
            command.run()
    except LabkitError as error:  # what was asked for cannot be had: no trace is needed to say so
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "Interrupted before anything was complete: nothing was written.\n")
    if command.interrupted:
        parser.exit(
            130, "Interrupted: the figures, and the record if one is written, have what was complete.\n"
        )


if __name__ == "__main__":
    main()
