"""What a program declares about its tasks."""
