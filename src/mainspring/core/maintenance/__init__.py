"""Background services, one per file: reaper, housekeeper, load sampler, health guard; and the metrics of the fleet."""
