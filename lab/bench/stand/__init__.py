"""Made-up fleets, traffic and processes that benchmarks measure; no figure is made here."""
