"""The measured programs: each runs in a process of its own."""
