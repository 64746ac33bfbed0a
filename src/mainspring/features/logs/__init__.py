"""Moving the logs of ended runs to a blob store."""
