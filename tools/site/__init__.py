"""The documentation as a site: the pages as they are, a way through them, a search, and no request to anybody else."""
