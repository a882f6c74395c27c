"""What NVIDIA Dynamo's callers ask over HTTP: overlaps of a prompt's token ids, in Dynamo's form."""
