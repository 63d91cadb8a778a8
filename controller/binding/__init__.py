"""The binding webhook: what is decided when a pod is bound to a node, and what follows of it.

A Binding of a managed pod is let through only together with the reservation of the GPUs that
the pod gets, and with annotations that say which. Whether the pod may go there is judged as
/filter does it (`controller.scheduling`), who has which GPU stands in the ledger
(`controller.ledger`), and how the API server asks is admission's business
(`controller.admission`).
"""
