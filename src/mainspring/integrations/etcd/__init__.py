"""etcd as a coordinator."""
