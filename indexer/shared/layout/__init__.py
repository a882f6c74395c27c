"""The shared index as it lies in Redis: names, schema, records, buckets. No writer and no reader."""
