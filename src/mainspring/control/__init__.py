"""The control plane: submit, own shards, stage what is due, reap what was lost, prune what is old."""
