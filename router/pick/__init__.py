"""Weighing, choosing, booking and assigning; matching is `match`, the policies are `scorer.policies`."""
