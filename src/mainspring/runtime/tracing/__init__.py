"""Traces of a process. Only ``spans`` imports OpenTelemetry, and nobody imports that unless tracing is on."""
