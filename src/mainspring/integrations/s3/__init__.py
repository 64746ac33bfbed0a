"""Objects in an S3 bucket."""
