"""Traces of a process. Only ``spans`` and ``sender`` import OpenTelemetry: nobody imports them unless it is on."""
