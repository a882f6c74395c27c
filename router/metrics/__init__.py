"""What the router counts: every metric is declared in `declared`. Nothing here decides anything.

Label values are the known pods, ranks and models, and names that the code or the contract defines
(tiers, methods, statuses, …). No prompt, hash or request id is ever a label. Parts count in plain
fields, which each scrape reads (`router.assemble.scraped`); calls, refusals and waits are counted in
`calls`.
"""
