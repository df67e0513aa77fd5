"""The door: an HTTP server that speaks OpenAI's API. The one room of labkit that may open a port.

`python -m labkit.serve --model data/tiny-gpt2` serves a model; `make_app` has the same routes as an ASGI
application, with the engine in a thread of its process, and `RunningServer` runs one beside other work. Needs
what `pip install labkit[serve]` brings.
"""

from importlib import import_module

HOMES = {"make_app": "labkit.serve.http", "RunningServer": "labkit.serve.running"}
__all__ = ["RunningServer", "make_app"]


def __getattr__(name: str) -> object:
    """A public name, imported when it is asked for: the engine's process needs none of them."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed. The server needs what this brings: pip install -e '.[serve]'"
        ) from error
