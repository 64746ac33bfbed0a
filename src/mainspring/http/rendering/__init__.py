"""Converts values of the model to the wire format of ``http.schemas``."""
