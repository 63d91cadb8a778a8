"""The scheduler extender: kube-scheduler's messages, the verbs, and their listener."""
