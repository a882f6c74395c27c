"""Queries of NVIDIA Dynamo's callers over HTTP: overlaps of a prompt's token ids, in Dynamo's form."""
