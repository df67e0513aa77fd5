"""The door: an HTTP server that speaks OpenAI's API. The one room of labkit that may open a port.

`python -m labkit.serve --model data/tiny-gpt2` serves a model; `make_app` is the same as an ASGI application,
and `RunningServer` runs one beside other work. Needs what `pip install labkit[serve]` brings.
"""

try:
    from labkit.serve.http import make_app
    from labkit.serve.running import RunningServer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error.name} is not installed. The server needs what this brings: pip install -e '.[serve]'"
    ) from error

__all__ = ["RunningServer", "make_app"]
