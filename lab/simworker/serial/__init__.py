"""The engine of the policy study: one prefill at a time, and one batch that decodes beside it.

vLLM's own scheduler is `lab.simworker.v1`.
"""
