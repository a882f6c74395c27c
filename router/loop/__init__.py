"""The event loop that answers calls: how it is made, how late it wakes, and turns for other tasks."""
