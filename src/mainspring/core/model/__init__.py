"""Values and rules, grouped by topic. Pure: no I/O, no clock, no logging."""
