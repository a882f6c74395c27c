"""Chooses the endpoint of each HTTP request for gateways, by Envoy's external processing."""
