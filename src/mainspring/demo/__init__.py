"""A small application that makes the thing visibly alive: ``mainspring up mainspring.demo:app``."""

from mainspring.demo.application import app

__all__ = ["app"]
