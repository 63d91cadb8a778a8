"""Level L1: what the SPIRE server reports about the SPIRE agents and entries behind our nodes.

`snapshot` and `verification` are pure. `client` calls the server, `poller` keeps the snapshot and
revokes by it, `facts` answers the Verifier and readiness from it.
"""
