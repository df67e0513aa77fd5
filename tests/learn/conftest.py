"""No figure stays open."""

from figures import close_figures  # noqa: F401  (an autouse fixture)
