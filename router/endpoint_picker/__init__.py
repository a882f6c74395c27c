"""Answers gateways by Envoy's external processing: which endpoint takes an HTTP request."""
