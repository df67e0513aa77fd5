"""Many consumers, one engine."""

from labkit.engine.streaming.server import StreamingServer
from labkit.engine.streaming.stream import AsyncTokenStream, TokenStream

__all__ = ["AsyncTokenStream", "StreamingServer", "TokenStream"]
