"""The binding webhook: what is decided when a pod is bound to a node, and what follows.

The Binding of a managed pod is accepted only together with a reservation of the GPUs that the pod
gets, and with annotations that name them. `controller.placement` judges whether the pod may go to
the node, as for /filter. `controller.ledger` decides who has which GPU. `controller.admission`
speaks the API server's protocol.
"""
