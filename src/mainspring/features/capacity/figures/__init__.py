"""Files that come with the package: what a job costs by the published measurements, and example prices."""
