"""Jobs, runs and data centers as the commands print them."""
