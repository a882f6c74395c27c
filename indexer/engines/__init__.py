"""One codec per engine: wire bytes to the neutral events of `event`."""
