"""Traces of a process. Only ``spans`` and ``sender`` import OpenTelemetry; they are imported only if tracing is on."""
