"""Which replica answers a request: of the least loaded ones, the one that has seen most of its beginning.

A replica's prefix cache is worth what reaches it: requests that begin alike should meet where their beginning
is cached already, but not where others wait.
"""

import json
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping

from labkit.json_file import parse_json

PIECE = 64  # characters: beginnings are compared by whole pieces
MOST_PIECES = 65_536  # remembered of each replica, about four million characters; then the oldest go
MOST_OF_ONE = 8_192  # pieces of one text: it must not drive all others out
LARGEST_COMPARED = 2**20  # bytes of a body: to read a larger one would hold up all streams
SLACK = 8  # requests more than the least loaded replica has, up to which a replica may be preferred

Seen = OrderedDict[int, None]  # keys of pieces, the one met longest ago first
Order = Callable[[int, int, int, int], tuple[int, ...]]  # as `load_then_prefix`


def beginning(body: bytes) -> str:
    """The text by which requests are compared: the messages or the prompt of a request's body, as JSON, be it
    a text or token ids. Empty if the body has neither, or is too large to be compared."""
    if len(body) > LARGEST_COMPARED:
        return ""
    try:
        given = parse_json("the body", body)
    except ValueError:  # the replica says what is wrong with it
        return ""
    asked = (given.get("messages") or given.get("prompt")) if isinstance(given, dict) else None
    return json.dumps(asked) if asked else ""


def prefix_keys(text: str) -> list[int]:
    """A key for each beginning of a text that is whole pieces long, from the shortest on; MOST_OF_ONE at
    most."""
    keys, key = [], 0
    for end in range(PIECE, min(len(text), MOST_OF_ONE * PIECE) + 1, PIECE):
        key = hash((key, text[end - PIECE : end]))
        keys.append(key)
    return keys


def load_then_prefix(load: int, most: int, seen: int, turn: int) -> tuple[int, ...]:
    """By what replicas are sorted for a request; the least comes first.

    load: unfinished requests, which up to `most` are few enough. seen: pieces of the request, from its start,
    that the replica has seen. turn: when it was last first.
    """
    if load > most:
        return 1, load, turn
    return 0, -seen, load, turn


def by_turns(load: int, most: int, seen: int, turn: int) -> tuple[int, ...]:
    """Round robin, what affinity is measured against: whoever was not asked for longest."""
    return (turn,)


class PrefixAffinity:
    """Ranks replicas for one request after another, and remembers which beginnings it has sent where.

    order: by what they are sorted. has_homes: every beginning has a replica that counts as having seen its
    first piece, the same one for all ingresses, which tell each other nothing: see `home`.
    """

    def __init__(self, order: Order = load_then_prefix, has_homes: bool = False) -> None:
        self.order, self.has_homes = order, has_homes
        self._seen: dict[str, Seen] = defaultdict(OrderedDict)
        self._turns: dict[str, int] = defaultdict(int)  # when each replica was last first
        self._turn = 0

    def rank(self, text: str, loads: Mapping[str, int]) -> list[str]:
        """All replicas, the best one first, which then counts as having seen the text.

        loads: unfinished requests by replica, of at least one; others are forgotten.
        """
        for gone in self._seen.keys() - loads.keys():
            del self._seen[gone]
        keys, most = prefix_keys(text), min(loads.values()) + SLACK
        at_home = home(text[:PIECE], loads) if keys and self.has_homes else None

        def key(replica: str) -> tuple[int, ...]:
            seen = max(num_seen(self._seen[replica], keys), replica == at_home)
            return self.order(loads[replica], most, seen, self._turns[replica])

        ranked = sorted(loads, key=key)
        self._turn += 1
        self._turns[ranked[0]] = self._turn
        remember(self._seen[ranked[0]], keys, MOST_PIECES)
        return ranked


def num_seen(seen: Seen, keys: list[int]) -> int:
    """How many pieces of a text, from its start, were seen."""
    return next((index for index, key in enumerate(keys) if key not in seen), len(keys))


def remember(seen: Seen, keys: list[int], most: int) -> None:
    """A text was seen; of more than so many pieces, those met longest ago are forgotten."""
    for key in reversed(keys):  # so that of a text its end is forgotten first
        seen[key] = None
        seen.move_to_end(key)
    while len(seen) > most:
        seen.popitem(last=False)


def home(piece: str, replicas: Iterable[str]) -> str:
    """The replica of a beginning's first piece, in whichever process this is asked: `hash` would differ."""
    names = sorted(replicas)
    return names[zlib.crc32(piece.encode()) % len(names)]


# By name, what ranks replicas in one of so many ingresses.
POLICIES: dict[str, Callable[[int], PrefixAffinity]] = {
    "prefix": lambda ingresses: PrefixAffinity(has_homes=ingresses > 1),
    "round-robin": lambda ingresses: PrefixAffinity(order=by_turns),
}
