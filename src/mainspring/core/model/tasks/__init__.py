"""Task declarations of applications."""
