"""One execution of a job: its states, attempts, retries, priority and outcome."""
