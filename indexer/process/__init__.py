"""What every process of ours needs around its work: tasks, signals, listening, and logs within bounds.

Nothing about blocks.
"""
