"""People with an identity of the cluster: who they are by token or certificate, what they may do.

The API server decides both; what it says is kept for a few seconds. Must not know what is asked.
"""
