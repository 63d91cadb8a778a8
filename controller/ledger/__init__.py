"""The reservation ledger: which pod has which GPU.

A pure core decides, `LedgerStore` is the interface of the store, and a small asynchronous shell
claims several GPUs. A GPU has one holder at most, or the pods of one declared share group. It is
free again only after its node has shown that nothing of the pod is left. Must not know the API
server, HTTP or a webhook.
"""
