"""Who holds which GPU: the reservation ledger (placement design, section 4).

A pure core that decides, one `LedgerStore` protocol, and a small asynchronous shell that
claims several GPUs. At most one holder, or one declared share group, has a GPU; it is free
again only when its node has said so. Knows no API server, no HTTP and no webhook.
"""
