"""Why a run or a tick did not start."""
