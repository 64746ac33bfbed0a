"""Fuzz targets: readers of what users write must answer with documented errors, in bounded work and memory."""
