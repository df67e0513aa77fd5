"""One workload through labkit and through other engines, its peers, with the same weights.

A peer is given token ids and gives token ids back; it is timed from outside, by one clock, from the moment
it has the requests until it has handed over every token.
"""
