"""All records of the memory store other than the life of runs."""
