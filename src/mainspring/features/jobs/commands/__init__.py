"""``mainspring jobs``, with the versions and explanations of jobs."""
