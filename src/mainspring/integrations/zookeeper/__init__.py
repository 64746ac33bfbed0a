"""ZooKeeper as a coordinator."""
