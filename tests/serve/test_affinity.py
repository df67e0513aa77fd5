"""Which replica is asked first: by load, then by what it has seen."""

import json

from labkit.serve.affinity import (
    LARGEST_COMPARED,
    MOST_OF_ONE,
    MOST_PIECES,
    PIECE,
    POLICIES,
    PrefixAffinity,
    beginning,
    home,
    prefix_keys,
)

IDLE = {"a": 0, "b": 0}
HAMLET, RICHARD = "To be, or not to be" * 20, "Now is the winter" * 20


def body(**given):
    return json.dumps(given).encode()


def test_a_key_stands_for_a_whole_beginning():
    keys = prefix_keys("a" * PIECE + "b" * PIECE + "c" * (PIECE - 1))
    assert len(keys) == 2 and prefix_keys("a" * PIECE) == keys[:1]
    assert prefix_keys("c" * PIECE + "b" * PIECE)[1] != keys[1]
    assert prefix_keys("a" * (PIECE - 1)) == []


def test_requests_that_begin_alike_meet_and_others_take_turns():
    affinity = PrefixAffinity()
    assert [affinity.rank(text, IDLE)[0] for text in (HAMLET, RICHARD)] == ["a", "b"]
    assert [affinity.rank(text + "?", IDLE)[0] for text in (RICHARD, HAMLET, RICHARD)] == ["b", "a", "b"]
    assert [affinity.rank("short", IDLE)[0] for _ in range(4)] == ["a", "b", "a", "b"]


def test_the_longest_beginning_wins():
    affinity = PrefixAffinity()
    affinity.rank(HAMLET[: 2 * PIECE], IDLE)
    affinity.rank(HAMLET, {"a": 20, "b": 0})  # so that b has seen more
    assert affinity.rank(HAMLET, IDLE) == ["b", "a"]


def test_load_goes_before_the_beginning(monkeypatch):
    monkeypatch.setattr("labkit.serve.affinity.SLACK", 2)
    affinity = PrefixAffinity()
    affinity.rank(HAMLET, IDLE)
    assert affinity.rank(HAMLET, {"a": 2, "b": 0})[0] == "a"
    assert affinity.rank(HAMLET, {"a": 3, "b": 0})[0] == "b"
    assert affinity.rank("short", {"a": 4, "b": 3, "c": 0, "d": 1}) == ["c", "d", "b", "a"]


def test_ingresses_that_tell_each_other_nothing_send_a_beginning_to_the_same_home():
    one, other = (POLICIES["prefix"](2) for _ in range(2))
    texts = [f"{number:03}" * PIECE for number in range(40)]
    assert [home(text[:PIECE], "abc") for text in texts[:5]] == ["a", "a", "c", "c", "a"]  # in any process
    chosen = {text: one.rank(text + "?", IDLE)[0] for text in texts}
    assert {text: other.rank(text + "!", IDLE)[0] for text in reversed(texts)} == chosen
    assert 10 < list(chosen.values()).count("a") < 30
    its_home = home(HAMLET[:PIECE], IDLE)
    (away,) = IDLE.keys() - {its_home}
    assert one.rank(HAMLET, {its_home: 9, away: 0})[0] == away  # load goes before it
    assert one.rank(HAMLET, IDLE)[0] == away  # which has seen more by now
    assert [one.rank("short", IDLE)[0] for _ in range(2)] in (["a", "b"], ["b", "a"])
    alone = POLICIES["prefix"](1)
    assert [alone.rank(text, IDLE)[0] for text in texts[:4]] == ["a", "b", "a", "b"]


def test_round_robin_asks_neither_for_the_load_nor_for_the_beginning():
    turns = POLICIES["round-robin"](1)
    assert [turns.rank(HAMLET, {"a": 9, "b": 0})[0] for _ in range(4)] == ["a", "b", "a", "b"]
    assert turns.rank(HAMLET, {"a": 9, "b": 0, "c": 5}) == ["c", "a", "b"]


def test_a_replica_that_is_gone_is_forgotten():
    affinity = PrefixAffinity()
    affinity.rank(HAMLET, IDLE)
    affinity.rank("short", {"b": 0})
    assert affinity.rank(HAMLET, IDLE)[0] == "a"  # whose turn it is, because nobody has seen it
    assert affinity.rank("short", {"b": 0, "c": 0})[0] == "c"


def test_what_was_not_met_for_longest_is_forgotten_from_its_end(monkeypatch):
    monkeypatch.setattr("labkit.serve.affinity.MOST_PIECES", 4)
    affinity = PrefixAffinity()
    affinity.rank(HAMLET[: 3 * PIECE], {"a": 0})
    affinity.rank(RICHARD[: 3 * PIECE], {"a": 0})
    affinity.rank("short", {"b": 9, "a": 0})
    assert list(affinity._seen["a"]) == [prefix_keys(HAMLET)[0], *prefix_keys(RICHARD)[2::-1]]


def test_a_body_is_compared_by_its_messages_or_its_prompt():
    assert beginning(body(model="m", prompt="To be")) == '"To be"'
    assert beginning(body(prompt=[1, 2, 3], max_tokens=4)) == "[1, 2, 3]"
    messages = [{"role": "user", "content": "To be?"}]
    assert beginning(body(messages=messages)) == json.dumps(messages)
    for other in (b"", b"{", b"[1]", b"\xff", body(prompt=None), b"[" * 100_000):
        assert beginning(other) == ""


def test_one_long_text_drives_no_other_out_and_one_that_is_too_large_is_not_read():
    assert len(prefix_keys("a" * (MOST_OF_ONE + 2) * PIECE)) == MOST_OF_ONE < MOST_PIECES
    assert beginning(body(prompt="a" * LARGEST_COMPARED)) == ""
