"""The laboratory: everything that tries, measures or proves. The product never imports it."""
