"""The only place that reads the machine's clocks."""
