"""What is true: pure values and rules. No I/O, no clock, no logging."""
