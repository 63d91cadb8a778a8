"""Level L1: what the SPIRE server says about the SPIRE agents and entries behind our nodes.

`snapshot` and `judgement` are pure; `listing` decodes, `server_client` calls, `poller`
keeps the snapshot, `revocation` carries out what a new one takes away, `recorder` tells.
"""
