"""The core that every installation runs. It imports no other package of Mainspring."""
