"""Background services, one per file: reaper, housekeeper, samplers, guards."""
