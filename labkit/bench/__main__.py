"""`python -m labkit.bench COMMAND`: the benchmarks."""

import argparse

from labkit.bench import profile_command

COMMANDS = {"profile": profile_command}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m labkit.bench")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = command.__doc__.split(": ", 1)[1]
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
