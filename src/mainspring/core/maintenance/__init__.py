"""One background service a file: reaper, housekeeper, samplers, guards."""
