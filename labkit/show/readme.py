"""`python -m labkit.show.readme`: draw the README's picture from the recorded results."""

import hashlib

import matplotlib

from labkit.bench.profile import StepProfile
from labkit.bench.record import RESULTS, load_record
from labkit.show.timeline import draw_timeline

RECORD = "profile_rung00_h100"
PICTURE = RESULTS / f"{RECORD}.png"


def record_hash() -> str:
    return hashlib.sha256((RESULTS / f"{RECORD}.json").read_bytes()).hexdigest()


def main() -> None:
    matplotlib.use("agg")
    record = load_record(RECORD)
    profile = StepProfile.from_dict(record["samples"][-1]["profile"])
    # The record's hash goes into the file, so that a test can tell a picture of older results.
    draw_timeline(profile).savefig(PICTURE, metadata={"Source": record_hash()})


if __name__ == "__main__":
    main()
