"""Who does it: one package a port, one module an engine."""
