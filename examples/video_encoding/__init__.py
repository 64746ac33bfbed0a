"""Video encoding: an upload makes four jobs, in order, by priority, on as many workers as the load needs."""

from examples.video_encoding.application import app

__all__ = ["app"]
