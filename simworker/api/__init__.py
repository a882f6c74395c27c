"""The worker's HTTP: OpenAI's API and the administration, as vLLM serves them."""
