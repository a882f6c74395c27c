"""What the router serves over HTTP: health, metrics, the live page, JSON calls, Dynamo's queries."""
