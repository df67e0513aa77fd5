"""The door: an HTTP server that speaks OpenAI's API. The one room of labkit that may open a port.

`python -m labkit.serve --model data/tiny-gpt2` serves a model; `make_app` is the same as an ASGI application.
Needs what `pip install labkit[serve]` brings.
"""

from labkit.serve.http import make_app

__all__ = ["make_app"]
