"""The benchmark: how fast is Mainspring, and what does it cost?"""
