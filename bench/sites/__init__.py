"""Where the benchmark runs: a store, its server and the processes on it."""
