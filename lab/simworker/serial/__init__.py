"""The policy study's engine (`lab.simulate.study`): one prefill at a time beside one decoding batch.

vLLM's own scheduler is `lab.simworker.v1`.
"""
