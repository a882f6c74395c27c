"""Names, schema, records and buckets as they lie in Redis; nobody here reads or writes by itself."""
