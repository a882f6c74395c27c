"""The writer of one pod, in a publisher or a router: claim, fence, rebuild, batches, audits."""
