"""A small application to try Mainspring with: ``mainspring up mainspring.demo:app``."""

from mainspring.demo.application import app

__all__ = ["app"]
