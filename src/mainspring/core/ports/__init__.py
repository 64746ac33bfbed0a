"""What the engine needs from the outside: clock, wake-ups, brokers, files, mail."""
