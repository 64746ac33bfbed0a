"""The engine: what every installation runs. It imports nothing of Mainspring but itself."""
