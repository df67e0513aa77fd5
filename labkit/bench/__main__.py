"""`python -m labkit.bench COMMAND`: the benchmarks.

On a CPU they compute on one thread, unless OMP_NUM_THREADS is set; a record says on how many.
"""

import argparse
from importlib import import_module
from typing import Any

from labkit.bench.commands.flags import Parser
from labkit.engine.device import current_device, pick_device
from labkit.errors import LabkitError
from labkit.threads import use_one_thread

NAMES = (
    "profile cost-card host-time kv-append attention device-time compare scheduler streaming http ranks "
    "replicas fleet ladder peers loads sampling drafts tune"
)
COMMANDS: dict[str, Any] = {
    name: import_module(f"labkit.bench.commands.{name.replace('-', '_')}") for name in NAMES.split()
}


def make_parser() -> argparse.ArgumentParser:
    """The command line: a subcommand per module of `labkit.bench.commands`, with its docstring as help."""
    parser = Parser(prog="python -m labkit.bench")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary, _, notes = command.__doc__.split(": ", 1)[1].partition("\n")
        subparser = subparsers.add_parser(name, help=summary, description=summary, epilog=notes.strip())
        command.Settings.add_to(subparser)
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
        settings, taken = args.command.Settings.of(args, device)
        if taken:
            print(f"On a CPU this command takes {taken}, unless you say otherwise.")
        with current_device(device):
            args.command.run(settings)
    except LabkitError as error:  # what was asked for cannot be had: no trace is needed to say so
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "Interrupted before anything was complete: nothing was written.\n")
    if settings.interrupted:
        parser.exit(
            130, "Interrupted: the figures, and the record if one is written, have what was complete.\n"
        )


if __name__ == "__main__":
    main()
