"""A server that streams one engine's tokens to many consumers."""

from labkit.engine.streaming.server import StreamingServer
from labkit.engine.streaming.stream import AsyncTokenStream, TokenStream

__all__ = ["AsyncTokenStream", "StreamingServer", "TokenStream"]
