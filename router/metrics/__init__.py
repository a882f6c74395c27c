"""Every metric of the router, declared in `declared`. Nothing here decides anything.

Label values are the known pods, ranks and models, and names that the code or the contract defines
(tiers, methods, statuses, …). No prompt, hash or request id is ever a label. Parts count in plain
fields, which each scrape reads (`parts`); calls, refusals and waits are counted in `calls`.
"""
