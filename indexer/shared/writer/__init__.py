"""A publisher's writer of one pod: claim, fence, rebuild, batches and audits; no reader."""
