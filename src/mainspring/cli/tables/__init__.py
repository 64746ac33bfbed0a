"""Jobs and runs as the command line shows them."""
