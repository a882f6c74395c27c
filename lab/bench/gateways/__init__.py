"""`python -m warmpath.lab.bench gateways`: Envoy with warmpath beside other gateways."""
