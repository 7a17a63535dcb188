"""One browser for all tests of this folder."""

from dashboards import play

__all__ = ["play"]
