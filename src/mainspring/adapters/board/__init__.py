"""Places outside the store where others read how runs and workers are."""
