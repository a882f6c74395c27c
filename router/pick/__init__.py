"""Matching, weighing, choosing and assigning; the policies are `scorer.policies`."""
