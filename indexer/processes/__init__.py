"""What the processes of one router know of ranks in common, in one memory (`compiled.memory`)."""
