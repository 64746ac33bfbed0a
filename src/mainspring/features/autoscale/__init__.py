"""How many slots the load needs."""
